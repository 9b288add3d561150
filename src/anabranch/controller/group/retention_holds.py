"""What a checkpoint group still needs of its segments, told to their owners: they drop nothing behind it.

A group has no cursors that would hold retention back. Holds only ever lag behind what is true, so they may be told at
leisure: a new segment at once, progress once in a while for all segments together. Owners keep them; a new leader tells
them again. Groups that never report anything (clients of Pulsar cannot) hold nothing but sealed segments as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from anabranch.controller.group.group_state import GroupState
from anabranch.model.position import EARLIEST, Position
from anabranch.runtime.clock import Clock

HOLDS_SECONDS = 10.0
TOGETHER = 16

Tell = Callable[[int, Position | None], Awaitable[None]]
"""The owner of a segment: keep what comes behind this; None: nothing is needed. Returns when it has confirmed it."""


def wanted(group: GroupState, segment_ids: Iterable[int]) -> dict[int, Position | None]:
    """By segment. Nothing for a group that does not say how far it is."""
    progress, drained = group.progress, group.drain.drained
    if not progress.reached and not drained:
        return {}
    return {one: None if one in drained else progress.passed(one) for one in segment_ids}


class Holds:
    """Of one group, while one leader leads. `segment_ids` answers what is in the layout now."""

    def __init__(self, group: GroupState, segment_ids: Callable[[], Iterable[int]], tell: Tell, clock: Clock) -> None:
        self._group, self._segment_ids, self._tell, self._clock = group, segment_ids, tell, clock
        self._told: dict[int, Position | None] = {}
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Somebody reported something, or the layout is another one."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            now = wanted(self._group, self._segment_ids())
            self._told = {one: at for one, at in self._told.items() if one in now}
            await self._send({one: at for one, at in now.items() if one not in self._told and at == EARLIEST})
            await self._send({one: at for one, at in now.items() if self._told.get(one, "never") != at})
            await self._clock.sleep(HOLDS_SECONDS)

    async def _send(self, holds: Mapping[int, Position | None]) -> None:
        ordered = sorted(holds)
        for start in range(0, len(ordered), TOGETHER):
            some = ordered[start : start + TOGETHER]
            await asyncio.gather(*(self._tell(one, holds[one]) for one in some))
            self._told.update({one: holds[one] for one in some})
