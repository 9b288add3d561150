"""When the garbage collector looks, in a process that serves for months (until it serves, it rests: cli.standalone).

CPython looks at the young objects when many more were made than freed. A broker frees about as many as it makes:
entries leave its cache as others come; so the young pile up for seconds and are looked at in one go: 10 to 40 ms with
1,000 busy topics, which was their p99. Here whoever makes objects says so, and they are looked at in portions.
"""

from __future__ import annotations

import gc

PORTION = 500
"""Batches of entries (an entry of a quiet topic is one) between two looks: some five thousand objects, about 1 ms."""
THRESHOLDS = (5_000, 1, 1_000)
"""For what nobody counts.

What survives one look is old; all is looked at after some ten million. Entries of a busy topic come in large batches
and are seldom looked at: they are many, live for a while and are never part of a cycle.
"""


class Garbage:
    def __init__(self) -> None:
        self._made = 0

    def begin(self) -> None:
        """The process stands: what is there will stay, and is never looked at."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()

    def made(self, batches: int) -> None:
        self._made += batches
        if self._made >= PORTION:
            self._made = 0
            gc.collect(1)
