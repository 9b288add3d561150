"""Messages as columns: plain buffers in Arrow's layout, without Arrow. Values only; both codecs make and take them.

Numbers are little-endian and packed: offsets and indexes are int32, times and sequence ids int64. A validity bitmap has
one bit per row, least significant first; None says that every row is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.protocol.entry import Bytes

NO_SEQUENCE = -1


class Body(NamedTuple):
    """The opened body of one entry: `messages` records of the batch layout."""

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
    """Messages of one or more entries, in their order. Slots that compaction has emptied are left out."""

    rows: int
    rows_per_body: Sequence[int]
    index: Bytes  # number of the message within its body
    key: Texts  # as it travels: text, or base64 of a key that is not text
    key_is_base64: Bytes | None  # bitmap; None: no key is
    value: Texts
    event_time: Bytes  # ms; 0: none
    sequence_id: Bytes  # NO_SEQUENCE: the message does not say
    properties: Properties | None  # None: no message has any
