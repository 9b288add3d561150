"""The metadata store behind the record port of storage. Only translates; decides nothing."""

from __future__ import annotations

from anabranch.metadata.port import ABSENT, ANY, KeyMissing, MetadataStore, VersionMismatch
from anabranch.storage.records import RecordRaced, StoredRecord


class MetadataRecords:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def load(self, key: str) -> StoredRecord | None:
        found = await self._store.get(key)
        return None if found is None else StoredRecord(found.value, found.version)

    async def save(self, key: str, value: bytes, *, version: int | None) -> int:
        try:
            return await self._store.put(key, value, expected=ABSENT if version is None else version)
        except VersionMismatch as error:
            raise RecordRaced(str(error)) from error

    async def remove(self, key: str) -> None:
        try:
            await self._store.delete(key, expected=ANY)
        except KeyMissing:
            return
