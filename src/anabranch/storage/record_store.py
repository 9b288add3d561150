"""Port to a metadata store: whole records, replaced by compare-and-set.

Storage declares this port and imports no metadata store; `node` provides the implementation.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from anabranch.model.errors import Error


class RecordRaced(Error):
    """Another writer changed the record first; read it again."""

    code = "record-raced"


class StoredRecord(NamedTuple):
    value: bytes
    version: int


class RecordStore(Protocol):
    async def load(self, key: str) -> StoredRecord | None: ...

    async def save(self, key: str, value: bytes, *, version: int | None) -> int:
        """Write durably. `version` is the one last read; None if there must be no record. Raises RecordRaced."""

    async def remove(self, key: str, *, version: int | None = None) -> None:
        """Remove the record; with `version` only if unchanged, else RecordRaced. A missing one is no error."""
