"""Records of scalable topics in the metadata store, for the owners of their segments. Reads only."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from anabranch.broker.segment_host.topic_layouts import ScalableTopic
from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.metadata.interface import MetadataStore
from anabranch.model.errors import Error
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName


class _FreshReads:
    """Fresh reads of one record. A read answers all calls that were made before it began."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.calls = 0
        self.answered = 0  # calls up to this one are answered by `found`
        self.found: ScalableTopic | Error | None = None


class StoredScalableRecords:
    """Implements `broker.segment_host.topic_layouts.TopicLayouts`.

    A record is read each time and decoded only when it has changed: a producer opens every segment, and decoding the
    record of a thousand segments takes milliseconds. Fresh reads of one record that wait for each other are one read: a
    migration asks for the record once for every partition.
    """

    def __init__(self, store: MetadataStore, memo: RecordCache) -> None:
        self._store, self._memo = store, memo
        self._fresh: WeakValueDictionary[TopicName, _FreshReads] = WeakValueDictionary()

    async def read(self, topic: TopicName, *, is_fresh: bool = False) -> ScalableTopic | None:
        if not is_fresh:
            return await self._read(topic)
        fresh = self._fresh.setdefault(topic.scalable, _FreshReads())
        fresh.calls += 1
        call = fresh.calls
        async with fresh.lock:
            if fresh.answered < call:
                calls = fresh.calls
                fresh.found = await self._read_synced(topic)
                fresh.answered = calls
        if isinstance(fresh.found, Error):
            raise fresh.found
        return fresh.found

    async def _read_synced(self, topic: TopicName) -> ScalableTopic | Error | None:
        try:
            await self._store.sync()
            return await self._read(topic)
        except Error as error:  # of all who wait: they do not wait for the store one after another
            return error

    async def _read(self, topic: TopicName) -> ScalableTopic | None:
        key = scalable_topic_key(topic)
        found = await self._store.get(key)
        return None if found is None else _seen(topic, self._memo.decode(key, found.value))

    def remembered(self, topic: TopicName) -> ScalableTopic | None:
        record = self._memo.last(scalable_topic_key(topic))
        return None if record is None else _seen(topic, record)

    async def exists(self, topic: TopicName) -> bool:
        return await self._store.get(scalable_topic_key(topic)) is not None


def _seen(topic: TopicName, record: TopicRecord) -> ScalableTopic | None:
    """None for a topic that is being deleted: clients cannot attach to it any more."""
    if record.is_deleting:
        return None
    running = record.operation.operation_id if record.is_migrating and record.operation is not None else ""
    return ScalableTopic(topic.scalable, record.incarnation, record.layout, record.planned_children, running)
