"""Spark on scalable topics that change shape: splits, k-way splits and merges while queries read and write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from anabranch.spark import CopyJob, ScalePolicy, audit, copy, simulate, stats
from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.jobs.plots import draw, draw_simulation
from tests.support.spark.scalable_topics import ScalableBroker, Unrest
from tests.support.spark.session import Traffic, check_complete, check_key_order, finish, offsets_in, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rivers(spark: Any) -> Iterator[ScalableBroker]:
    with ScalableBroker() as made:
        yield made


def named(name: str) -> str:
    return f"topic://public/default/{name}"


def stream(spark: Any, broker: ScalableBroker, topic: str, **options: str) -> Any:
    made = spark.readStream.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic)
    return made.options(**{"startingOffsets": "earliest", **options}).load()


def to_topic(rows: Any, broker: ScalableBroker, topic: str, checkpoint: Path) -> Any:
    made = rows.select("key", "value").writeStream.format("anabranch").option("serviceUrl", broker.service_url)
    return made.option("topic", topic).option("checkpointLocation", str(checkpoint))


def stored(spark: Any, broker: ScalableBroker, topic: str) -> list[Any]:
    found = spark.read.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic)
    return list(found.load().orderBy("message_id").collect())


def test_a_pipeline_follows_both_its_topics(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    """Source and target split and merge under load; every message arrives once, in the order of its key."""
    source, target = named("both-in"), named("both-out")
    rivers.create(source, 1)
    rivers.create(target, 2)
    traffic = Traffic(rivers.service_url, source)
    traffic.publish(20)
    read = stream(spark, rivers, source, maxRowsPerTrigger="300")
    query = to_topic(read, rivers, target, tmp_path / "checkpoint").start()
    with Unrest(traffic):
        wait_until(lambda: bool(query.lastProgress) and query.lastProgress["numInputRows"] > 0, "the first batch")
        rivers.split(source, 0, 3)
        rivers.split(target, 0)
        traffic_before = traffic.total
        wait_until(lambda: traffic.total > traffic_before, "more traffic")
        rivers.merge(source, rivers.active(source)[:2])
        rivers.merge(target, rivers.active(target))
        rivers.split(target, rivers.active(target)[0], 4)
    query.processAllAvailable()
    query.stop()
    rows = stored(spark, rivers, target)
    check_complete(rows, traffic.sent)
    check_key_order(rows)
    verdict = audit(spark, rivers.service_url, target, counter="n")
    assert verdict.is_sound, verdict
    assert verdict.segments > 2
    ends = offsets_in(tmp_path / "checkpoint")
    assert len({tuple(end["topics"][source]["s"]) for end in ends}) > 2, "the cut moved through the graph"


def test_available_now_ends_although_the_topic_splits(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    topic = named("now")
    rivers.create(topic, 1)
    traffic = Traffic(rivers.service_url, topic, keys=8)
    for _ in range(4):
        traffic.publish(20)
    before = traffic.total
    changed: list[int] = []
    seen: list[Any] = []

    def put(batch: Any, number: int) -> None:
        seen.extend(batch.collect())
        if not changed:  # after the snapshot that the run was planned with
            changed.append(number)
            rivers.split(topic, 0)
            traffic.publish(20)

    def run() -> None:
        df = stream(spark, rivers, topic, maxRowsPerTrigger="160")
        made = df.writeStream.foreachBatch(put).option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(made.trigger(availableNow=True).start())

    run()
    assert len(seen) == before, "the snapshot, and nothing that came later"
    run()
    check_complete(seen, traffic.sent)
    check_key_order(seen)


def test_an_audit_finds_doubles_gaps_and_disorder(spark: Any, rivers: ScalableBroker) -> None:
    """On a topic that does not deduplicate: a producer that begins its numbers again, and one that leaves some out."""
    with blocking.connect(rivers.service_url) as client:
        for count in (3, 1):
            with client.producer("audit-bad", name="again") as producer:
                for _ in range(count):
                    producer.send(b"", key="a")
        with client.producer("audit-bad", name="gap") as producer:
            for number in (0, 5):
                producer.send(b"", key="b", sequence_id=number)
    found = audit(spark, rivers.service_url, "audit-bad")
    assert (found.duplicates, found.gaps, found.disorder, found.counter_errors) == (1, 4, 1, 0)
    assert not found.is_sound
    assert {(one.check, one.producer, one.key, one.detail) for one in found.offenders} == {
        ("duplicate", "again", None, "sequence id 0, 2 times"),
        ("gap", "gap", None, "4 missing before sequence id 5"),
        ("disorder", "again", "a", "sequence id 0 after 2"),
    }


def test_jobs_on_a_topic_with_a_past(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    topic, copied = named("jobs"), named("jobs-copy")
    rivers.create(topic, 2)
    rivers.create(copied, 1)
    traffic = Traffic(rivers.service_url, topic, keys=20)
    traffic.publish(30)
    rivers.split(topic, 1)
    traffic.publish(30)
    folder = f"parquet:{tmp_path / 'rows'}"
    url = rivers.service_url
    assert copy(spark, CopyJob(url, topic, folder, str(tmp_path / "one"))).rows == traffic.total
    assert copy(spark, CopyJob(url, topic, folder, str(tmp_path / "one"))).rows == 0, "it goes on where it stopped"
    check_complete(spark.read.parquet(str(tmp_path / "rows")).collect(), traffic.sent)
    for rows in (traffic.total, 0):
        assert copy(spark, CopyJob(url, folder, named("jobs-back"), str(tmp_path / "back"))).rows == rows
    check_complete(stored(spark, rivers, named("jobs-back")), traffic.sent)
    with pytest.raises(BadSparkOption, match="rows is not empty"):  # Spark would leave out what it takes for its own
        copy(spark, CopyJob(url, topic, folder, str(tmp_path / "other")))
    (tmp_path / "nothing").mkdir()
    spark.range(3).write.parquet(str(tmp_path / "foreign"))
    for name, said in (("nothing", "has no Parquet files"), ("foreign", "has no column value")):
        with pytest.raises(BadSparkOption, match=said):
            copy(spark, CopyJob(url, f"parquet:{tmp_path / name}", named("jobs-none"), str(tmp_path / f"of-{name}")))
    assert copy(spark, CopyJob(url, topic, copied, str(tmp_path / "two"))).rows == traffic.total
    verdict = audit(spark, url, copied, counter="n")
    assert verdict.is_sound, verdict
    assert (verdict.messages, verdict.keys) == (traffic.total, 20)
    traffic.sent["key-0"] -= 1  # a message that was there before comes again
    with_double = Traffic(url, topic, keys=1)
    with_double.sent["key-0"] = traffic.sent["key-0"]
    with_double.publish(1)
    bad = audit(spark, url, topic, counter="n")
    assert not bad.is_sound
    assert bad.counter_errors == 1
    assert [one.key for one in bad.offenders] == ["key-0"]
    figures = stats(spark, url, topic)
    assert (figures.messages, figures.keys) == (traffic.total + 2, 20)
    assert {one.segment for one in figures.segments} == {0, 1, 2, 3}
    assert any(one.split_at is not None for one in figures.segments)
    assert [one.is_active for one in figures.segments] == [True, False, True, True]
    assert all(one.split_at is None for one in figures.segments if not one.is_active), "what is sealed is not split"
    assert sum(count for _, count, _ in figures.over_time) == figures.messages
    draw(figures, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    eager = ScalePolicy(
        split_msg_rate_in_threshold=2, merge_msg_rate_in_threshold=0, split_cooldown_seconds=0, max_segments=4
    )
    found = simulate(spark, url, topic, policy=eager, tick_seconds=0.01, segments=2)
    assert found.messages == figures.messages
    assert (found.splits, found.segments_last) == (2, 4), "as many as the policy allows"
    draw_simulation(found, tmp_path / "simulation.svg")
    assert "split threshold" in (tmp_path / "simulation.svg").read_text()
    idle = simulate(spark, url, topic, policy=eager, tick_seconds=1_000_000.0)
    assert idle.splits == 0
