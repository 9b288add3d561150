"""The consumers of one ordered subscription, by the topic's leader: sessions, drain gate and assignment in one record.

Nothing is told before it is durable: what an event leads to waits in the outbox until the record that has it is saved.
Saves are one at a time; what comes meanwhile goes into the next. A successor finds members, what each holds and what is
drained, so it takes nothing from anybody: it gives everybody a fresh grace period and goes on. Never awaits.

A consumer that did not let go in time, or whose grace is over, may still read somewhere: the owners close it first
(`CloseConsumer`), and only when they have is the segment another's. What they let in is a matter of generations
(`fence.py`), so none may be told them that a successor of ours might not know: a fence is at most one above the
generation that is durable, and every leader begins one above what it finds.

A seek rewinds segments that were drained and those behind them. So that nothing of a child is read again before its
parent, everything is taken back first (`Halt`), then the owners move the cursors and let in nobody from before, and
only when all of them have is given out what is open then (`Resume`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from anabranch.controller.events import Halt, Halted, LeadershipLost, Resume, Resumed, StepDown, Version
from anabranch.controller.group import assignment as assigning
from anabranch.controller.group import consumer_sessions as seating
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group.assignment import Assignment, AssignmentRecord, AwaitRelease
from anabranch.controller.group.checkpoint_progress import Progress, Report
from anabranch.controller.group.consumer_sessions import (
    Fence,
    Refuse,
    Sessions,
    WakeAt,
    Welcome,
)
from anabranch.controller.group.drain_tracker import DrainTracker
from anabranch.controller.group.group_events import (
    AskDrained,
    CloseConsumer,
    ConsumerClosed,
    Effect,
    Event,
    GroupDoubtful,
    GroupSaved,
    GroupSeen,
    GroupUnread,
    LayoutTold,
    ProgressDue,
    Progressed,
    Push,
    ReadGroup,
    ReleaseOverdue,
    SaveGroup,
    SaveProgressAt,
    Told,
)
from anabranch.controller.group.group_record import GroupMove, GroupRecord
from anabranch.controller.segment_host import Moved
from anabranch.model.layout import Layout

PROGRESS_MS = 200
"""Between two writes that nothing but progress asks for."""


class GroupState:
    """For one ordered subscription and one term of the topic's leader."""

    def __init__(self, life: str, term: int, *, first_generation: int = 0, grace_ms: int = seating.GRACE_MS) -> None:
        """`first_generation`: above all generations of former lives of the subscription."""
        self._life, self._term, self._grace_ms = life, term, grace_ms
        self._first_generation = first_generation
        self._now_ms = 0
        self._version: Version | None = None
        self._saving: GroupRecord | None = None
        self._is_dirty = False
        self._is_ready = False  # our term is in the record
        self._is_over = False
        self._layout: Layout | None = None
        self._closing: set[str] = set()  # members whose grace is over and who are being closed everywhere
        self._waiting: list[Event] = []  # what came before the record was read
        self._outbox: list[Told] = []  # to be told when the next save is done
        self._leaving: list[Told] = []  # to be told when the running save is done
        self.sessions = Sessions(grace_ms=grace_ms)
        self.drain = DrainTracker()
        self.assignment = Assignment()
        self.progress = Progress()
        self._move: GroupMove | None = None
        self._has_news = False  # progress that waits to be written
        self._is_progress_due = False  # somebody will say when
        self._progress_saved_ms = -PROGRESS_MS

    def begin(self) -> list[Effect]:
        return [ReadGroup()]

    @property
    def is_ready(self) -> bool:
        """The record is ours: what happens is dealt with at once."""
        return self._is_ready

    @property
    def has_layout(self) -> bool:
        return self._layout is not None

    @property
    def is_halted(self) -> bool:
        return self._move is not None and not self._move.is_over

    @property
    def void_below(self) -> int:
        """What was read under a lower generation was read before the last seek: acks of it count for nothing."""
        return 0 if self._move is None else self._move.generation

    @property
    def saves_due(self) -> int:
        """Once ready: so many saves from now everything that has happened is durable."""
        return (self._saving is not None) + (self._is_dirty or self._has_news)

    def record(self) -> GroupRecord:
        return GroupRecord(
            self._life,
            self._term,
            self.sessions.record(),
            self.drain.record(),
            self.assignment.record(),
            dict(self.progress.reached),
            self._move,
        )

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self._now_ms = max(self._now_ms, now_ms)
        if self._is_over:
            return []
        match event:
            case GroupSeen(record, version):
                return self._seen(record, version)
            case GroupUnread():
                return [ReadGroup()]
            case GroupSaved(version):
                return self._saved(version)
            case GroupDoubtful():
                return [ReadGroup()]
            case LeadershipLost(reason):
                return self._step_down(reason)
            case _:
                if not self._is_ready:
                    self._waiting.append(event)
                    return []
                return self._live(event) + self._flush()

    # the record -------------------------------------------------------------------------------------------------------
    def _seen(self, record: GroupRecord | None, version: Version | None) -> list[Effect]:
        if record is not None and record.leader_term > self._term:
            return self._step_down(f"the leader of term {record.leader_term} has written")
        self._version = version
        if self._is_ready:  # nobody but us can have written since: it is there, or it is not
            assert self._saving is not None
            if record == self._saving and version is not None:
                return self._saved(version)
            return [SaveGroup(self._saving, version)]
        if record is None or record.life != self._life:
            record = GroupRecord(self._life, assignment=AssignmentRecord(self._first_generation))
        else:
            found = record.assignment
            record = replace(record, assignment=replace(found, generation=found.generation + 1))
        self.sessions = Sessions(record=record.sessions, now_ms=self._now_ms, grace_ms=self._grace_ms)
        self.drain, self.assignment = DrainTracker(record.drain), Assignment(record.assignment)
        self.progress, self._move = Progress(record.reached), record.move
        self._saving = replace(record, leader_term=self._term)
        return [SaveGroup(self._saving, version)]

    def _saved(self, version: Version) -> list[Effect]:
        self._version, self._saving = version, None
        effects: list[Effect] = [*self._addressed(self._leaving)]
        self._leaving = []
        if not self._is_ready:
            self._is_ready = True
            effects += [effect for effect in self.sessions.begin() if isinstance(effect, WakeAt)]
            effects += self.assignment.awaited()
            for name in sorted(self.assignment.members - self.sessions.names):  # its end was noted, not yet its closing
                self._closing.add(name)
                effects.append(CloseConsumer(name, None, self.assignment.generation + 1))
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                effects += self._live(event)
        return effects + self._flush()

    def _flush(self) -> list[Effect]:
        """Tells at once what needs no save; saves what does, one save at a time."""
        if self._saving is not None:
            return []
        if not self._is_dirty:
            told, self._outbox = self._outbox, []
            return [*self._addressed(told)]
        self._is_dirty = self._has_news = False
        self._leaving, self._outbox = self._outbox, []
        self._saving = self.record()
        return [SaveGroup(self._saving, self._version)]

    def _addressed(self, told: list[Told]) -> Iterable[Told]:
        """Connections may have changed while it waited: what is for a former one goes to nobody."""
        for one in told:
            if isinstance(one, Push):
                connection = self.sessions.connection(one.consumer)
                if connection is not None:
                    yield replace(one, connection=connection)
            else:
                yield one

    # what happens -----------------------------------------------------------------------------------------------------
    def _live(self, event: Event) -> list[Effect]:
        match event:
            case LayoutTold(layout):
                is_first, self._layout = self._layout is None, layout
                self._drained(self.drain.handle(draining.LayoutChanged(layout)))
                for one in [one for one in self.progress.reached if one not in layout]:
                    self.progress.forget(one)
                undrained = tuple(sorted(self.drain.undrained)) if is_first else ()
                return [AskDrained(undrained)] if undrained else []
            case Halt(_, operation_id):
                self._halt(operation_id)
                return []
            case Resume(_, operation_id, moved):
                self._resume(operation_id, moved)
                return []
            case Progressed(consumer, report):
                return self._progressed(consumer, report)
            case ProgressDue():
                self._is_progress_due = False
                return self._save_progress()
            case draining.Drained() | draining.Refilled():
                if self._layout is not None:
                    self._drained(self.drain.handle(event))
                return []
            case assigning.Holding() | assigning.Released():
                self._assigned(self.assignment.handle(event))
                return []
            case ReleaseOverdue(segment_id, generation):
                for due in self.assignment.awaited():
                    if (due.segment_id, due.generation) == (segment_id, generation):
                        return [CloseConsumer(due.consumer, segment_id, generation)]
                return []
            case ConsumerClosed(CloseConsumer(consumer, None)):
                if consumer in self._closing:
                    self._closing.discard(consumer)
                    self._assigned(self.assignment.handle(assigning.Left(consumer)))
                return []
            case ConsumerClosed(CloseConsumer(_, int() as segment_id, generation)):
                self._assigned(self.assignment.handle(assigning.ReleaseTimedOut(segment_id, generation)))
                return []
            case seating.Registered() | seating.Disconnected() | seating.LeftCleanly() | seating.Ticked():
                return self._seated(self.sessions.handle(event, self._now_ms))
            case GroupSeen() | GroupSaved() | GroupDoubtful() | GroupUnread() | LeadershipLost() | ConsumerClosed():
                raise AssertionError(event)
            case _:
                assert_never(event)

    # moves ------------------------------------------------------------------------------------------------------------
    def _halt(self, operation_id: str) -> None:
        move = self._move
        if move is None or move.operation_id != operation_id:
            self._assigned(self.assignment.handle(assigning.TakenBack()))
            move = self._move = GroupMove(operation_id, self.assignment.generation)
            self._is_dirty = True
        self._outbox.append(Resumed(operation_id) if move.is_over else Halted(operation_id, move.generation))

    def _resume(self, operation_id: str, moved: Mapping[int, Moved]) -> None:
        move = self._move
        if move is None or move.operation_id != operation_id:
            return
        if not move.is_over:
            self._move = replace(move, is_over=True)
            self._is_dirty = True
            for segment_id, one in sorted(moved.items()):
                kind = draining.Drained if one.is_drained else draining.Refilled
                self.drain.handle(kind(segment_id, one.rewinds))
            self._assigned(self.assignment.handle(assigning.Vacated()))
            self._assigned(self.assignment.handle(assigning.SegmentsChanged(self.drain.open, self.drain.drained)))
        self._outbox.append(Resumed(operation_id))

    def _progressed(self, consumer: str, report: Report) -> list[Effect]:
        if self._layout is None or report.segment_id not in self._layout:
            return []
        if self.assignment.holder(report.segment_id) != consumer:
            return []  # it was given to another one
        if report.completed:
            self.progress.forget(report.segment_id)
            self._drained(self.drain.handle(draining.Drained(report.segment_id)))
        elif report.reached is not None and self.progress.note(report.segment_id, report.reached):
            self._has_news = True
            return self._save_progress()
        return []

    def _save_progress(self) -> list[Effect]:
        """With whatever is written next; by itself not more often than is said."""
        due_ms = self._progress_saved_ms + PROGRESS_MS
        if not self._has_news or self._is_progress_due:
            return []
        if self._now_ms < due_ms:
            self._is_progress_due = True
            return [SaveProgressAt(due_ms)]
        self._is_dirty, self._progress_saved_ms = True, self._now_ms
        return []

    def _seated(self, effects: list[seating.Effect]) -> list[Effect]:
        now: list[Effect] = []
        for effect in effects:
            match effect:
                case seating.SaveSessions():
                    self._is_dirty = True
                case seating.Arrived(name) if name in self._closing:
                    self._closing.discard(name)  # back before it was sent away: it keeps what it had
                    self._assigned(self.assignment.handle(assigning.Renewed(name)))
                case seating.Arrived(name):
                    self._assigned(self.assignment.handle(assigning.Joined(name)))
                case seating.Renew(name):
                    self._assigned(self.assignment.handle(assigning.Renewed(name)))
                case seating.Departed(name, reason):
                    if reason == seating.LEFT:
                        self._assigned(self.assignment.handle(assigning.Left(name)))
                    else:
                        self._closing.add(name)
                        self._outbox.append(CloseConsumer(name, None, self.assignment.generation + 1))
                case Welcome(name, connection):
                    self._outbox.append(effect)
                    mine = self.assignment.assigned(name)
                    self._outbox.append(Push(connection, name, mine.generation, mine.segment_ids))
                case WakeAt():
                    now.append(effect)
                case Fence() | Refuse():
                    self._outbox.append(effect)
                case _:
                    assert_never(effect)
        return now

    def _drained(self, effects: list[draining.Effect]) -> None:
        for effect in effects:
            match effect:
                case draining.Open() if self.is_halted:
                    pass  # what is open then, `_resume` finds
                case draining.Open(segments, finished):
                    self._assigned(self.assignment.handle(assigning.SegmentsChanged(segments, finished)))
                case draining.SaveDrained():
                    self._is_dirty = True
                case _:
                    assert_never(effect)

    def _assigned(self, effects: list[assigning.Effect]) -> None:
        for effect in effects:
            match effect:
                case assigning.Save():
                    self._is_dirty = True
                case assigning.Assign(consumer, generation, segment_ids):
                    self._outbox.append(Push(-1, consumer, generation, segment_ids))
                case AwaitRelease():
                    self._outbox.append(effect)
                case assigning.Evict():
                    pass  # it was closed before: that is what ConsumerClosed says
                case _:
                    assert_never(effect)

    def _step_down(self, reason: str) -> list[Effect]:
        self._is_over = True
        return [StepDown(reason)]
