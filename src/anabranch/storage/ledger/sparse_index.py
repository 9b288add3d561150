"""The sparse index of one ledger: offset of some entries, and totals of the entries before them. No I/O.

There is a point for entry 0, and then one per step of bytes or entries. On disk: a file head, then 48-byte records with
a checksum each. A damaged point is dropped with all later ones; scanning the ledger restores them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from anabranch.storage.ledger.record_format import (
    FILE_HEAD_BYTES,
    INDEX_MAGIC,
    BadFileHead,
    decode_file_head,
    encode_file_head,
)

POINT = Struct("<QQQQQI")
POINT_BYTES = 48


class IndexPoint(NamedTuple):
    entry_id: int
    offset: int
    messages: int  # in all entries before this one
    bytes: int  # payload bytes in all entries before this one
    publish_ms: int


def encode_point(point: IndexPoint) -> bytes:
    body = POINT.pack(*point, 0)
    return body + crc32c(body).to_bytes(4, "little")


def encode_index_head(ledger_id: int) -> bytes:
    return encode_file_head(INDEX_MAGIC, ledger_id)


def place_of_point(number: int) -> int:
    return FILE_HEAD_BYTES + number * POINT_BYTES


def decode_index(data: bytes, ledger_id: int, path: str) -> list[IndexPoint]:
    """The leading sound points; none if the head is damaged or names another ledger. Raises NewerFormat."""
    try:
        if decode_file_head(data, INDEX_MAGIC, path) != ledger_id:
            return []
    except BadFileHead:
        return []
    points: list[IndexPoint] = []
    for at in range(FILE_HEAD_BYTES, len(data) - POINT_BYTES + 1, POINT_BYTES):
        body = data[at : at + POINT_BYTES - 4]
        if crc32c(body) != int.from_bytes(data[at + POINT_BYTES - 4 : at + POINT_BYTES], "little"):
            break
        point = IndexPoint._make(POINT.unpack(body)[:5])
        if points and (point.entry_id <= points[-1].entry_id or point.offset <= points[-1].offset):
            break
        points.append(point)
    return points


class SparseIndex:
    """Points in memory, ascending. Times are searched by running maximum, because the clocks of producers differ."""

    __slots__ = ("points", "_entries", "_peaks", "step_bytes", "step_entries")

    def __init__(self, step_bytes: int, step_entries: int, points: list[IndexPoint] | None = None) -> None:
        self.step_bytes = step_bytes
        self.step_entries = step_entries
        self.points: list[IndexPoint] = []
        self._entries: list[int] = []
        self._peaks: list[int] = []
        for point in points or []:
            self.add(point)

    def wants(self, entry_id: int, offset: int) -> bool:
        if not self.points:
            return True
        last = self.points[-1]
        return offset - last.offset >= self.step_bytes or entry_id - last.entry_id >= self.step_entries

    def add(self, point: IndexPoint) -> None:
        self.points.append(point)
        self._entries.append(point.entry_id)
        self._peaks.append(max(point.publish_ms, self._peaks[-1]) if self._peaks else point.publish_ms)

    def cut(self, entry_id: int) -> None:
        """Remove points at or after this entry."""
        keep = bisect_left(self._entries, entry_id)
        del self.points[keep:], self._entries[keep:], self._peaks[keep:]

    def before(self, entry_id: int) -> IndexPoint | None:
        """The last point at or before the entry."""
        at = bisect_right(self._entries, entry_id)
        return self.points[at - 1] if at else None

    def before_time(self, publish_ms: int) -> IndexPoint | None:
        """The last point from which a forward search cannot miss the first entry published at or after this time."""
        at = bisect_left(self._peaks, publish_ms)
        return self.points[max(at - 1, 0)] if self.points else None
