"""Decides which segments an ordered subscription may read: a segment opens when all its ancestors are drained.

    sealed, unread: open ── Drained ──▶ done ──┬──▶ child open    as soon as *every* ancestor that overlaps the child
                                               └──▶ child open    is done, at any distance

A segment is *open* when it is not drained and no undrained ancestor shares a key with it. Only a sealed segment can be
drained. `Drained` is reported by the segment's owner (for a checkpoint group, by the group) and is durable there. A
seek may take it back (`Refilled`). Both carry the rewind count of the cursor, so that a `Drained` from before a seek
that arrives late opens nothing. A `Drained` that arrives before this leader has committed the seal is kept until then.

The state is stored in one record with the assignment. So a grant is never durable without the drain that allowed it,
and a new leader closes nothing that was open. Never awaits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from anabranch.model.layout import Layout
from anabranch.model.segment import Segment


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LayoutChanged:
    """An older layout may arrive after a newer one; it is ignored."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class Drained:
    """The subscription has consumed all of a sealed segment."""

    segment_id: int
    rewind_count: int = 0  # how often seeks took the cursor back before


@dataclass(frozen=True, slots=True)
class Refilled:
    """A seek took the cursor back: the segment is read again."""

    segment_id: int
    rewind_count: int = 0  # including this one


Event = LayoutChanged | Drained | Refilled


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Open:
    """The set of open segments has changed: complete, in ring order. `finished`: those closed because drained."""

    segments: tuple[Segment, ...]
    finished: frozenset[int]


@dataclass(frozen=True, slots=True)
class SaveDrained:
    """Make `record()` durable, together with the assignment that a preceding `Open` causes."""


Effect = Open | SaveDrained


@dataclass(frozen=True, slots=True)
class DrainRecord:
    """The drained segments, and the rewind counts of segments that a seek took back."""

    epoch: int = -1  # of the newest layout
    drained: Mapping[int, int] = field(default_factory=dict)  # segment -> rewinds of the cursor when it was drained
    rewind_count: Mapping[int, int] = field(default_factory=dict)  # of the others, where there were any

    def to_json(self) -> dict[str, Any]:
        drained, rewind_count = (
            {str(one): count for one, count in it.items()} for it in (self.drained, self.rewind_count)
        )
        return {"epoch": self.epoch, "drained": drained, "rewinds": rewind_count}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DrainRecord:
        drained, rewind_count = ({int(a): int(b) for a, b in value[key].items()} for key in ("drained", "rewinds"))
        return cls(int(value["epoch"]), drained, rewind_count)


class DrainTracker:
    """For one subscription."""

    def __init__(self, record: DrainRecord | None = None) -> None:
        record = record or DrainRecord()
        self._layout: Layout | None = None
        self._epoch = record.epoch
        self._drained = dict(record.drained)
        self._rewinds = dict(record.rewind_count)
        self._early: dict[int, int] = {}  # reported as drained while active in the known layout
        self._blocks: dict[int, int] = {}  # segment -> number of its undrained ancestors
        self._open: set[int] = set()

    @property
    def layout(self) -> Layout:
        """The newest one."""
        assert self._layout is not None
        return self._layout

    @property
    def has_blocked(self) -> bool:
        """There are segments that are neither drained nor open."""
        return self._layout is not None and len(self._drained) + len(self._open) < len(self._layout.segments)

    @property
    def drained(self) -> frozenset[int]:
        return frozenset(self._drained)

    @property
    def drained_count(self) -> int:
        return len(self._drained)

    @property
    def undrained(self) -> frozenset[int]:
        """Sealed segments that are not drained. A new leader asks their owners once, then waits for events."""
        assert self._layout is not None
        return frozenset(s.segment_id for s in self._layout.sealed if s.segment_id not in self._drained)

    @property
    def open(self) -> tuple[Segment, ...]:
        """In ring order."""
        assert self._layout is not None
        return tuple(sorted((self._layout[one] for one in self._open), key=lambda s: (s.hash_range, s.segment_id)))

    def record(self) -> DrainRecord:
        return DrainRecord(self._epoch, dict(sorted(self._drained.items())), dict(sorted(self._rewinds.items())))

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case LayoutChanged(layout):
                return self._relay(layout)
            case Drained(segment_id, rewind_count):
                if not self._is_current(segment_id, rewind_count) or segment_id in self._drained:
                    return []
                if not self._is_sealed(segment_id):
                    self._early[segment_id] = rewind_count
                    return []
                self._rewinds.pop(segment_id, None)
                self._drained[segment_id] = rewind_count
                return self._reopened(self._step(segment_id, -1), {segment_id})
            case Refilled(segment_id, rewind_count):
                if not self._is_current(segment_id, rewind_count) or rewind_count <= self._drained.get(segment_id, -1):
                    return []  # it was drained after that rewind
                self._early.pop(segment_id, None)
                was_drained = self._drained.pop(segment_id, None) is not None
                self._rewinds[segment_id] = rewind_count
                return self._reopened(self._step(segment_id, +1), set()) if was_drained else [SaveDrained()]
            case _:
                assert_never(event)

    def _is_sealed(self, segment_id: int) -> bool:
        return self._layout is not None and not self._layout[segment_id].is_active

    def _is_current(self, segment_id: int, rewind_count: int) -> bool:
        """The segment exists, and the event is not older than the known state."""
        if self._layout is not None and segment_id not in self._layout:
            return False
        return rewind_count >= max(self._drained.get(segment_id, 0), self._rewinds.get(segment_id, 0))

    def _step(self, segment_id: int, change: int) -> bool:
        """Updates the descendants of a segment that was drained (-1) or refilled (+1). True if the open set changed."""
        assert self._layout is not None
        before = set(self._open)
        for behind in self._layout.descendants(segment_id):
            self._blocks[behind] += change
            self._look_at(behind)
        self._look_at(segment_id)
        return self._open != before

    def _look_at(self, segment_id: int) -> None:
        if self._blocks[segment_id] == 0 and segment_id not in self._drained:
            self._open.add(segment_id)
        else:
            self._open.discard(segment_id)

    def _relay(self, layout: Layout) -> list[Effect]:
        if layout.epoch < self._epoch or (self._layout is not None and layout.epoch == self._epoch):
            return []
        before, is_first = self._open, self._layout is None
        known = self._layout.segments.keys() if self._layout is not None else frozenset[int]()
        self._layout, self._epoch = layout, layout.epoch
        done = {one: count for one, count in self._early.items() if one in layout and not layout[one].is_active}
        self._early = {one: count for one, count in self._early.items() if one in layout and one not in done}
        self._drained = {one: count for one, count in (self._drained | done).items() if one in layout}
        self._rewinds = {one: count for one, count in self._rewinds.items() if one in layout and one not in done}
        finished = {one for one in known if one not in layout} | done.keys()
        self._blocks = dict.fromkeys(layout.segments, 0)
        for segment in layout.segments.values():
            if segment.segment_id not in self._drained and segment.child_ids:
                for behind in layout.descendants(segment.segment_id):
                    self._blocks[behind] += 1
        self._open = set()
        for one in layout.segments:
            self._look_at(one)
        return self._reopened(is_first or self._open != before, finished)

    def _reopened(self, is_changed: bool, finished: set[int]) -> list[Effect]:
        return [Open(self.open, frozenset(finished)), SaveDrained()] if is_changed else [SaveDrained()]
