"""Decodes many records of the usual form at once, by whole columns, with numpy and Arrow.

    size 4 | [12 key] 18 payload size [28 event time] [40 sequence id] | payload          sizes and numbers: varints

Each record says where the next one begins, so finding them all takes a loop. But records have a pattern: three zeros
(metadata is short), a size, a tag. Offsets that match are taken as starts, and decoding verifies them: each record must
end where the next one begins. The loop runs only if that fails. Records of another form are left to `python`, which
also reports errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.protocol.codec.columns import NO_SEQUENCE, Body, Columns, Texts
from anabranch.protocol.entry import Bytes

BYTES_MAX = 1 << 30  # of bodies at once, because Arrow's offsets are 32 bits
GUESS_BYTES_MAX = 400  # of a record: for longer ones, following the sizes costs less than scanning each byte

Places: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

_WORD = 8
_KEY, _SIZE, _TIME, _SEQUENCE = 0x12, 0x18, 0x28, 0x40
_MORE = 0x8080808080808080  # continuation bit of each byte of a varint


def decode(bodies: Sequence[Body], guess_bytes_max: int = GUESS_BYTES_MAX) -> Columns | None:
    """The messages of these bodies as columns; None if not all are of the usual form."""
    if sum(len(body) for body, _ in bodies) > BYTES_MAX:
        return None
    data = b"".join([*(body for body, _ in bodies), bytes(_WORD)])  # so that a word can be read at the last byte too
    words: Words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))  # one word per byte offset
    rows = sum(max(count, 0) for _, count in bodies)
    found = None
    if len(data) <= guess_bytes_max * rows:
        found = _read(data, words, bodies, _guessed(data, words))
    return _read(data, words, bodies, _followed(data, rows)) if found is None else found


def _guessed(data: bytes, words: Words) -> Places:
    """Offsets that look like the start of a record."""
    at: Places = np.flatnonzero(np.frombuffer(data, np.uint8, len(data) - _WORD) == 0)
    heads = words[at]
    tags = _byte(heads, 4)
    found: Places = at[(heads & 0x00FFFFFF == 0) & (_byte(heads, 3) != 0) & ((tags == _KEY) | (tags == _SIZE))]
    return found


def _followed(data: bytes, rows: int) -> Places:
    """The starts of all records, if all are of the usual form."""
    found: list[int] = []
    add, start = found.append, 0
    try:
        for _ in range(rows):
            at = start + 7 + data[start + 5] if data[start + 4] == _KEY else start + 5
            size = data[at]
            if size > 127:
                size += (data[at + 1] << 7) - 128
                if size > 0x3FFF:
                    size += (data[at + 2] << 14) - 0x4000
            add(start)
            start += 4 + data[start + 3] + size
    except IndexError:
        pass  # they are not, so there are too few now
    return np.array(found, np.int64)


def _read(data: bytes, words: Words, bodies: Sequence[Body], at: Places) -> Columns | None:
    """The records that begin at these offsets; None if they are something else, or not all records."""
    counts = [max(count, 0) for _, count in bodies]
    if not len(at) == sum(counts) > 0 or at[-1] >= len(data) - _WORD:
        return None
    borders = np.append(at, len(data) - _WORD)
    if not np.array_equal(borders[np.cumsum([0, *counts])], np.cumsum([0, *(len(body) for body, _ in bodies)])):
        return None
    ends, heads = borders[1:], words[at]
    payloads = at + 4 + _byte(heads, 3)
    is_keyed = _byte(heads, 4) == _KEY
    key_sizes = _byte(heads, 5)
    keys = at + 4 + 2 * is_keyed
    fields_at = keys + is_keyed * key_sizes
    if np.any(heads & 0x00FFFFFF) or np.any(is_keyed & (key_sizes > 127)):
        return None
    if np.any(fields_at >= payloads) or np.any(payloads > ends):
        return None
    fields = _Fields(words, fields_at, payloads)
    sizes, times = fields.numbers(_SIZE, -1), fields.numbers(_TIME, 0)
    sequences = fields.numbers(_SEQUENCE, NO_SEQUENCE)
    if not fields.are_read or not np.array_equal(payloads + sizes, ends):
        return None
    key, value = _cut(data, keys, fields_at, payloads, ends)
    if not _is_text(key):
        return None
    if not is_keyed.all():
        key = Texts(key.offsets, key.data, np.packbits(is_keyed, bitorder="little").tobytes())
    indexes = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    return Columns(len(at), counts, _plain(indexes), key, None, value, _plain(times), _plain(sequences), None)


class _Fields:
    """The fields after the key: tagged numbers, decoded from left to right in all records at once."""

    def __init__(self, words: Words, at: Places, ends: Places) -> None:
        self._words, self._at, self._ends = words, at, ends
        self._is_whole = True

    @property
    def are_read(self) -> bool:
        """Whether every record was read exactly to its end."""
        return self._is_whole and np.array_equal(self._at, self._ends)

    def numbers(self, tag: int, missing: int) -> Places:
        """The records whose next field has this tag."""
        words = self._words[self._at]
        has = (_byte(words, 0) == tag) & (self._at < self._ends)
        if not has.any():
            return np.full(len(has), missing, np.int64)
        digits = self._words[self._at + has]
        stops = ~digits & _MORE
        own = stops ^ (stops - 1)  # the bits up to the end of the last digit
        sizes = ((own & 0x0101010101010101) * 0x0101010101010101 >> 56).astype(np.int64)
        after = self._at + has * (1 + sizes)
        self._is_whole = self._is_whole and bool(np.all(stops[has]) and np.all(after <= self._ends))
        self._at = np.minimum(after, self._ends)  # so that nothing is read beyond the data
        return np.where(has, _joined(digits & own), missing)


def _joined(digits: Words) -> Places:
    """Eight digits of seven bits, joined without gaps."""
    found = digits & 0x007F007F007F007F | digits >> 1 & 0x3F803F803F803F80
    found = found & 0x00003FFF00003FFF | found >> 2 & 0x0FFFC0000FFFC000
    return (found & 0x000000000FFFFFFF | found >> 4 & 0x00FFFFFFF0000000).astype(np.int64)


def _byte(words: Words, place: int) -> Places:
    return (words >> (8 * place) & 0xFF).astype(np.int64)


def _cut(data: bytes, *borders: Places) -> tuple[Texts, Texts]:
    """The bytes between the first and second, and between the third and fourth border of every record.

    Arrow does it: the unchanged bytes become one column of four pieces per record, of which it takes one.
    """
    rows = len(borders[0])
    edges = np.empty(4 * rows + 1, np.int32)
    for column, border in enumerate(borders):
        edges[column : 4 * rows : 4] = border
    edges[-1] = borders[-1][-1]
    whole = pa.Array.from_buffers(pa.binary(), 4 * rows, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    return _taken(whole, 0), _taken(whole, 2)


def _taken(whole: Any, first: int) -> Texts:
    rows = len(whole) // 4
    wanted = pa.py_buffer(np.arange(first, len(whole), 4, dtype=np.int32))  # pa.array would load pandas
    _, offsets, data = whole.take(pa.Array.from_buffers(pa.int32(), rows, [None, wanted])).buffers()
    starts = memoryview(offsets)[: 4 * (rows + 1)]
    return Texts(starts, memoryview(b"" if data is None else data)[: starts.cast("i")[rows]])


def _is_text(texts: Texts) -> bool:
    """Whether each value is UTF-8: all bytes together are, and no value begins inside a character."""
    try:
        if str(texts.data, "utf-8").isascii():
            return True
    except UnicodeDecodeError:
        return False
    data, starts = np.frombuffer(texts.data, np.uint8), np.frombuffer(texts.offsets, np.int32)
    return not np.any(data[starts[starts < len(data)]] & 0xC0 == 0x80)


def _plain(numbers: NDArray[Any]) -> Bytes:
    return numbers.data.cast("B")
