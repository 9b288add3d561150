"""Which segments an ordered subscription may read: none before all its ancestors are drained. A machine; never awaits.

    sealed, unread: open ── Drained ──▶ done ──┬──▶ child open    as soon as *every* ancestor that overlaps the child
                                               └──▶ child open    is done, at any distance

A segment is *open* when it is not drained itself and no undrained segment that may have had one of its keys stands
before it. Only a sealed segment can be drained. Drained is an event of the segment's owner (for a checkpoint group: of
the group), durable there, and may be taken back by a seek (`Refilled`). Both carry how often the cursor was taken back
so far, so that a `Drained` from before a seek, told late, opens nothing. One that comes before this leader committed
the seal is kept until then.

What is kept here is stored in one value with the assignment: then a grant is never durable without the drain that
allowed it, and a new leader closes nothing that was open.
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
    """Watches and re-reads may bring an older one after a newer one: it is ignored."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing of a sealed segment is left for the subscription."""

    segment_id: int
    rewinds: int = 0  # how often the cursor was taken back before


@dataclass(frozen=True, slots=True)
class Refilled:
    """The cursor was taken back: the segment is to be read again."""

    segment_id: int
    rewinds: int = 0  # this one counted


Event = LayoutChanged | Drained | Refilled


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Open:
    """The complete set of open segments, in ring order, has changed. `finished`: those that closed because drained."""

    segments: tuple[Segment, ...]
    finished: frozenset[int]


@dataclass(frozen=True, slots=True)
class SaveDrained:
    """Make `record()` durable, together with what an `Open` before it leads to."""


Effect = Open | SaveDrained


@dataclass(frozen=True, slots=True)
class DrainRecord:
    """What the subscription is through with, and the rewinds of segments that were taken back."""

    epoch: int = -1  # of the newest layout seen
    drained: Mapping[int, int] = field(default_factory=dict)  # segment -> rewinds of the cursor when it was drained
    rewinds: Mapping[int, int] = field(default_factory=dict)  # of the others, where there were any

    def to_json(self) -> dict[str, Any]:
        drained, rewinds = ({str(one): count for one, count in it.items()} for it in (self.drained, self.rewinds))
        return {"epoch": self.epoch, "drained": drained, "rewinds": rewinds}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DrainRecord:
        drained, rewinds = ({int(a): int(b) for a, b in value[key].items()} for key in ("drained", "rewinds"))
        return cls(int(value["epoch"]), drained, rewinds)


class DrainTracker:
    """The gate of one subscription."""

    def __init__(self, record: DrainRecord | None = None) -> None:
        record = record or DrainRecord()
        self._layout: Layout | None = None
        self._epoch = record.epoch
        self._drained = dict(record.drained)
        self._rewinds = dict(record.rewinds)
        self._early: dict[int, int] = {}  # drained segments that are active in the layout we know
        self._blocks: dict[int, int] = {}  # segment -> how many undrained segments stand before it
        self._open: set[int] = set()

    @property
    def drained(self) -> frozenset[int]:
        return frozenset(self._drained)

    @property
    def undrained(self) -> frozenset[int]:
        """Sealed segments still to be read: a new leader asks their owners once, then waits for events."""
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
            case Drained(segment_id, rewinds):
                if not self._is_news(segment_id, rewinds) or segment_id in self._drained:
                    return []
                if not self._is_sealed(segment_id):
                    self._early[segment_id] = rewinds
                    return []
                self._rewinds.pop(segment_id, None)
                self._drained[segment_id] = rewinds
                return self._reopened(self._step(segment_id, -1), {segment_id})
            case Refilled(segment_id, rewinds):
                if not self._is_news(segment_id, rewinds) or rewinds <= self._drained.get(segment_id, -1):
                    return []  # it was read to its end after that
                self._early.pop(segment_id, None)
                was_drained = self._drained.pop(segment_id, None) is not None
                self._rewinds[segment_id] = rewinds
                return self._reopened(self._step(segment_id, +1), set()) if was_drained else [SaveDrained()]
            case _:
                assert_never(event)

    def _is_sealed(self, segment_id: int) -> bool:
        return self._layout is not None and not self._layout[segment_id].is_active

    def _is_news(self, segment_id: int, rewinds: int) -> bool:
        """Is it about a segment that is there, and not older than what is known?"""
        if self._layout is not None and segment_id not in self._layout:
            return False
        return rewinds >= max(self._drained.get(segment_id, 0), self._rewinds.get(segment_id, 0))

    def _step(self, segment_id: int, change: int) -> bool:
        """One segment was drained (-1) or filled again (+1): who stands behind it? True when the open set changed."""
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
