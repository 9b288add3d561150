"""State machine of one ordered subscription's group: sessions, drain tracker and assignment in one record. Never
awaits.

**Durable first.** Effects wait in the outbox until the record with their cause is saved. Saves run one at a time;
changes during a save go into the next one. A new leader finds members, assignment and drained segments in the record,
so it revokes nothing: each member gets a new grace period.

**Closing.** A consumer that does not release in time, or whose grace period is over, may still read somewhere. The
segment owners close it first (`CloseConsumer`), then the segment is assigned to another consumer. Owners admit
consumers by generation (`broker/segment/reader_fence.py`). A generation is sent to an owner only if it is at most
`durable + 1`; a new leader starts at `durable + 1`, so it never issues a generation that an owner already rejects.

**Seek.** A seek rewinds drained segments and their descendants. To keep a parent before its children, all segments are
revoked first (`Halt`), then the owners move the cursors and fence the former readers, and only after all of them have
confirmed are the open segments assigned (`Resume`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from anabranch.controller.events import Halt, Halted, LeadershipLost, Resume, Resumed, StepDown, Version
from anabranch.controller.group import assignment as assigning
from anabranch.controller.group import consumer_sessions as sessions
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group.assignment import Assignment, AwaitRelease
from anabranch.controller.group.assignment_record import AssignmentRecord
from anabranch.controller.group.checkpoint_progress import Progress, Report
from anabranch.controller.group.consumer_sessions import (
    Fence,
    Refuse,
    Sessions,
    WakeAt,
    Welcome,
)
from anabranch.controller.group.continuation import followed
from anabranch.controller.group.drain_tracker import DrainTracker
from anabranch.controller.group.group_events import (
    AskDrained,
    CloseConsumer,
    ConsumerClosed,
    DurableEffect,
    Effect,
    Event,
    GroupDoubtful,
    GroupSaved,
    GroupSeen,
    GroupUnread,
    ProgressDue,
    Progressed,
    Push,
    ReadGroup,
    ReleaseOverdue,
    SaveGroup,
    SaveProgressAt,
)
from anabranch.controller.group.group_record import GroupMove, GroupRecord
from anabranch.controller.group.sharing import shared
from anabranch.controller.segment_host import Moved
from anabranch.model.layout import Layout

PROGRESS_MS = 200
"""Minimum time between two writes that contain only progress."""


class GroupState:
    """For one ordered subscription and one leader term."""

    def __init__(
        self, subscription_incarnation: str, term: int, *, first_generation: int = 0, grace_ms: int = sessions.GRACE_MS
    ) -> None:
        """`first_generation` is above all generations of former incarnations of the subscription."""
        self._subscription_incarnation, self._term, self._grace_ms = subscription_incarnation, term, grace_ms
        self._first_generation = first_generation
        self._now_ms = 0
        self._version: Version | None = None
        self._saving: GroupRecord | None = None
        self._is_dirty = False
        self._is_ready = False  # the leader's term is in the record
        self._is_over = False
        self._layout: Layout | None = None
        self._has_buckets = False  # some segment can be shared
        self._closing: set[str] = set()  # members past their grace period, being closed everywhere
        self._waiting: list[Event] = []  # arrived before the record was read
        self._outbox: list[DurableEffect] = []  # emitted after the next save
        self._leaving: list[DurableEffect] = []  # emitted after the running save
        self.sessions = Sessions(grace_ms=grace_ms)
        self.drain = DrainTracker()
        self.assignment = Assignment()
        self.progress = Progress()
        self._move: GroupMove | None = None
        self._has_progress = False  # progress that is not written yet
        self._is_progress_due = False  # a ProgressDue will come
        self._progress_saved_ms = -PROGRESS_MS

    def begin(self) -> list[Effect]:
        return [ReadGroup()]

    @property
    def is_ready(self) -> bool:
        """The record has this leader's term, so events are handled at once."""
        return self._is_ready

    @property
    def has_layout(self) -> bool:
        return self._layout is not None

    @property
    def is_halted(self) -> bool:
        return self._move is not None and not self._move.is_over

    @property
    def waiting(self) -> dict[int, tuple[int, ...]]:
        """The segments that wait until their ancestors are drained, with these. Followed segments do not wait."""
        if not self.drain.has_blocked:
            return {}
        drained, layout = self.drain.drained, self.drain.layout
        blocked = (one for one in layout.segments if one not in drained and one not in self.assignment.following)
        found = {one: tuple(sorted(layout.ancestors(one) - drained)) for one in sorted(blocked)}
        return {one: ancestors for one, ancestors in found.items() if ancestors}

    @property
    def void_below(self) -> int:
        """Messages read under a lower generation were read before the last seek; their acks do not count."""
        return 0 if self._move is None else self._move.generation

    @property
    def saves_due(self) -> int:
        """Number of saves after which all changes so far are durable. Valid when ready."""
        return (self._saving is not None) + (self._is_dirty or self._has_progress)

    def record(self) -> GroupRecord:
        return GroupRecord(
            self._subscription_incarnation,
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
                effects = self._live(event)
                self._follow()
                return effects + self._flush()

    # the record -------------------------------------------------------------------------------------------------------
    def _seen(self, record: GroupRecord | None, version: Version | None) -> list[Effect]:
        if record is not None and record.leader_term > self._term:
            return self._step_down(f"the leader of term {record.leader_term} has written")
        self._version = version
        if self._is_ready:  # only this leader can have written since: either its write is there, or it is not
            assert self._saving is not None
            if record == self._saving and version is not None:
                return self._saved(version)
            return [SaveGroup(self._saving, version)]
        if record is None or record.subscription_incarnation != self._subscription_incarnation:
            record = GroupRecord(self._subscription_incarnation, assignment=AssignmentRecord(self._first_generation))
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
            for name in sorted(self.assignment.members - self.sessions.names):  # its session ended before it was closed
                self._closing.add(name)
                effects.append(CloseConsumer(name, None, self.assignment.generation + 1))
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                effects += self._live(event)
                self._follow()
        return effects + self._flush()

    def _flush(self) -> list[Effect]:
        """Emits the outbox if there is nothing to save; otherwise starts a save, one at a time."""
        if self._saving is not None:
            return []
        if not self._is_dirty:
            ready, self._outbox = self._outbox, []
            return [*self._addressed(ready)]
        self._is_dirty = self._has_progress = False
        self._leaving, self._outbox = self._outbox, []
        self._saving = self.record()
        return [SaveGroup(self._saving, self._version)]

    def _addressed(self, effects: list[DurableEffect]) -> Iterable[DurableEffect]:
        """Readdresses pushes to the sessions' current connections; a push without a connection is dropped."""
        for one in effects:
            if isinstance(one, Push):
                connection = self.sessions.connection(one.consumer)
                if connection is not None:
                    yield replace(one, connection=connection)
            else:
                yield one

    # events -----------------------------------------------------------------------------------------------------------
    def _live(self, event: Event) -> list[Effect]:
        match event:
            case draining.LayoutChanged(layout):
                is_first, self._layout = self._layout is None, layout
                self._has_buckets = any(one.entry_bucket_splits for one in layout.segments.values())
                self._drained(self.drain.handle(event))
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
            case assigning.Holding(consumer, connection=int() as connection) if not self.sessions.is_current(
                consumer, connection
            ):
                return []  # its registration was refused
            case assigning.Holding() | assigning.Released():
                self._assigned(self.assignment.handle(event))
                return []
            case ReleaseOverdue(segment_id, generation, consumer):
                is_awaited = AwaitRelease(segment_id, consumer, generation) in self.assignment.awaited()
                return [CloseConsumer(consumer, segment_id, generation)] if is_awaited else []
            case ConsumerClosed(CloseConsumer(consumer, None)):
                if consumer in self._closing:
                    self._closing.discard(consumer)
                    self._assigned(self.assignment.handle(assigning.Left(consumer)))
                return []
            case ConsumerClosed(CloseConsumer(consumer, int() as segment_id, generation)):
                self._assigned(self.assignment.handle(assigning.ReleaseTimedOut(segment_id, generation, consumer)))
                return []
            case sessions.Registered() | sessions.Disconnected() | sessions.LeftCleanly() | sessions.Ticked():
                return self._seated(self.sessions.handle(event, self._now_ms))
            case GroupSeen() | GroupSaved() | GroupDoubtful() | GroupUnread() | LeadershipLost() | ConsumerClosed():
                raise AssertionError(event)
            case _:
                assert_never(event)

    # seek and progress ------------------------------------------------------------------------------------------------
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
                self.drain.handle(kind(segment_id, one.rewind_count))
            self._assigned(self.assignment.handle(assigning.Vacated()))
            self._assigned(self.assignment.handle(assigning.SegmentsChanged(self.drain.open, self.drain.drained)))
        self._outbox.append(Resumed(operation_id))

    def _progressed(self, consumer: str, report: Report) -> list[Effect]:
        if self._layout is None or report.segment_id not in self._layout:
            return []
        if self.assignment.holder(report.segment_id) != consumer:
            return []  # it is assigned to another consumer now
        if report.completed:
            self.progress.forget(report.segment_id)
            self._drained(self.drain.handle(draining.Drained(report.segment_id)))
        elif report.reached is not None and self.progress.note(report.segment_id, report.reached):
            self._has_progress = True
            return self._save_progress()
        return []

    def _save_progress(self) -> list[Effect]:
        """Progress is written with the next save; alone, not more often than every PROGRESS_MS."""
        due_ms = self._progress_saved_ms + PROGRESS_MS
        if not self._has_progress or self._is_progress_due:
            return []
        if self._now_ms < due_ms:
            self._is_progress_due = True
            return [SaveProgressAt(due_ms)]
        self._is_dirty, self._progress_saved_ms = True, self._now_ms
        return []

    def _seated(self, effects: list[sessions.Effect]) -> list[Effect]:
        now: list[Effect] = []
        for effect in effects:
            match effect:
                case sessions.SaveSessions():
                    self._is_dirty = True
                case sessions.Arrived(name) if name in self._closing:
                    self._closing.discard(name)  # it returned before it was closed, and keeps its segments
                    self._assigned(self.assignment.handle(assigning.Renewed(name)))
                case sessions.Arrived(name):
                    self._assigned(self.assignment.handle(assigning.Joined(name)))
                case sessions.Renew(name):
                    self._assigned(self.assignment.handle(assigning.Renewed(name)))
                case sessions.Departed(name, reason):
                    if reason == sessions.LEFT:
                        self._assigned(self.assignment.handle(assigning.Left(name)))
                    else:
                        self._closing.add(name)
                        self._outbox.append(CloseConsumer(name, None, self.assignment.generation + 1))
                case Welcome(name, connection):
                    self._outbox.append(effect)
                    mine = self.assignment.assigned(name)
                    self._outbox.append(self._push(connection, mine))
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
                    pass  # `_resume` assigns what is open then
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
                case assigning.Assign():
                    self._outbox.append(self._push(-1, effect))
                case AwaitRelease():
                    self._outbox.append(effect)
                case assigning.Evict():
                    pass  # ConsumerClosed came first: it is closed already
                case _:
                    assert_never(effect)

    def _push(self, connection: sessions.Connection, mine: assigning.Assign) -> Push:
        followed = [one for one in mine.segment_ids if one in self.assignment.following]
        after = {one: tuple(sorted(self.drain.layout.ancestors(one) - self.drain.drained)) for one in followed}
        return Push(connection, mine.consumer, mine.generation, mine.segment_ids, after, self._buckets(mine))

    def _buckets(self, mine: assigning.Assign) -> dict[int, tuple[int, ...]]:
        """Clients that can share a segment read it by buckets also while they have all of them."""
        if self._layout is None or not self._has_buckets or mine.consumer not in self.sessions.sharing:
            return {}
        segments = [self._layout[one] for one in mine.segment_ids if one in self._layout]
        return {
            one.segment_id: mine.buckets.get(one.segment_id, tuple(range(len(one.entry_bucket_splits) + 1)))
            for one in segments
            if one.entry_bucket_splits
        }

    def _follow(self) -> None:
        """Brings followed and shared segments in line with what this event has changed."""
        if self._layout is None or self.is_halted:
            return
        before = self.assignment.following
        if self.drain.has_blocked or before:
            able = self.sessions.continuing
            if self._has_buckets:  # what a client was handed of a segment tells nothing when it reads by buckets
                able -= self.sessions.sharing
            now = followed(self.drain.layout, self.drain.drained, self.assignment, able) if able else {}
            if now != before:
                self._renew(assigning.Followed(now, self.drain.drained))
        able = self.sessions.sharing
        if self.assignment.shares or (able and self._has_buckets):
            closing = self.assignment.members - self.sessions.names  # they keep their shares until they are closed
            readers = {name for one in self.assignment.shares.values() for name in one}
            shares = shared(self._layout, self.assignment, able | (closing & readers))
            if shares != self.assignment.shares:
                self._renew(assigning.Shared(shares))

    def _renew(self, event: assigning.Followed | assigning.Shared) -> None:
        effects = self.assignment.handle(event)
        renewed = {effect.consumer for effect in effects if isinstance(effect, assigning.Assign)}
        self._outbox = [
            one for one in self._outbox if not (isinstance(one, Push) and one.consumer in renewed)
        ]  # replaced by a newer one
        self._assigned(effects)

    def _step_down(self, reason: str) -> list[Effect]:
        self._is_over = True
        return [StepDown(reason)]
