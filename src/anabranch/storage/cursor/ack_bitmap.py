"""The acknowledged entries of one ledger as bits, and its partly acknowledged batches. No I/O.

One bit per entry, in chunks of 4096. A full chunk is replaced by the number of the next chunk to look at, with path
compression. So an acknowledgement costs the same with a million holes as with none.
"""

from __future__ import annotations

from collections.abc import Sequence

CHUNK = 4096
CHUNK_BYTES = CHUNK // 8
SHIFT = 12
_LOW = CHUNK - 1


class AckBits:
    """The holes and partial batches of one ledger."""

    __slots__ = ("chunks", "counts", "partial")

    def __init__(self) -> None:
        self.chunks: dict[int, bytearray | int] = {}  # an int: the chunk is full, continue at that one
        self.counts: dict[int, int] = {}
        self.partial: dict[int, dict[int, int]] = {}  # chunk -> entry -> mask

    def has(self, entry: int) -> bool:
        chunk = self.chunks.get(entry >> SHIFT)
        if chunk is None:
            return False
        if isinstance(chunk, int):
            return True
        return bool(chunk[(entry & _LOW) >> 3] & (1 << (entry & 7)))

    def add(self, entry: int) -> bool:
        """Set one bit; False if it was set already."""
        index = entry >> SHIFT
        chunk = self.chunks.get(index)
        if chunk is None:
            chunk = self.chunks[index] = bytearray(CHUNK_BYTES)
            self.counts[index] = 0
        elif isinstance(chunk, int):
            return False
        byte, bit = (entry & _LOW) >> 3, 1 << (entry & 7)
        if chunk[byte] & bit:
            return False
        chunk[byte] |= bit
        count = self.counts[index] + 1
        if count == CHUNK:
            self.chunks[index] = index + 1
            del self.counts[index]
        else:
            self.counts[index] = count
        return True

    def add_chunk(self, index: int, bits: int) -> int:
        """Set many bits of one chunk; returns how many were new."""
        chunk = self.chunks.get(index)
        if isinstance(chunk, int) or not bits:
            return 0
        before = 0 if chunk is None else int.from_bytes(chunk, "little")
        after = before | bits
        count = after.bit_count()
        if count == CHUNK:
            self.chunks[index] = index + 1
            self.counts.pop(index, None)
        else:
            self.chunks[index] = bytearray(after.to_bytes(CHUNK_BYTES, "little"))
            self.counts[index] = count
        return count - before.bit_count()

    def first_clear(self, entry: int) -> int:
        index, offset = entry >> SHIFT, entry & _LOW
        while True:
            chunk = self.chunks.get(index)
            if chunk is None:
                return (index << SHIFT) + offset
            if isinstance(chunk, int):
                index, offset = self._past_full(index), 0
                continue
            if not chunk[offset >> 3] & (1 << (offset & 7)):
                return (index << SHIFT) + offset
            bits = int.from_bytes(chunk, "little") >> offset
            offset += (~bits & (bits + 1)).bit_length() - 1
            if offset < CHUNK:
                return (index << SHIFT) + offset
            index, offset = index + 1, 0

    def _past_full(self, index: int) -> int:
        end = index
        while isinstance(target := self.chunks.get(end), int):
            end = target
        while index != end:
            target = self.chunks[index]
            assert isinstance(target, int)
            self.chunks[index] = end
            index = target
        return end

    def forget(self, start: int, stop: int) -> None:
        """Drop everything below `stop`; there is nothing in chunks below that of `start`."""
        last = stop >> SHIFT
        for index in _between(start >> SHIFT, last, self.chunks):
            self.chunks.pop(index, None)
            self.counts.pop(index, None)
        if self.partial:
            for index in _between(start >> SHIFT, last, self.partial):
                self.partial.pop(index, None)
            border = self.partial.get(last)
            if border is not None:
                for entry in [entry for entry in border if entry < stop]:
                    del border[entry]
                if not border:
                    del self.partial[last]

    def count(self, start: int, stop: int) -> int:
        """How many of start … stop-1 are set."""
        if stop <= start:
            return 0
        first, last, total = start >> SHIFT, stop >> SHIFT, 0
        for index in (*_between(first, last, self.chunks), last):
            chunk = self.chunks.get(index)
            if chunk is None:
                continue
            low = start & _LOW if index == first else 0
            high = stop & _LOW if index == last else CHUNK
            if isinstance(chunk, int):
                total += high - low
            else:
                total += ((int.from_bytes(chunk, "little") & ((1 << high) - 1)) >> low).bit_count()
        return total

    def mask(self, entry: int) -> int | None:
        border = self.partial.get(entry >> SHIFT)
        return None if border is None else border.get(entry)

    def set_mask(self, entry: int, mask: int) -> None:
        self.partial.setdefault(entry >> SHIFT, {})[entry] = mask

    def drop_mask(self, entry: int) -> None:
        border = self.partial.get(entry >> SHIFT)
        if border is not None and border.pop(entry, None) is not None and not border:
            del self.partial[entry >> SHIFT]


def _between(first: int, last: int, keys: dict[int, bytearray | int] | dict[int, dict[int, int]]) -> Sequence[int]:
    """The keys in first … last-1, found by iterating over the shorter of the two."""
    if last - first <= len(keys):
        return range(first, last)
    return sorted(key for key in keys if first <= key < last)
