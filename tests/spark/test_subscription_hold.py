"""A query's `subscription` on scalable topics where nothing is retained that was read: it keeps what is unread and lets
go of what is read, also of segments that were split; and segments that went leave the query whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from anabranch import blocking
from tests.support.spark.scalable_topics import ScalableBroker
from tests.support.spark.session import Traffic, check_complete, check_key_order, finish, wait_until

pytestmark = pytest.mark.slow

SETTINGS = {
    "scalable_topics.retention_minutes": 0,
    "scalable_topics.retention_mb": 0,
    "scalable_topics.sweep_seconds": 0.2,
}


@pytest.fixture(scope="module")
def rivers(spark: Any) -> Iterator[ScalableBroker]:
    with ScalableBroker(settings=SETTINGS) as made:
        yield made


def named(name: str) -> str:
    return f"topic://public/default/{name}"


class Query:
    """A stream that is run to its end again and again; `seen` has its rows in the order of batches."""

    def __init__(self, spark: Any, url: str, topic: str, folder: Path, **options: str) -> None:
        self.seen: list[Any] = []
        self._spark, self._folder = spark, folder
        defaults = {"serviceUrl": url, "topic": topic, "subscription": "held", "startingOffsets": "earliest"}
        self._options = {**defaults, **options}

    def run(self) -> None:
        rows = self._spark.readStream.format("anabranch").options(**self._options).load()
        made = rows.writeStream.foreachBatch(lambda batch, _: self.seen.extend(batch.collect()))
        finish(made.option("checkpointLocation", str(self._folder)).trigger(availableNow=True).start())


def backlog(rivers: ScalableBroker, topic: str) -> dict[int, int]:
    """Of the segments that have any."""
    found = rivers.subscription(topic, "held")["backlog"]
    return {int(one): count for one, count in found.items() if count}


def is_swept(rivers: ScalableBroker, topic: str) -> bool:
    return 0 not in rivers.segments(topic)


def wait_swept(rivers: ScalableBroker, name: str) -> None:
    """Every sealed segment was looked at: parents of two other topics, of which the second is split when the first is
    swept, are gone."""
    for number in range(2):
        topic = named(f"{name}-witness-{number}")
        rivers.create(topic, 1)
        rivers.split(topic, 0)
        wait_until(partial(is_swept, rivers, topic), "unread segments are deleted")


def test_what_is_unread_stays_and_what_is_read_goes(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    topic, url = named("kept"), rivers.service_url
    rivers.create(topic, 1)
    traffic = Traffic(url, topic, keys=4)
    query = Query(spark, url, topic, tmp_path)
    traffic.publish(5)
    query.run()
    assert backlog(rivers, topic) == {}
    traffic.publish(3)  # of these, Spark has seen nothing
    rivers.split(topic, 0)
    traffic.publish(2)
    wait_swept(rivers, "kept")
    unread = backlog(rivers, topic)
    assert rivers.segments(topic) == [0, 1, 2], "the parent has unread messages"
    assert (unread.pop(0), sum(unread.values())) == (12, 8)
    query.run()
    wait_until(lambda: rivers.segments(topic) == [1, 2], "the parent was read: it goes")
    assert backlog(rivers, topic) == {}
    traffic.publish(2)
    rivers.merge(topic, [1, 2])
    wait_swept(rivers, "kept-merged")
    assert rivers.segments(topic) == [1, 2, 3], "both parents have unread messages"
    query.run()
    wait_until(lambda: rivers.segments(topic) == [3], "both parents of the merge go")
    check_complete(query.seen, traffic.sent)
    check_key_order(query.seen)


def test_the_past_of_a_query_that_begins_late_is_not_held(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    """The first SUBSCRIBE makes a cursor at the beginning of every segment, also of those before the query's start."""
    topic, url = named("past"), rivers.service_url
    with blocking.connect(url) as client, client.queue_consumer(topic, subscription="keeps", start="earliest"):
        traffic = Traffic(url, topic, keys=4)
        traffic.publish(2)
        rivers.split(topic, 0)
        traffic.publish(2)
        rivers.split(topic, 1)
    query = Query(spark, url, topic, tmp_path, startingOffsets="latest")
    query.run()
    assert rivers.segments(topic) == [0, 1, 2, 3, 4]
    assert backlog(rivers, topic) == {}
    rivers.unsubscribe(topic, "keeps")
    wait_until(lambda: rivers.segments(topic) == [2, 3, 4], "what lies before the query's start goes")
    traffic.publish(1)
    query.run()
    assert sorted(json.loads(bytes(row.value))["n"] for row in query.seen) == [4] * 4


def test_a_segment_that_was_read_and_went_is_no_loss(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    """The query is at the very end of its segment when that is split, and nothing is published before it goes."""
    topic, url = named("went"), rivers.service_url
    rivers.create(topic, 1)
    traffic = Traffic(url, topic, keys=4)
    query = Query(spark, url, topic, tmp_path)
    with blocking.connect(url) as client, client.queue_consumer(topic, subscription="keeps", start="earliest"):
        traffic.publish(3)
        query.run()
        rivers.split(topic, 0)
        query.run()  # nothing to read, but it follows the split
    assert rivers.segments(topic) == [0, 1, 2]
    rivers.unsubscribe(topic, "keeps")
    wait_until(lambda: rivers.segments(topic) == [1, 2], "nothing of the parent is unread")
    traffic.publish(2)
    query.run()
    check_complete(query.seen, traffic.sent)
    check_key_order(query.seen)


def test_a_segment_that_went_unread_is_a_loss(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    topic, url = named("lost"), rivers.service_url
    rivers.create(topic, 1)
    traffic = Traffic(url, topic, keys=4)
    query = Query(spark, url, topic, tmp_path)
    traffic.publish(2)
    query.run()
    traffic.publish(3)
    rivers.split(topic, 0)
    rivers.unsubscribe(topic, "held")  # nothing retains it any more
    wait_until(lambda: rivers.segments(topic) == [1, 2], "the parent is deleted")
    traffic.publish(1)
    with pytest.raises(PySparkException, match=r"segment 0: the next entry to read was .* but the segment is gone"):
        query.run()
    careless = Query(spark, url, topic, tmp_path, failOnDataLoss="false")
    careless.run()
    assert sorted(json.loads(bytes(row.value))["n"] for row in careless.seen) == [5] * 4
