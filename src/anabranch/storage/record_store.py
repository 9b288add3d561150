"""What topic logs need of a metadata store: whole records, replaced only by who saw the last version.

Storage declares this port and knows no metadata store; the wiring puts one behind it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from anabranch.model.errors import Error


class RecordRaced(Error):
    """Somebody else wrote the record first; read it again."""

    code = "record-raced"


class StoredRecord(NamedTuple):
    value: bytes
    version: int


class RecordStore(Protocol):
    async def load(self, key: str) -> StoredRecord | None: ...

    async def save(self, key: str, value: bytes, *, version: int | None) -> int:
        """Write durably; `version` is the one last seen, None when there must be none. Raises RecordRaced."""

    async def remove(self, key: str, *, version: int | None = None) -> None:
        """Absent is fine. With `version` only if it is still that one; RecordRaced otherwise."""
