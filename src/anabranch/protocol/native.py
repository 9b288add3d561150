"""Loads the protocol's inner loops in C: a whole read of the socket or of the disk per call.

`NATIVE` is None if the extension was not built; the Python path, frame by frame, has the same results.
`ANABRANCH_NATIVE=off` in the environment selects the Python path.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

FoundSend = tuple[int, int, int, int, int, int]
"""Producer id, sequence id, highest sequence id, number of messages; start of the entry; end of the frame."""

MessageRun = tuple[list[bytes | bytearray | memoryview], list[Any], int, int, int, int]
"""Heads and payloads alternating; positions of the entries; bytes in total, and of the payloads alone; number of
messages in total, and per entry (-1: they differ).
"""


@dataclass(frozen=True, slots=True)
class NativeLoops:
    """`sends(data, start, end, frame_bytes_max)`: the plain SENDs that are complete from `start` on, up to the first
    other frame. `receipts(producer_id, ledger, first_entry, partition, publishes)`: frames for tuples with sequence
    id and highest sequence id at indexes 1 and 2. `message_run(consumer_id, partition, entries, start, bytes_max,
    messages_max)`: MESSAGE frames for the list's ((ledger, entry), messages, payload, …) from `start` on.
    """

    sends: Callable[[memoryview, int, int, int], list[FoundSend]]
    receipts: Callable[[int, int, int, int, Sequence[tuple[Any, ...]]], bytes]
    message_run: Callable[[int, int, list[Any], int, int, int], MessageRun] | None  # None: an older build


def _load() -> NativeLoops | None:
    if os.environ.get("ANABRANCH_NATIVE") == "off":
        return None
    try:
        found: Any = importlib.import_module("anabranch.protocol._native")
    except ImportError:  # not built, because no compiler was found at installation
        return None
    return NativeLoops(found.sends, found.receipts, getattr(found, "message_run", None))


NATIVE = _load()
