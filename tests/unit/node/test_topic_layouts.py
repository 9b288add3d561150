"""Fresh reads of a topic's record: those that wait for each other are one, and none misses a write before its call."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.records.topic_record_codec import encode_record
from anabranch.metadata.interface import ANY, StoreUnavailable
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.layout import Layout
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.node.adapters.topic_layouts import StoredScalableRecords
from anabranch.runtime.clock import SystemClock

TOPIC = TopicName.parse("topic://public/default/orders")


class SlowStore(MemoryStore):
    """Its syncs end when `door` is set; then they fail if `error` is given."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.syncs = 0
        self.door = asyncio.Event()
        self.error: StoreUnavailable | None = None

    async def sync(self) -> None:
        self.syncs += 1
        await self.door.wait()
        if self.error is not None:
            raise self.error
        await super().sync()


async def write(store: MemoryStore, incarnation: int) -> None:
    record = TopicRecord(Layout.initial(1, now_ms=5), incarnation=incarnation)
    await store.put(scalable_topic_key(TOPIC), encode_record(record), expected=ANY)


async def begun(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_calls_during_a_read_share_the_next_one_and_see_what_was_written_before_them() -> None:
    store = SlowStore()
    async with store:
        await write(store, 1)
        records = StoredScalableRecords(store, RecordCache())
        first = asyncio.create_task(records.read(TOPIC, is_fresh=True))
        await begun(3)
        await write(store, 2)
        others = [asyncio.create_task(records.read(TOPIC, is_fresh=True)) for _ in range(20)]
        await begun(3)
        assert store.syncs == 1
        store.door.set()
        await first
        found = await asyncio.gather(*others)
        assert {None if one is None else one.incarnation for one in found} == {2}
        assert store.syncs == 2


async def test_record_is_read_again_for_a_later_call() -> None:
    store = SlowStore()
    store.door.set()
    async with store:
        records = StoredScalableRecords(store, RecordCache())
        assert await records.read(TOPIC, is_fresh=True) is None
        await write(store, 1)
        found = await records.read(TOPIC, is_fresh=True)
        assert found is not None and found.incarnation == 1


async def test_failure_of_a_read_is_that_of_all_calls_that_wait_for_it() -> None:
    store = SlowStore()
    async with store:
        records = StoredScalableRecords(store, RecordCache())
        reads = [asyncio.create_task(records.read(TOPIC, is_fresh=True)) for _ in range(20)]
        await begun(3)
        store.error = StoreUnavailable("away")
        store.door.set()
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(one, StoreUnavailable) for one in found)
        assert store.syncs <= 2
        store.error = None
        assert await records.read(TOPIC, is_fresh=True) is None


async def test_cancelled_read_leaves_the_others_their_answer() -> None:
    store = SlowStore()
    async with store:
        await write(store, 1)
        records = StoredScalableRecords(store, RecordCache())
        first, second = (asyncio.create_task(records.read(TOPIC, is_fresh=True)) for _ in range(2))
        await begun(3)
        first.cancel()
        store.door.set()
        found = await second
        assert found is not None
        with pytest.raises(asyncio.CancelledError):
            await first
