"""Logs of segments on this node's storage and metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.catalog.policies import Retention
from anabranch.model.errors import NotFound
from anabranch.model.names import TopicName, parse_namespace
from anabranch.runtime.clock import Clock
from anabranch.storage.interface import LedgerAllocator, LedgerStore
from anabranch.storage.record_store import RecordStore
from anabranch.storage.topic.tombstone import TopicPresence, clear_tombstone, peek_topic, write_tombstone
from anabranch.storage.topic.topic_log import TopicLog, TopicLogSettings


class NodeSegmentLogs:
    """Implements `broker.segment.segment_logs.SegmentLogs`."""

    def __init__(
        self,
        *,
        ledgers: LedgerStore,
        records: RecordStore,
        ids: LedgerAllocator,
        clock: Clock,
        settings: TopicLogSettings,
        retention: Retention,
        ownership_epoch_of: Callable[[TopicName], int | None],
        children: Callable[[str], Awaitable[Iterable[str]]],
    ) -> None:
        """`children`: names of the direct children of a metadata key."""
        self._children = children
        self._ledgers, self._records, self._ids, self._clock = ledgers, records, ids, clock
        self._settings = settings
        self._retention = retention
        self._ownership_epoch_of = ownership_epoch_of

    @property
    def retention(self) -> Retention:
        return self._retention

    async def open(self, name: TopicName, create_with: Mapping[str, str] | None, *, is_first: bool = False) -> TopicLog:
        return await TopicLog.open(
            Catalog.topic_key(name),
            ledgers=self._ledgers,
            metadata=self._records,
            ids=self._ids,
            clock=self._clock,
            settings=self._settings,
            create=create_with is not None,
            ownership_epoch=self._ownership_epoch_of(name),
            create_with=create_with,
            is_first=is_first,
        )

    async def peek(self, name: TopicName) -> TopicPresence:
        found = await peek_topic(Catalog.topic_key(name), self._records)
        if not found.is_half_deleted:
            return found
        try:
            await (await self.open(name, None)).close()  # finishes the deletion
        except NotFound:
            pass
        return await peek_topic(Catalog.topic_key(name), self._records)

    async def names(self, namespace: str) -> list[TopicName]:
        tenant, name = parse_namespace(namespace)
        found: list[TopicName] = []
        for topic in sorted(await self._children(f"/managed/{namespace}/segment")):
            below = await self._children(f"/managed/{namespace}/segment/{topic}")
            found += [TopicName.from_rest("segment", tenant, name, f"{topic}/{one}") for one in sorted(below)]
        return found

    async def clear(self, name: TopicName, is_old: Callable[[Mapping[str, str]], bool]) -> bool:
        return await clear_tombstone(Catalog.topic_key(name), self._records, is_old)

    async def write_tombstone(self, name: TopicName, properties: Mapping[str, str]) -> None:
        await write_tombstone(
            Catalog.topic_key(name), self._records, properties, ownership_epoch=self._ownership_epoch_of(name)
        )
