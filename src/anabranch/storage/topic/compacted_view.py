"""The compacted view of a topic: one sealed ledger with the remaining entries, each with its original position.

    entry = ledger 8 | position's entry 8 | words 2 | words × 8 | payload

The words are a bit set, as on the wire, of the messages of a batch that remain; no words: all of them. A view never
changes. A later compaction creates another one, and the ledger of this one is deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from anabranch.model.position import EARLIEST, Position
from anabranch.storage.interface import LedgerStore, Payload, StorageError, StoredEntry

_HEAD = Struct(">qqH")
_PLACES_MAX = 256  # remembered read positions of sequential readers


class BadCompactedEntry(StorageError):
    code = "bad-compacted-entry"


@dataclass(frozen=True, slots=True)
class CompactedRow:
    """The compacted view in the topic record."""

    ledger: int
    entries: int
    messages: int
    bytes: int
    horizon: Position  # compaction covered everything up to here
    last: Position = EARLIEST  # last entry of the view
    last_index: int = -1  # last message that remains in its batch; -1: no batch
    at_ms: int = 0

    def dump(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger,
            "entries": self.entries,
            "messages": self.messages,
            "bytes": self.bytes,
            "horizon": list(self.horizon),
            "last": list(self.last),
            "lastIndex": self.last_index,
            "atMs": self.at_ms,
        }

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> CompactedRow:
        return cls(
            ledger=int(value["ledger"]),
            entries=int(value["entries"]),
            messages=int(value["messages"]),
            bytes=int(value["bytes"]),
            horizon=Position(*value["horizon"]),
            last=Position(*value["last"]),
            last_index=int(value["lastIndex"]),
            at_ms=int(value["atMs"]),
        )


def encode_entry(position: Position, left: Sequence[int] | None, payload: Payload) -> bytes:
    words = left or ()
    head = _HEAD.pack(position.ledger, position.entry, len(words))
    return b"".join((head, struct.pack(f">{len(words)}q", *words), payload))


def decode_entry(data: Payload, messages: int) -> StoredEntry:
    try:
        ledger, entry, count = _HEAD.unpack_from(data)
        words = struct.unpack_from(f">{count}q", data, _HEAD.size)
    except struct.error as cause:
        raise BadCompactedEntry(f"compacted entry of {len(data)} bytes is truncated") from cause
    payload = memoryview(data)[_HEAD.size + 8 * count :]
    return StoredEntry(Position(ledger, entry), messages, payload, words or None)


class CompactedView:
    def __init__(self, row: CompactedRow, ledgers: LedgerStore) -> None:
        self.row = row
        self._ledgers = ledgers
        self._places: dict[Position, int] = {}  # position to continue at -> index in the view

    @property
    def horizon(self) -> Position:
        return self.row.horizon

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Entries with position >= start; [] if the view has none. LedgerNotFound if the view has been replaced."""
        index = self._places.pop(start, -1)
        if index < 0:
            index = await self._find(start)
        found: list[StoredEntry] = []
        if index < self.row.entries:
            raw = await self._ledgers.read(self.row.ledger, index, self.row.entries, entries_max, bytes_max)
            found = [decode_entry(one.payload, one.messages) for one in raw]
        if found:
            last = found[-1].position
            while len(self._places) >= _PLACES_MAX:
                del self._places[next(iter(self._places))]
            self._places[Position(last.ledger, last.entry + 1)] = index + len(found)
        return found

    async def _find(self, start: Position) -> int:
        """First index whose entry is at or after `start`."""
        low, high = 0, self.row.entries
        while low < high:
            middle = (low + high) // 2
            one = (await self._ledgers.read(self.row.ledger, middle, middle + 1, 1, 1))[0]
            if decode_entry(one.payload, one.messages).position < start:
                low = middle + 1
            else:
                high = middle
        return low
