"""Topic records of storage in the metadata store."""

from __future__ import annotations

from anabranch.metadata.interface import ABSENT, ANY, KeyMissing, MetadataStore, VersionMismatch
from anabranch.storage.record_store import RecordRaced, StoredRecord


class MetadataRecords:
    """Implements `storage.record_store.RecordStore`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def load(self, key: str) -> StoredRecord | None:
        found = await self._store.get(key)
        return None if found is None else StoredRecord(found.value, found.version)

    async def save(self, key: str, value: bytes, *, version: int | None) -> int:
        try:
            return await self._store.put(key, value, expected=ABSENT if version is None else version)
        except VersionMismatch as raced:
            raise RecordRaced(raced.reason) from raced

    async def remove(self, key: str, *, version: int | None = None) -> None:
        try:
            await self._store.delete(key, expected=ANY if version is None else version)
        except KeyMissing:
            return  # the port allows a missing record
        except VersionMismatch as raced:
            raise RecordRaced(raced.reason) from raced
