"""Reads the records of one ledger file one by one, and steps over damage so that only the damaged entries are lost.

- The header is plausible, its checksum fails, and the next header of this ledger is where it should be: one bad entry.
- Otherwise the scanner searches for the next sound record of this ledger that is at the offset it names.
- Nothing sound follows: the scan ends (torn tail). With `count_tail`, bytes that look written count as one bad entry,
  because an acknowledged last entry must not vanish silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from anabranch.runtime.disk import File
from anabranch.storage.ledger.record_format import (
    HEADER,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    Header,
    decode_header,
    is_sound,
)

BLOCK_BYTES = 1 << 20


class Slot(NamedTuple):
    """One entry in the file. `payload` is None if it is damaged; then `messages` may be a guess."""

    entry_id: int
    offset: int
    messages: int
    payload: memoryview | None
    end: int  # where the next record starts


class RecordScanner:
    """Scans forward from a known offset. Between slots, `offset` and `entry_id` are those of the next record."""

    def __init__(
        self,
        file: File,
        ledger_id: int,
        entry_id: int,
        offset: int,
        *,
        block_bytes: int = BLOCK_BYTES,
        count_tail: bool = False,
        stop_after: int | None = None,
    ) -> None:
        self._file = file
        self._ledger = ledger_id
        self.entry_id = entry_id
        self.offset = offset
        self._block_bytes = max(block_bytes, HEADER_BYTES)
        self._count_tail = count_tail
        self._stop_after = stop_after  # do not read another block once past this entry
        self._view = memoryview(b"")
        self._base = offset  # file offset of _view[0]

    def _load(self, offset: int, size: int) -> int:
        """Load `size` bytes from `offset`, as far as the file has them; returns their index in the view."""
        at = offset - self._base
        if at < 0 or at + size > len(self._view):
            self._view = memoryview(self._file.pread(max(size, self._block_bytes), offset))
            self._base, at = offset, 0
        return at

    def __iter__(self) -> Iterator[Slot]:
        unpack, ledger = HEADER.unpack_from, self._ledger
        while True:
            offset, entry_id = self.offset, self.entry_id
            if self._is_enough(offset, HEADER_BYTES):
                return
            at = self._load(offset, HEADER_BYTES)
            if len(self._view) - at < HEADER_BYTES:
                return
            _, length, found, entry, place, messages, _ = unpack(self._view, at)
            if found == ledger and entry == entry_id and place == offset and length <= PAYLOAD_BYTES_MAX:
                if self._is_enough(offset, HEADER_BYTES + length):
                    return
                at = self._load(offset, HEADER_BYTES + length)
                view = self._view
                end = at + HEADER_BYTES + length
                if end <= len(view) and is_sound(view, at, length):
                    self.offset, self.entry_id = offset + HEADER_BYTES + length, entry_id + 1
                    yield Slot(entry_id, offset, messages, view[at + HEADER_BYTES : end], self.offset)
                    continue
            bad = self._step_over(offset, entry_id)
            if not bad:
                return
            yield from bad

    def _is_enough(self, offset: int, size: int) -> bool:
        """Whether this needs another block although the requested entry has been passed."""
        if self._stop_after is None or self.entry_id <= self._stop_after:
            return False
        return offset + size > self._base + len(self._view)

    def _step_over(self, offset: int, entry_id: int) -> list[Slot]:
        """The damaged slots before the next sound record; empty at a torn end."""
        header = self._header_at(offset)
        guess = header if header is not None and header.entry == entry_id else None
        if guess is not None:
            end = offset + HEADER_BYTES + guess.length
            follower = self._header_at(end)
            if follower is not None and follower.entry == entry_id + 1:
                self.offset, self.entry_id = end, entry_id + 1
                return [Slot(entry_id, offset, guess.messages, None, end)]
        found = self._search(offset + 1, entry_id)
        if found is not None:
            self.offset, self.entry_id = found.offset, found.entry
            return [Slot(number, offset, 1, None, found.offset) for number in range(entry_id, found.entry)]
        if not self._count_tail:
            return []
        size = self._file.size()
        end = size if guess is None else offset + HEADER_BYTES + guess.length
        if guess is not None and end != size and self._is_whole(offset, size):
            end = size  # only its length is damaged
        head = self._file.pread(HEADER_BYTES, offset)
        if end > size or len(head) < HEADER_BYTES or not any(head):
            return []
        self.offset, self.entry_id = end, entry_id + 1
        return [Slot(entry_id, offset, guess.messages if guess else 1, None, end)]

    def _is_whole(self, offset: int, end: int) -> bool:
        """Whether the checksum holds if the record at `offset` ends at `end`; then it is not a torn tail."""
        length = end - offset - HEADER_BYTES
        if not 0 <= length <= PAYLOAD_BYTES_MAX:
            return False
        record = bytearray(self._file.pread(end - offset, offset))
        record[4:8] = length.to_bytes(4, "little")
        return len(record) == end - offset and is_sound(memoryview(record), 0, length)

    def _header_at(self, offset: int) -> Header | None:
        """A header of this ledger at the offset it names; its checksum is not checked."""
        at = self._load(offset, HEADER_BYTES)
        if len(self._view) - at < HEADER_BYTES:
            return None
        header = decode_header(self._view, at)
        is_ours = header.ledger == self._ledger and header.offset == offset and header.length <= PAYLOAD_BYTES_MAX
        return header if is_ours else None

    def _search(self, start: int, entry_id: int) -> Header | None:
        """The next sound record of this ledger after `start` with a later entry id."""
        pattern = self._ledger.to_bytes(8, "little")
        base = start
        while data := self._file.pread(self._block_bytes + HEADER_BYTES, base):
            at = data.find(pattern, 8)
            while at >= 0:
                place = base + at - 8
                header = self._header_at(place) if at - 8 <= self._block_bytes else None
                if header is not None and header.entry > entry_id and self._is_sound_at(place, header):
                    return header
                at = data.find(pattern, at + 1)
            if len(data) <= HEADER_BYTES:
                return None
            base += len(data) - HEADER_BYTES
        return None

    def _is_sound_at(self, offset: int, header: Header) -> bool:
        at = self._load(offset, HEADER_BYTES + header.length)
        if len(self._view) - at < HEADER_BYTES + header.length:
            return False
        return is_sound(self._view, at, header.length)
