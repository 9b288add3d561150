"""Retention holds of a checkpoint group: the positions behind which the owners of its segments must keep data.

A checkpoint group has no cursors that would hold retention back. A hold may be older than the group's real progress (it
then retains too much, never too little). So a hold for a new segment is sent at once, and progress is sent every 10 s
for all segments together. Owners store holds; a new leader sends them again. A group that never reports progress
(Pulsar's clients cannot) sends no holds; only garbage collection waits for it.
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
"""Sends a hold to a segment's owner: keep the entries after this position; None: nothing is needed. Returns when it is
confirmed."""


def wanted(group: GroupState, segment_ids: Iterable[int]) -> dict[int, Position | None]:
    """By segment. Empty for a group that reports no progress."""
    progress, drained = group.progress, group.drain.drained
    if not progress.reached and not drained:
        return {}
    return {one: None if one in drained else progress.passed(one) for one in segment_ids}


class Holds:
    """Of one group, during one leader term. `segment_ids` returns the segments of the current layout."""

    def __init__(self, group: GroupState, segment_ids: Callable[[], Iterable[int]], tell: Tell, clock: Clock) -> None:
        self._group, self._segment_ids, self._tell, self._clock = group, segment_ids, tell, clock
        self._told: dict[int, Position | None] = {}
        self._changed = asyncio.Event()
        self._is_over = False

    def changed(self) -> None:
        """Progress was reported, or the layout has changed."""
        self._changed.set()

    def end(self) -> None:
        """`run` returns soon."""
        self._is_over = True
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            if self._is_over:
                return
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
