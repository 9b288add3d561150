"""Compaction against a naive model: any history of keys, tombstones and batches, any memory bound, any interruption."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.topic.compaction import Compactor, KeyHashPartition, Scan, Status, Survivors, messages_of
from anabranch.broker.topic.topic import Topic
from anabranch.model.position import Position
from anabranch.protocol.entry import build_batch, build_entry, split_batch
from tests.support.in_memory.broker import BrokerWorld

Message = tuple[str | None, bytes]
MESSAGE = st.tuples(st.sampled_from(["a", "b", "c", "d", "e", None]), st.sampled_from([b"", b"1", b"2", b"3"]))
ENTRY = st.lists(MESSAGE, min_size=1, max_size=4)
HISTORY = st.lists(st.tuples(ENTRY, st.booleans()), max_size=12)  # (messages, compact afterwards?)


def payload_of(messages: list[Message]) -> bytes:
    if len(messages) == 1:
        return build_entry(messages[0][1], key=messages[0][0])
    return build_batch([data for _, data in messages], keys=[key for key, _ in messages])


def expected(history: list[Message]) -> list[Message]:
    """The last message of each key in its place, unless it is empty; all without a key."""
    last = {key: place for place, (key, _) in enumerate(history)}
    return [(key, data) for place, (key, data) in enumerate(history) if key is None or (last[key] == place and data)]


async def viewed(topic: Topic) -> list[Message]:
    """What the compacted view and then the log behind it hold."""
    found: list[Message] = []
    view, start = topic.log.compacted, topic.log.first_position
    if view is not None:
        at = Position(0, 0)
        while step := await view.read(at, 2, 1 << 20):
            for stored in step:
                parts = split_batch(stored.payload)
                found += [(_key(one.metadata), one.data) for one in parts if not one.metadata.compacted_out]
            at = Position(step[-1].position.ledger, step[-1].position.entry + 1)
        start = topic.log.after(view.horizon)
    while step := await topic.log.read(start, 10, 1 << 20, topic.log.last_position):
        found += [(_key(one.metadata), one.data) for stored in step for one in split_batch(stored.payload)]
        start = Position(step[-1].position.ledger, step[-1].position.entry + 1)
    return found


def _key(single: object) -> str | None:
    return single.partition_key if single.HasField("partition_key") else None  # type: ignore[attr-defined]  # a protobuf


async def publish(world: BrokerWorld, topic: Topic, messages: list[Message]) -> None:
    done = asyncio.Event()

    class Sink:
        def persisted(self, *_: object) -> None:
            done.set()

        def persist_failed(self, *_: object) -> None:
            raise AssertionError("memory does not fail")

    topic.log.append(payload_of(messages), len(messages), Sink(), None)
    await done.wait()


@given(HISTORY, st.integers(1, 4), st.booleans())
@settings(max_examples=60)
def test_compaction_equals_the_model(history: list[tuple[list[Message], bool]], keys_max: int, trims: bool) -> None:
    async def run() -> None:
        world = await BrokerWorld().start()
        topic = await world.topic()
        compactor = Compactor("t", topic.log, world.clock, keys_max)
        written: list[Message] = []
        compacted = 0
        for messages, compacts in history:
            await publish(world, topic, messages)
            written += messages
            if compacts:
                compactor.claim()
                await compactor.run()
                assert compactor.stats.status is Status.SUCCESS
                compacted = len(written)
                if trims:
                    await topic.log.roll()
                    await topic.log.trim()
        assert await viewed(topic) == expected(written[:compacted]) + written[compacted:]
        await world.topics.stop()

    asyncio.run(run())


@given(st.lists(ENTRY, max_size=20), st.integers(1, 3))
def test_hash_ranges_find_the_same_survivors(entries: list[list[Message]], depth: int) -> None:
    def marked(ranges: list[KeyHashPartition]) -> list[bool]:
        survivors = Survivors()
        for keys in ranges:
            scan = Scan(keys, 1_000)
            for messages in entries:
                scan.feed(7, messages_of(payload_of(messages)), survivors)
            scan.finish(survivors)
        return [survivors.has(7, ordinal) for ordinal in range(sum(map(len, entries)))]

    ranges = [KeyHashPartition()]
    for _ in range(depth):
        ranges = [half for one in ranges for half in one.halves()]
    assert len({(one.index, one.count) for one in ranges}) == 2**depth
    assert marked(ranges) == marked([KeyHashPartition()])
