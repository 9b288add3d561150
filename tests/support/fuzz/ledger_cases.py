"""Blocks of ledger files, valid, truncated and damaged.

Used by the property test of the two implementations that find entries in them, and by the fuzz under AddressSanitizer.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from anabranch.storage.ledger.record_format import HEADER_BYTES, encode_header

U64_MAX = (1 << 64) - 1
SIZES = (0, 1, 7, 100, 127, 128, 400, 3_000, 3_100, 4_000)


class Asked(NamedTuple):
    """The arguments of a `SoundRun`."""

    block: memoryview
    offset: int
    ledger_id: int
    first: int
    end: int
    bytes_max: int


def block_case(seed: int) -> Asked:
    """Mostly some sound entries, then something that is not an entry."""
    chance = random.Random(seed)
    ledger, first = chance.choice((1, 9, 1 << 40, U64_MAX - 2)), chance.choice((0, 5, 300, 1 << 40))
    offset = chance.choice((32, 4_096, 1 << 33))
    data, starts = bytearray(), list[int]()
    for entry in range(first, first + chance.randrange(12)):
        payload = chance.randbytes(chance.choice(SIZES))
        starts.append(len(data))
        data += encode_header(ledger, entry, offset + len(data), chance.choice((0, 1, 100, 1 << 31)), 3, payload)
        data += payload
    kind = chance.randrange(6)
    if kind == 0 and data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del data[chance.randrange(len(data) + 1) :]
    elif kind == 2 and starts:
        at = chance.choice(starts)  # a header, with lengths and numbers that were never written
        data[at + chance.randrange(HEADER_BYTES)] = chance.choice((0, 1, 127, 128, 255))
    elif kind == 3:
        data += chance.randbytes(chance.randrange(200))
    elif kind == 4:
        data += bytes(chance.randrange(200))
    bytes_max = chance.choice((0, 1, 500, 5_000, 1 << 20, 1 << 62))
    return Asked(memoryview(data), offset, ledger, first, first + chance.choice((0, 1, 4, 1_000)), bytes_max)
