"""The sink's way out, without Spark: attempts of a task that stop anywhere, on topics that split and merge."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pytest

from anabranch.client.errors import ProducerFenced
from anabranch.spark.client.access import Access
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.spark.client.entry_fetcher import Fetch
from anabranch.spark.offsets import advance as cuts
from anabranch.spark.offsets import partitions as plan
from anabranch.spark.sink.replay_check import NonDeterministicReplay
from anabranch.spark.sink.segment_writer import Rows
from anabranch.spark.sink.topic_writer import OnReplay, OutletOptions, TopicWriter
from anabranch.spark.source.arrow_rows import decode
from tests.support.spark.scalable_topics import ScalableBroker
from tests.support.spark.session import body, check_complete, check_key_order, wait_until

KEYS = [f"key-{i}" for i in range(16)]
FIRST = 7 << 32


class Stored(NamedTuple):
    segment: int
    value: bytes | None
    producer: str

    def __getitem__(self, name: str) -> object:  # type: ignore[override]  # as a row of Spark's
        return getattr(self, name)


@pytest.fixture(scope="module")
def rivers() -> Iterator[ScalableBroker]:
    with ScalableBroker() as made:
        yield made


@pytest.fixture
def cluster(rivers: ScalableBroker) -> Iterator[ClusterClient]:
    made = ClusterClient(Access.of(rivers.service_url, {}, 30_000))
    yield made
    made.close()


def batches(rounds: int, *, keyed: bool = True, size: int = 50) -> list[Rows]:
    """Rows of a task, in pieces as Spark hands them over: `rounds` of every key."""
    values = [body(key, n) for n in range(rounds) for key in KEYS]
    keys = [key for _ in range(rounds) for key in KEYS]
    made = []
    for start in range(0, len(values), size):
        piece = pa.array(values[start : start + size], pa.binary())
        made.append(Rows(FIRST + start, piece, pa.array(keys[start : start + size]) if keyed else None))
    return made


def outlet(cluster: ClusterClient, topic: str, attempt: int, name: str = "task", **options: object) -> TopicWriter:
    settings = OutletOptions(entry_rows=7, **options)  # type: ignore[arg-type]  # of the tests below
    return TopicWriter(cluster, topic, name, attempt, settings)


def stored(cluster: ClusterClient, topic: str) -> list[Stored]:
    view = cluster.view(topic)
    found = []
    for one in plan.whole(view, cuts.earliest(view), None):
        fetch = Fetch(cluster, one, prefetch_bytes=1 << 20, retries=2, backoff_ms=50)
        for entries in fetch:
            run = decode(entries)
            fetch.used(sum(max(size, 1) for size in run.batch_sizes), 1)
            names = [run.producer_names[number] for number in run.entries()]
            found += [Stored(one.segment, *both) for both in zip(run.values(), names, strict=True)]
    return found


def change(rivers: ScalableBroker, topic: str, chance: random.Random) -> None:
    active = rivers.active(topic)
    if len(active) > 1 and chance.random() < 0.5:
        at = chance.randrange(len(active) - 1)
        rivers.merge(topic, active[at : at + 2])
    else:
        rivers.split(topic, chance.choice(active), chance.choice((2, 3)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("keyed", [True, False])
def test_attempts_that_stop_anywhere_store_every_row_once(
    rivers: ScalableBroker, cluster: ClusterClient, seed: int, keyed: bool
) -> None:
    topic = f"topic://public/default/outlet-{seed}-{keyed}"
    chance = random.Random(seed)
    rivers.create(topic, chance.choice((1, 2)))
    for attempt in range(3):
        made = outlet(cluster, topic, attempt + 1)
        pieces = batches(20, keyed=keyed, size=chance.choice((5, 50, 320)))  # cut otherwise each time
        is_last = attempt == 2
        for piece in pieces if is_last else pieces[: chance.randrange(len(pieces) + 1)]:
            made.send(piece)
            if chance.random() < 0.3:
                change(rivers, topic, chance)
        if is_last:
            made.finish()
        made.close()
        change(rivers, topic, chance)
    rows = stored(cluster, topic)
    check_complete(rows, dict.fromkeys(KEYS, 20))
    if keyed:
        check_key_order(rows)


def _is_longer(changes: list[int], before: int) -> bool:
    return len(changes) > before


def test_a_topic_that_changes_all_the_time(rivers: ScalableBroker, cluster: ClusterClient) -> None:
    topic = "topic://public/default/outlet-unrest"
    rivers.create(topic, 1)
    chance, is_over = random.Random(1), threading.Event()
    changes: list[int] = []

    def unrest() -> None:
        while not is_over.is_set():
            change(rivers, topic, chance)
            changes.append(1)

    thread = threading.Thread(target=unrest, daemon=True)
    thread.start()
    made = outlet(cluster, topic, 1)
    try:
        for number, piece in enumerate(batches(200)):
            made.send(piece)
            if number % 10 == 9:
                before = len(changes)
                wait_until(partial(_is_longer, changes, before), "the topic changes")
        made.finish()
    finally:
        is_over.set()
        thread.join(60)
        made.close()
    rows = stored(cluster, topic)
    check_complete(rows, dict.fromkeys(KEYS, 200))
    check_key_order(rows)
    assert len({row.segment for row in rows}) > 1


def test_a_later_attempt_fences_an_earlier_one(rivers: ScalableBroker, cluster: ClusterClient) -> None:
    topic = "topic://public/default/outlet-fenced"
    rivers.create(topic, 1)
    pieces = batches(10)
    zombie, heir = outlet(cluster, topic, 1), outlet(cluster, topic, 2)
    zombie.send(pieces[0])
    for piece in batches(10):
        heir.send(piece)
    heir.finish()
    with pytest.raises(ProducerFenced):
        for piece in pieces[1:]:
            zombie.send(piece)
        zombie.finish()
    heir.close()
    zombie.close()
    check_complete(stored(cluster, topic), dict.fromkeys(KEYS, 10))


def test_other_rows_under_the_same_numbers_are_noticed(rivers: ScalableBroker, cluster: ClusterClient) -> None:
    topic = "topic://public/default/outlet-other"
    rivers.create(topic, 2)
    one = outlet(cluster, topic, 1)
    for piece in batches(5):
        one.send(piece)
    one.finish()
    one.close()
    other = Rows(FIRST, pa.array([json.dumps({"k": "key-0", "n": 1}).encode()], pa.binary()), pa.array(["key-0"]))
    two = outlet(cluster, topic, 2)
    two.send(other)
    with pytest.raises(NonDeterministicReplay, match=r"the 1 rows .* again for segment .* are not the .* stored there"):
        two.finish()
    two.close()


def rewritten(pieces: list[Rows], at: int) -> list[Rows]:
    """The same rows, but for one value."""
    made = []
    for piece in pieces:
        values = piece.values.to_pylist()
        if piece.first - FIRST <= at < piece.first - FIRST + len(piece):
            values[at - (piece.first - FIRST)] += b" "
        made.append(Rows(piece.first, pa.array(values, pa.binary()), piece.keys))
    return made


@pytest.mark.parametrize("at", [0, 7, 79])
def test_one_other_value_is_noticed_through_splits_and_merges(
    rivers: ScalableBroker, cluster: ClusterClient, at: int
) -> None:
    """Whatever became of the segments that have the rows."""
    topic = f"topic://public/default/outlet-value-{at}"
    rivers.create(topic, 2)
    one = outlet(cluster, topic, 1)
    pieces = batches(5)
    one.send(pieces[0])
    rivers.split(topic, 0, 3)
    one.send(pieces[1])
    one.finish()
    one.close()
    rivers.merge(topic, rivers.active(topic))
    again = outlet(cluster, topic, 2)
    for piece in batches(5, size=80):
        again.send(piece)
    again.finish()
    again.close()
    other = outlet(cluster, topic, 3)
    with pytest.raises(NonDeterministicReplay, match="are not the"):
        for piece in rewritten(batches(5, size=20), at):
            other.send(piece)
        other.finish()
    other.close()
    let = outlet(cluster, topic, 4, on_replay=OnReplay.WARN)
    for piece in rewritten(batches(5), at):
        let.send(piece)
    let.finish()
    let.close()
    check_complete(stored(cluster, topic), dict.fromkeys(KEYS, 5))


def test_fewer_rows_than_before_are_noticed(rivers: ScalableBroker, cluster: ClusterClient) -> None:
    topic = "topic://public/default/outlet-fewer"
    rivers.create(topic, 1)
    for attempt, rounds in ((1, 5), (2, 4)):
        made = outlet(cluster, topic, attempt)
        for piece in batches(rounds):
            made.send(piece)
        if attempt == 1:
            made.finish()
        else:
            with pytest.raises(NonDeterministicReplay, match=r"the 64 rows .* are not the 80 that were stored"):
                made.finish()
        made.close()


def test_without_a_checksum_the_rows_are_read_back(
    rivers: ScalableBroker, cluster: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that keeps none: Apache Pulsar's, or an older one of ours."""
    topic = "topic://public/default/outlet-old"
    rivers.create(topic, 2)
    monkeypatch.setattr("anabranch.spark.sink.topic_writer.read_note", lambda _: None)
    one = outlet(cluster, topic, 1)
    for piece in batches(5):
        one.send(piece)
    one.finish()
    one.close()
    other = outlet(cluster, topic, 2)
    with pytest.raises(NonDeterministicReplay, match="row 3 of the task is not the row that was stored under its"):
        for piece in rewritten(batches(5), 3):
            other.send(piece)
    other.close()
    again = outlet(cluster, topic, 3)
    for piece in batches(6):
        again.send(piece)
    again.finish()
    again.close()
    assert again.rows_known == 80
    check_complete(stored(cluster, topic), dict.fromkeys(KEYS, 6))
