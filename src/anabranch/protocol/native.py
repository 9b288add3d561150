"""The protocol's inner loops in C, where the extension was built: a whole read of the socket, a whole read of the disk.

Without it there is nothing here (`NATIVE` is None): the plain way, frame by frame, does the same. Knows bytes and
numbers; nothing of producers and consumers. `ANABRANCH_NATIVE=off` in the environment chooses the plain way where both
are there.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

FoundSend = tuple[int, int, int, int, int, int]
"""Producer id, sequence id, highest sequence id, number of messages; where the entry begins; where the frame ends."""

MessageRun = tuple[list[bytes | bytearray | memoryview], list[Any], int, int, int, int]
"""Heads and payloads in turn; the positions of these entries; bytes of all of it, and of the payloads alone; how many
messages in all, and in each entry (-1: they differ)."""


@dataclass(frozen=True, slots=True)
class NativeLoops:
    """`sends(data, start, end, frame_bytes_max)`: the plain SENDs that stand whole at `start`, up to the first frame
    that is anything else. `receipts(producer_id, ledger, first_entry, partition, publishes)`: frames for tuples that
    have sequence and highest sequence id in places 1 and 2. `message_run(consumer_id, partition, entries, start,
    bytes_max, messages_max)`: MESSAGE frames for the list's ((ledger, entry), messages, payload, …) from `start` on."""

    sends: Callable[[memoryview, int, int, int], list[FoundSend]]
    receipts: Callable[[int, int, int, int, Sequence[tuple[Any, ...]]], bytes]
    message_run: Callable[[int, int, list[Any], int, int, int], MessageRun] | None  # None: an older build


def _load() -> NativeLoops | None:
    if os.environ.get("ANABRANCH_NATIVE") == "off":
        return None
    try:
        found: Any = importlib.import_module("anabranch.protocol._native")
    except ImportError:  # no compiler when it was installed: slower, and the same in every other way
        return None
    return NativeLoops(found.sends, found.receipts, getattr(found, "message_run", None))


NATIVE = _load()
