"""State machine of a checkpoint consumer on one topic: which segments are read, and how far.

A segment is read when all its ancestors that overlap it are done. Every key is therefore read in order across any
number of splits and merges, by a single reader and without help of the broker.

    waiting ── all ancestors done ──▶ read from its mark ── handed out to its end ──▶ done ──▶ its children

In a group the controller assigns segments, and assigns a child only after its parents are done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from anabranch.client.consumer.checkpoint import (
    After,
    Checkpoint,
    Done,
    FromStart,
    FromTime,
    Kind,
    Mark,
    TopicCut,
    reach,
)
from anabranch.client.errors import ClientError
from anabranch.client.messages.message import MessageId
from anabranch.model.layout import Layout
from anabranch.model.position import Position
from anabranch.model.segment import Segment


class CheckpointMismatch(ClientError):
    """The topic was deleted and created again since the checkpoint was taken."""

    code = "checkpoint-mismatch"


class PositionGone(ClientError):
    """Retention deleted a segment that the checkpoint had not read to its end."""

    code = "position-gone"


@dataclass(frozen=True, slots=True)
class Open:
    """Read this segment. `mark` None: from its end; the position is reported with `resolved`."""

    segment: Segment
    mark: Mark | None


@dataclass(frozen=True, slots=True)
class Close:
    segment_id: int


Effect = Open | Close


class SegmentTraversal:
    def __init__(self, topic: str, start: Checkpoint, *, is_group: bool = False) -> None:
        self._topic = topic
        self._start = start
        self._layout: Layout | None = None
        self._incarnation = 0
        self._marks: dict[int, Mark | None] = {}
        self._open: set[int] = set()
        self._mine: set[int] | None = set() if is_group else None  # None: everything
        self._known: set[int] = set()  # in a group: every segment that was ever assigned
        self._is_another = False  # the topic was created again since the start
        self.missing: frozenset[int] = frozenset()
        """Segments that retention deleted before they were read to their end."""

    @property
    def open_segments(self) -> frozenset[int]:
        return frozenset(self._open)

    # -- events

    def on_layout(self, layout: Layout, incarnation: int = 0, *, is_another: bool = False) -> list[Effect]:
        """The first layout decides where each segment starts. Later segments are read from their beginning, and so is
        everything if the topic was deleted and created again (`is_another`)."""
        if self._layout is None:
            self._begin(layout, incarnation)
        elif is_another or (incarnation != self._incarnation and incarnation and self._incarnation):
            return self._restarted(layout, incarnation)
        else:
            for one in layout.segments.keys() - self._marks.keys():
                self._marks[one] = FromStart()
            gone = self._marks.keys() - layout.segments.keys()
            self.missing |= {one for one in gone if not isinstance(self._marks[one], Done)}
            for one in gone:
                del self._marks[one]
        self._layout, self._incarnation = layout, incarnation
        return self._reopened()

    def _restarted(self, layout: Layout, incarnation: int) -> list[Effect]:
        """The topic was deleted and created again: read all of it from the beginning."""
        closed = [Close(one) for one in sorted(self._open)]
        self._open, self._known, self._is_another = set(), set(), True
        self._mine = None if self._mine is None else set()
        self.missing = frozenset()
        self._marks = {one: FromStart() for one in layout.segments}
        self._layout, self._incarnation = layout, incarnation
        return [*closed, *self._reopened()]

    def assigned(
        self,
        segment_ids: Collection[int],
        stored: Checkpoint | None = None,
        reported: Mapping[int, Mark] = MappingProxyType({}),
    ) -> list[Effect]:
        """In a group: the complete set of assigned segments. For newly assigned ones, `stored` is the checkpoint of the
        application; segments missing there start at the `reported` progress of the group's members. Raises
        CheckpointMismatch."""
        assert self._mine is not None
        cut = None if stored is None else self.cut_in(stored)
        for one in set(segment_ids) - self._mine:
            mark = None if cut is None else cut.marks.get(one)
            if mark is not None:
                self._marks[one] = mark
            elif one in reported and self._is_farther(one, reported[one]):
                self._marks[one] = reported[one]
            else:
                self._marks.setdefault(one, FromStart())  # the layout with this segment arrives later
        self._mine = set(segment_ids)
        self._known |= self._mine
        return self._reopened()

    def _is_farther(self, one: int, reported: Mark) -> bool:
        """True if the reported mark is ahead of the known one. The checkpoint given at the start always wins."""
        cut = None if self._is_another else self._start.cut_of(self._topic)
        if one not in self._known and cut is not None and one in cut.marks:
            return False
        known = self._marks.get(one)
        return known is None or reach(reported) > reach(known)

    def mark(self, segment_id: int) -> Mark | None:
        """Progress in this segment; None if not known."""
        return self._marks.get(segment_id)

    def resolved(self, segment_id: int, mark: Mark) -> None:
        """The position of the end from which the segment is read."""
        if segment_id in self._marks and self._marks[segment_id] is None:
            self._marks[segment_id] = mark

    def handed_out(self, segment_id: int, one: MessageId, since: Position | None = None) -> None:
        if segment_id in self._open:
            self._marks[segment_id] = After(one, since)

    def ended(self, segment_id: int) -> list[Effect]:
        """The segment is sealed and everything was handed out, or it was deleted."""
        if segment_id not in self._open:
            return []
        self._marks[segment_id] = Done()
        return self._reopened()

    def cut_in(self, checkpoint: Checkpoint) -> TopicCut | None:
        """The marks of this topic. Raises CheckpointMismatch if they belong to another incarnation of it."""
        cut, own = checkpoint.cut_of(self._topic), self._incarnation
        if cut is not None and cut.incarnation > 0 and own and cut.incarnation != own:
            raise CheckpointMismatch(f"{self._topic} was deleted and created again since the checkpoint was taken")
        return cut

    def cut(self) -> TopicCut:
        """Exactly what was handed out so far. In a group, of all segments that were ever assigned."""
        marks = {
            one: mark
            for one, mark in self._marks.items()
            if mark is not None and (self._mine is None or one in self._known)
        }
        epoch = -1 if self._layout is None else self._layout.epoch
        return TopicCut(self._topic, marks, epoch, self._incarnation or -1)

    # -- inside

    def _begin(self, layout: Layout, incarnation: int) -> None:
        start, self._incarnation = self._start, incarnation
        cut = self.cut_in(start)
        marks = {} if cut is None else cut.marks
        for one, segment in layout.segments.items():
            self._marks[one] = marks[one] if one in marks else _first_mark(segment, start)
        self.missing = frozenset(one for one, mark in marks.items() if one not in layout and not isinstance(mark, Done))

    def _reopened(self) -> list[Effect]:
        """Effects that open the segments to be read now, and close the others."""
        layout = self._layout
        if layout is None:
            return []
        wanted = {one for one in layout.segments if self._is_due(layout, one)}
        effects: list[Effect] = [Close(one) for one in sorted(self._open - wanted)]
        effects += [Open(layout[one], self._marks[one]) for one in sorted(wanted - self._open)]
        self._open = wanted
        return effects

    def _is_due(self, layout: Layout, one: int) -> bool:
        if isinstance(self._marks[one], Done):
            return False
        if self._mine is not None and one not in self._mine:
            return False
        return all(self._is_done(before) for before in layout.ancestors(one))

    def _is_done(self, one: int) -> bool:
        if self._mine is not None and one not in self._mine:
            return True  # the controller assigns a child only after its parents are done
        return isinstance(self._marks[one], Done)


def _first_mark(segment: Segment, start: Checkpoint) -> Mark | None:
    match start.kind:
        case Kind.LATEST:
            return None if segment.is_active else Done()
        case Kind.TIME:
            is_over = not segment.is_active and 0 <= segment.sealed_at_ms < start.at_ms
            return Done() if is_over else FromTime(start.at_ms)
        case Kind.EARLIEST | Kind.RUN:  # a segment missing in a checkpoint is newer than the checkpoint
            return FromStart()


def described(segment_ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(segment_ids)))
