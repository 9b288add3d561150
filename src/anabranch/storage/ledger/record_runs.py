"""Runs of sound entries at the start of a block of a ledger file: the loop that every catch-up read spends its time in.

There are two forms of it that give the same: in C, where the extension was built and the processor has the instruction
for its checksum, and in Python. `ANABRANCH_NATIVE=off` in the environment chooses the latter. Pure: a block in, entries
out. Stops at the first doubt: `scan.RecordScanner` knows what to make of damage.
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
"""`sound_run(block, offset, ledger_id, first, end, bytes_max)`: the entries first … end-1 that stand at the start of
`block`, which was read at `offset` of the ledger's file, and where the next one begins. It ends before one that is not
whole, not sound, or over `bytes_max` in sum (never the first)."""


def plain_run(
    block: memoryview, offset: int, ledger_id: int, first: int, end: int, bytes_max: int
) -> tuple[list[StoredEntry], int]:
    """`SoundRun` in Python: nothing is called here that can be spared."""
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
    except ImportError:  # no compiler when it was installed, or no such instruction: slower, and the same otherwise
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
