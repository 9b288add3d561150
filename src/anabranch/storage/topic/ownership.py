"""Ownership of a topic: its record is written by compare-and-set, and only in the owner's epoch.

The owner raised the epoch when it opened the topic. A write that finds another epoch means that another broker has
opened the topic since. From then on every write raises `Fenced`, and `on_lost` is called once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.storage.interface import Fenced
from anabranch.storage.record_store import RecordRaced, RecordStore
from anabranch.storage.topic.topic_record import TopicRecord, decode_record, encode_record


class TopicOwnership:
    def __init__(
        self, key: str, record: TopicRecord, version: int, records: RecordStore, on_lost: Callable[[Fenced], None]
    ) -> None:
        self._key, self._records, self._on_lost = key, records, on_lost
        self.record = record  # as last written
        self._version = version
        self._lock = asyncio.Lock()
        self.fenced: Fenced | None = None

    @property
    def version(self) -> int:
        """Version of the record as last written."""
        return self._version

    def check(self) -> None:
        if self.fenced is not None:
            raise self.fenced

    async def save(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Write the changed record, one writer at a time; an unchanged record is not written."""
        async with self._lock:
            self.check()
            record = change(self.record)
            if record != self.record:
                self._version = await self._put(record)
                self.record = record

    async def _put(self, record: TopicRecord) -> int:
        value, version = encode_record(record), self._version
        while True:
            try:
                return await self._records.save(self._key, value, version=version)
            except RecordRaced:
                found = await self._records.load(self._key)
                epoch = None if found is None else decode_record(found.value).epoch
                if found is None or epoch != record.epoch:
                    self.fenced = Fenced(f"{self._key} was taken over (epoch {record.epoch}, now {epoch})")
                    self._on_lost(self.fenced)
                    raise self.fenced from None
                version = found.version  # our own write whose response was lost
