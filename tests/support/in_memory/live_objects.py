"""Counts the broker's objects that stay alive after their use has ended, as in a process that serves for long.

The garbage collector of a broker scans young objects often and old objects hardly ever (`runtime.garbage`). An old
object must therefore be freed by reference counting. `left_behind` makes objects old: `gc.freeze` hides them from the
collector. If they are part of a reference cycle when their use ends, they stay, and are counted.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

_SERVER = tuple(
    f"anabranch.{package}."
    for package in ("broker", "cluster", "controller", "interbroker", "metadata", "node", "rest", "security", "storage")
)
"""Not the packages that clients use, too: clients run in the user's process, under a collector as the user sets it."""
_BOUNDED = (
    "anabranch.storage.tail_cache._Chunk",  # the queue has a bound (`tests/unit/storage/test_tail_cache.py`)
    "anabranch.broker.publish.sequence_ids.Last",  # a cache with a bound: `segment_host.ancestor_sequences`
    "anabranch.metadata.sqlite.writer.Operation",  # the writer thread keeps its last group until the next one
    "anabranch.metadata.write_gate.Permit",  # in the context of a cancelled timer, until the timer would be due
    "anabranch.broker.admin.views.journal.Change",  # the journal keeps `KEPT_MAX` of them
)
SETTLE_SECONDS = 20.0

Use = Callable[[], AbstractAsyncContextManager[object]]
"""Entered: objects are made and used. Left: their use ends."""


def live_objects() -> Counter[str]:
    """Live instances of the broker's classes, by name."""
    found: Counter[str] = Counter()
    for one in gc.get_objects():
        kind = type(one)
        if isinstance(kind.__module__, str) and kind.__module__.startswith(_SERVER):
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return found - Counter({name: found[name] for name in _BOUNDED})


async def left_behind(use: Use, rounds: int = 2) -> dict[str, int]:
    """Objects that `rounds` of `use` leave behind. One round before them fills what is kept on purpose."""
    await _use(use)
    before = await _settled(Counter())
    for _ in range(rounds):
        await _use(use)
    return dict(await _settled(before) - before)


async def _use(use: Use) -> None:
    async with use():
        gc.collect()
        gc.freeze()


async def _settled(expected: Counter[str]) -> Counter[str]:
    """Live objects when there are not more than `expected`, or when their number no longer changes.

    Ledger files are written and connections are closed in the background.
    """
    found, unchanged = Counter[str](), 0
    until = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while unchanged < 10 and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.05)  # a poll, bounded by the deadline
        gc.collect()  # young objects only: the others are frozen
        gc.unfreeze()
        now = live_objects()
        gc.freeze()
        if expected and not now - expected:
            return now
        unchanged = unchanged + 1 if now == found else 0
        found = now
    return found
