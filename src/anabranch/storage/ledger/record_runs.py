"""Decodes a run of sound entries at the start of a block of a ledger file. Catch-up reads spend their time here.

There are two implementations with equal results: C, if the extension was built and the processor has the CRC
instruction, and Python. `ANABRANCH_NATIVE=off` in the environment selects Python. The run ends at the first suspicious
record; `RecordScanner` handles damage.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from anabranch.model.position import Position
from anabranch.storage.interface import StoredEntry
from anabranch.storage.ledger.record_format import HEADER, HEADER_BYTES

SoundRun = Callable[[memoryview, int, int, int, int, int], tuple[list[StoredEntry], int]]
"""`sound_run(block, offset, ledger_id, first, end, bytes_max)` decodes entries first … end-1 from the start of `block`,
which was read at `offset` of the ledger's file. Returns them and the offset of the next record. The run ends before a
record that is incomplete or unsound, or that exceeds `bytes_max` in sum; the first entry may exceed it.
"""


def plain_run(
    block: memoryview, offset: int, ledger_id: int, first: int, end: int, bytes_max: int
) -> tuple[list[StoredEntry], int]:
    """`SoundRun` in Python. Written for speed: as few calls per entry as possible."""
    found: list[StoredEntry] = []
    unpack, new, add, room = HEADER.unpack_from, tuple.__new__, found.append, bytes_max
    at, whole = 0, len(block)
    for entry_id in range(first, end):
        body = at + HEADER_BYTES
        if body > whole:
            break
        crc, length, ledger, entry, place, messages, _ = unpack(block, at)
        stop = body + length
        if ledger != ledger_id or entry != entry_id or place != offset + at or stop > whole:
            break
        room -= length
        if (room < 0 and found) or crc32c(block[at + 4 : stop]) != crc:
            break
        add(new(StoredEntry, (new(Position, (ledger_id, entry_id)), messages, block[body:stop], None)))
        at = stop
    return found, offset + at


def _load() -> SoundRun | None:
    if os.environ.get("ANABRANCH_NATIVE") == "off":
        return None
    try:
        found: Any = importlib.import_module("anabranch.storage._native")
    except ImportError:  # built without a compiler, or the processor lacks the instruction
        return None
    run = found.sound_run

    def native_run(
        block: memoryview, offset: int, ledger_id: int, first: int, end: int, bytes_max: int
    ) -> tuple[list[StoredEntry], int]:
        made: tuple[list[StoredEntry], int] = run(
            block, offset, ledger_id, first, end, bytes_max, StoredEntry, Position
        )
        return made

    return native_run


NATIVE = _load()
sound_run: SoundRun = NATIVE or plain_run
