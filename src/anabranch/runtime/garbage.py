"""Tuning of the garbage collector for a process that serves for months (before that it is off: `cli.serve`).

CPython scans young objects when many more were created than freed. A broker frees about as many as it creates, because
entries leave its cache as others arrive. So young objects accumulate for seconds and are scanned in one pass: 10 to 40
ms with 1,000 busy topics, which was their p99. Here the creators of objects report them, and they are scanned in
portions.
"""

from __future__ import annotations

import gc

PORTION = 500
"""Batches of entries (an entry of a quiet topic is one) between two scans: about five thousand objects and 1 ms."""
THRESHOLDS = (5_000, 1, 1_000)
"""Thresholds for objects that are not reported.

An object that survives one scan is old; everything is scanned after about ten million. Entries of a busy topic come in
large batches and are rarely scanned, because they are many, live for a while and are never part of a cycle.
"""


class Garbage:
    def __init__(self) -> None:
        self._made = 0

    def begin(self) -> None:
        """Startup is complete: objects that exist now stay, and are never scanned again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()

    def made(self, batches: int) -> None:
        self._made += batches
        if self._made >= PORTION:
            self._made = 0
            gc.collect(1)
