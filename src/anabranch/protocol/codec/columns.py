"""Messages as columns: plain buffers in Arrow's layout, without Arrow. Both codecs read and write them.

Numbers are little-endian and packed: offsets and indexes are int32, times and sequence ids int64. A validity bitmap has
one bit per row, least significant first; None means that every row is present.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.protocol.entry import Bytes

NO_SEQUENCE = -1


class Body(NamedTuple):
    """The decompressed body of one entry: `messages` records of the batch layout."""

    data: Bytes
    messages: int


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of byte strings: row i is `data[offsets[i]:offsets[i+1]]`."""

    offsets: Bytes  # rows + 1
    data: Bytes
    validity: Bytes | None = None


@dataclass(frozen=True, slots=True)
class Properties:
    """Per row a list of name and value: row i has the pairs `offsets[i] … offsets[i+1]-1`."""

    offsets: Bytes  # rows + 1
    names: Texts
    values: Texts


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages of one or more entries, in their order. Slots emptied by compaction are omitted."""

    rows: int
    rows_per_body: Sequence[int]
    index: Bytes  # number of the message within its body
    key: Texts  # as on the wire: text, or base64 of a key that is not text
    key_is_base64: Bytes | None  # bitmap; None: no key is base64
    value: Texts
    event_time: Bytes  # ms; 0: none
    sequence_id: Bytes  # NO_SEQUENCE: the message has none
    properties: Properties | None  # None: no message has any
