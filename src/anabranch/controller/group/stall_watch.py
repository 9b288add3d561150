"""Warns about a sealed segment that is not acknowledged while other segments wait for it: once per segment.

A segment is stalled if a consumer is attached to it, and its position has not moved between two looks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from anabranch.controller.group.group_state import GroupState
from anabranch.controller.segment_host import CursorStats, SegmentRef, SegmentStats
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

STALL_SECONDS = 10.0
"""Time between two looks."""

Measure = Callable[[Sequence[SegmentRef]], Awaitable[Sequence[SegmentStats | None]]]


class Stalls:
    """Decides which segments are stalled, from one look to the next. Never awaits."""

    def __init__(self) -> None:
        self._before: dict[int, CursorStats] = {}
        self._known: set[int] = set()

    def look(self, now: Mapping[int, CursorStats]) -> list[int]:
        """`now`: the cursors of segments that others wait for. Returns the segments that are stalled since then."""
        before, self._before = self._before, dict(now)
        self._known &= now.keys()
        found = [
            one
            for one, cursor in sorted(now.items())
            if one not in self._known and cursor.consumers and cursor.backlog and before.get(one) == cursor
        ]
        self._known.update(found)
        return found


class StallWatch:
    """Of one ordered subscription, during one leader term. Runs while there are segments that wait."""

    def __init__(
        self,
        group: GroupState,
        subscription: str,
        ref: Callable[[int], SegmentRef | None],
        measure: Measure,
        clock: Clock,
        is_over: Callable[[], bool],
    ) -> None:
        self._group, self._subscription, self._is_over = group, subscription, is_over
        self._ref, self._measure, self._clock = ref, measure, clock
        self._stalls = Stalls()
        self.is_running = False

    async def run(self) -> None:
        self.is_running = True
        try:
            while self._group.drain.has_blocked and not self._is_over():
                await self._clock.sleep(STALL_SECONDS)
                await self._look()
        finally:
            self.is_running = False

    async def _look(self) -> None:
        waiting = self._group.waiting
        refs = {
            one: ref
            for one in sorted({above for ancestors in waiting.values() for above in ancestors})
            if one not in waiting and (ref := self._ref(one)) is not None
        }
        figures = await self._measure(list(refs.values())) if refs else ()
        now = {
            one: stats.subscriptions[self._subscription]
            for one, stats in zip(refs, figures, strict=True)
            if stats is not None and self._subscription in stats.subscriptions
        }
        for one in self._stalls.look(now):
            children = ", ".join(str(child) for child, ancestors in sorted(waiting.items()) if one in ancestors)
            log.warning(
                "segment %d is sealed and its position does not move; %d messages are not acknowledged; "
                "segments %s wait for them",
                one,
                now[one].backlog,
                children,
                extra={"topic": str(refs[one].name), "subscription": self._subscription},
            )
