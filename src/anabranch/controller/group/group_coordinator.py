"""Coordinator of one ordered subscription: the asyncio shell around `GroupState`. Performs its effects and holds the
links of connected consumers.

A consumer is connected by one `ConsumerLink`. A registration is answered together with the first assignment, once that
is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import count
from typing import assert_never
from weakref import proxy

from anabranch.controller import segment_host as host
from anabranch.controller.events import Halt, Halted, NotLeading, Resume, Resumed, StepDown
from anabranch.controller.group import assignment as assigning
from anabranch.controller.group import consumer_sessions as sessions
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group import group_events as grouping
from anabranch.controller.group.assignment import AwaitRelease
from anabranch.controller.group.checkpoint_progress import Report
from anabranch.controller.group.group_state import GroupState
from anabranch.controller.group.implicit_leave import ImplicitLeaveDetector
from anabranch.controller.group.owner_requests import SegmentOwners, together
from anabranch.controller.group.retention_holds import Holds
from anabranch.controller.group.stall_watch import StallWatch
from anabranch.controller.group.topic_leader import TopicLeader
from anabranch.controller.interface import AssignedSegments, AssignmentListener
from anabranch.controller.record_store import RecordStore
from anabranch.controller.records.subscription_registry import Subscription
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import SegmentRef
from anabranch.model.errors import Error
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS

log = get_logger(__name__)

GRANT_SECONDS = 2.0
"""A Pulsar client waits at most this long for its assignment while the owners of its segments confirm the grant."""


class ConsumerLink:
    """One connection of a registered consumer. Implements `interface.ConsumerRegistration`."""

    def __init__(self, coordinator: GroupCoordinator, number: int, consumer: str, listener: AssignmentListener) -> None:
        self._coordinator = coordinator
        self.number, self.consumer, self.listener = number, consumer, listener
        self.joining: asyncio.Future[AssignedSegments] = asyncio.get_running_loop().create_future()
        self.assignment: AssignedSegments | None = None  # the last one that was, or is about to be, sent
        self.is_granting = False  # `assignment` is sent when the owners have confirmed the grant
        self.leave_detector = ImplicitLeaveDetector()
        self._is_ended = False

    @property
    def is_joining(self) -> bool:
        """The registration is not answered yet."""
        return not self.joining.done()

    def send(self, assignment: AssignedSegments) -> None:
        """The first assignment answers the registration."""
        if self.is_joining:
            self.joining.set_result(assignment)
        else:
            self.listener.assigned(assignment)

    def refuse(self, error: Error) -> None:
        if self.is_joining:
            self.joining.set_exception(error)
            self.joining.exception()  # marks it as retrieved: the caller may be gone

    def end(self, error: Error) -> None:
        if not self._is_ended:
            self._is_ended = True
            self.listener.ended(error)

    def released(self, segment_ids: Iterable[int], generation: int) -> None:
        self._coordinator.released(self, segment_ids, generation)

    async def progressed(self, reports: Iterable[Report]) -> None:
        await self._coordinator.progressed(self, reports)

    async def leave(self) -> None:
        await self._coordinator.leave(self)

    def disconnected(self) -> None:
        self._coordinator.disconnected(self)


class GroupCoordinator:
    """For one incarnation of a subscription, during one leader term."""

    def __init__(
        self, leader: TopicLeader, records: RecordStore, subscription: Subscription, record: TopicRecord
    ) -> None:
        self.subscription = subscription
        self.subscription_incarnation = subscription.operation_id
        self.record = record
        self._leader, self._records = leader, records
        self._incarnation = record.incarnation
        self.group = GroupState(
            self.subscription_incarnation,
            leader.term,
            first_generation=subscription.first_generation,
            grace_ms=int(leader.settings.session_grace_seconds * 1000),
        )
        me = proxy(self)  # the parts end with the coordinator; a reference to it would be a cycle
        self._owners = SegmentOwners(
            leader, subscription.name, record.incarnation, lambda: me.record.segments, lambda: me.is_over
        )
        self._holds = Holds(self.group, lambda: me.record.segments, self._owners.hold, leader.clock)
        self._stalls = StallWatch(
            self.group,
            subscription.name,
            self._owners.ref,
            leader.measure,
            leader.clock,
            lambda: me.is_over,
        )
        self._numbers = count(1)
        self._links: dict[int, ConsumerLink] = {}  # by number
        self._joining: set[ConsumerLink] = set()  # registrations that are not answered, also those that were fenced
        self._owner_epochs: dict[int, int] = {}  # of undrained segments, when last looked at
        self._saves = 0  # group records that are durable
        self._saved = asyncio.Event()
        self._failures = 0
        self.is_over = False

    @property
    def has_sessions(self) -> bool:
        return bool(self.group.sessions.names)

    def start(self) -> None:
        self._perform(self.group.begin())
        self._deliver(draining.LayoutChanged(self.record.layout))
        if not self.subscription.kind.has_cursors:
            self._holds.changed()
            self._leader.spawn(self._run_holds(), "holds")

    async def _run_holds(self) -> None:
        """Refers to the coordinator as long as its part runs."""
        await self._holds.run()

    def end(self, error: Error) -> None:
        """Stops the group: pending registrations are refused, connected consumers are notified. Safe to repeat."""
        self.is_over = True
        self._holds.end()
        for link in tuple(self._joining):
            link.refuse(error)
        self._saved.set()
        for link in tuple(self._links.values()):
            link.end(error)

    # requests of consumers --------------------------------------------------------------------------------------------
    async def register(
        self,
        consumer: str,
        listener: AssignmentListener,
        held: Iterable[int],
        generation: int | None,
        *,
        continues: bool = False,
        instance: int | None = None,
        shares: bool = False,
    ) -> tuple[AssignedSegments, ConsumerLink]:
        """Returns when the consumer's assignment is durable."""
        link = ConsumerLink(self, next(self._numbers), consumer, listener)
        self._links[link.number] = link
        self._joining.add(link)
        is_new = generation is None and listener.reports_releases  # Pulsar's clients never send a generation
        continues = continues and self.subscription.kind.has_cursors
        shares = shares and self.subscription.kind.has_cursors
        self._deliver(sessions.Registered(consumer, link.number, is_new, continues, instance, shares))
        if generation is not None:
            self._deliver(assigning.Holding(consumer, generation, frozenset(held), link.number))
        try:
            async with asyncio.timeout(self._leader.settings.call_seconds):
                return await asyncio.shield(link.joining), link
        except TimeoutError as error:
            self.disconnected(link)
            raise NotLeading(f"the registration of {consumer} could not be stored in time") from error
        except BaseException:  # the caller never gets the link, so it cannot report the end of its connection
            self.disconnected(link)
            raise
        finally:
            self._joining.discard(link)

    def disconnected(self, link: ConsumerLink) -> None:
        self._forget(link)
        self._deliver(sessions.Disconnected(link.number))

    async def leave(self, link: ConsumerLink) -> None:
        """Returns when that is durable."""
        self._deliver(sessions.LeftCleanly(link.consumer, link.number))
        self._forget(link)
        await self._wait_saved()

    def released(self, link: ConsumerLink, segment_ids: Iterable[int], generation: int) -> None:
        if self._is_current(link):
            for one in segment_ids:
                self._deliver(assigning.Released(link.consumer, one, generation))

    async def progressed(self, link: ConsumerLink, reports: Iterable[Report]) -> None:
        """Progress of a checkpoint group's member. Returns when that is durable. Raises SessionTaken."""
        if not self._is_current(link):
            raise sessions.taken(link.consumer)
        for one in reports:
            self._deliver(grouping.Progressed(link.consumer, one))
        self._holds.changed()
        await self._wait_saved()

    def _is_current(self, link: ConsumerLink) -> bool:
        return link.number in self._links and self.group.sessions.is_current(link.consumer, link.number)

    async def _wait_saved(self) -> None:
        """Waits until all changes so far are stored; returns at once if there are none."""
        try:
            async with asyncio.timeout(self._leader.settings.call_seconds):
                while not self.group.is_ready and not self.is_over:
                    await self._next_save()
                wanted = self._saves + self.group.saves_due
                while self._saves < wanted and not self.is_over:
                    await self._next_save()
        except TimeoutError as error:
            raise NotLeading("the change could not be stored in time") from error
        if self.is_over:
            raise NotLeading("another broker leads the topic now")

    async def _next_save(self) -> None:
        self._saved.clear()
        await self._saved.wait()

    # events -----------------------------------------------------------------------------------------------------------
    def layout_changed(self, record: TopicRecord) -> None:
        self.record = record
        self._deliver(draining.LayoutChanged(record.layout))
        self._note_owners()
        self._holds.changed()

    def placement_changed(self) -> None:
        """The owner of a segment reports its drain. If the segment has moved, the former owner may have crashed before
        it reported, so the new owner is asked."""
        before = dict(self._owner_epochs)
        self._note_owners()
        moved = [one for one, owner_epoch in self._owner_epochs.items() if before.get(one, owner_epoch) != owner_epoch]
        if moved and self.subscription.kind.has_cursors:
            self._leader.spawn(self._owners.ask_drained(sorted(moved), self._on_drained), "ask drained again")

    def _note_owners(self) -> None:
        if not self.group.has_layout:
            return
        self._owner_epochs = self._owners.owner_epochs(self.group.drain.undrained)

    def _on_drained(self, segment_id: int, rewind_count: int) -> None:
        self._deliver(draining.Drained(segment_id, rewind_count))

    def on_segment_event(self, event: host.Drained | host.Refilled | host.ReaderLeft) -> None:
        if isinstance(event, host.ReaderLeft):
            self._on_reader_left(event.segment.segment_id, event.reader)
            return
        kind = draining.Drained if isinstance(event, host.Drained) else draining.Refilled
        self._deliver(kind(event.segment.segment_id, event.rewind_count))

    def on_seek(self, event: Halt | Resume) -> None:
        self._deliver(event)

    def _on_reader_left(self, segment_id: int, reader: str) -> None:
        """A client without a LEAVE command closed its reader of this segment."""
        consumer = reader.removesuffix(f"-seg-{segment_id}")
        for link in tuple(self._links.values()):
            if link.consumer != consumer or link.listener.reports_releases:
                continue
            if link.leave_detector.on_closed(segment_id):
                self._forget(link)
                self._deliver(sessions.LeftCleanly(consumer, link.number))

    def _deliver(self, event: grouping.Event) -> None:
        if not self.is_over and not self._leader.is_over:
            self._perform(self.group.handle(event, self._leader.clock.now_ms()))
            if self.group.drain.has_blocked and self.subscription.kind.has_cursors and not self._stalls.is_running:
                self._stalls.is_running = True
                self._leader.spawn(self._stalls.run(), "watch stalls")
            self._leader.group_changed()

    def _perform(self, effects: list[grouping.Effect]) -> None:
        for effect in effects:
            if self.is_over or self._leader.is_over:
                return
            self._do(effect)

    def _do(self, effect: grouping.Effect) -> None:
        leader = self._leader
        match effect:
            case grouping.ReadGroup():
                leader.spawn(self._load(), "read group")
            case grouping.SaveGroup():
                leader.spawn(self._save(effect), "save group")
            case grouping.AskDrained(segment_ids):
                self._note_owners()
                if self.subscription.kind.has_cursors:
                    leader.spawn(self._owners.ask_drained(segment_ids, self._on_drained), "ask drained")
            case grouping.Push(connection, _, generation, segment_ids, after, buckets):
                self._send_assignment(connection, self._assigned(generation, segment_ids, after, buckets))
            case AwaitRelease(segment_id, holder, generation):
                if self._hands_over_by_closing(holder):
                    self._later(0, assigning.Released(holder, segment_id, generation))
                    leader.spawn(self._close_if_kept(holder, segment_id, generation), "close consumer")
                else:
                    self._later(leader.settings.drain_seconds, grouping.ReleaseOverdue(segment_id, generation, holder))
            case Halted() | Resumed():
                leader.on_group_answer(effect)
            case grouping.SaveProgressAt(at_ms):
                self._later(max(0, at_ms - leader.clock.now_ms()) / 1000, grouping.ProgressDue())
            case grouping.CloseConsumer():
                leader.spawn(self._close(effect), "close consumer")
            case sessions.WakeAt(at_ms):
                self._later(max(0, at_ms - leader.clock.now_ms()) / 1000, sessions.Ticked())
            case sessions.Welcome():
                pass  # the assignment follows and answers the registration
            case sessions.Fence(_, connection, error):
                self._fence(self._links.get(connection), error)
            case sessions.Refuse(_, connection, error):
                self._refuse(self._links.get(connection), error)
            case StepDown(reason):
                leader.stop_leading(reason)
            case _:
                assert_never(effect)

    def _hands_over_by_closing(self, holder: str) -> bool:
        """Pulsar's clients do not report a release: they close their exclusive reader, and until then the segment's
        owner admits no other. So the next consumer is assigned at once, and retries until the owner admits it."""
        links = [link for link in self._links.values() if link.consumer == holder]
        reports = any(link.listener.reports_releases for link in links)
        return self.subscription.kind.has_cursors and bool(links) and not reports

    def _later(self, seconds: float, event: grouping.Event) -> None:
        async def wait() -> None:
            await self._leader.clock.sleep(seconds)
            self._deliver(event)

        self._leader.spawn(wait(), "wait")

    # effects ----------------------------------------------------------------------------------------------------------
    async def _load(self) -> None:
        event = await self._records.load_group(self._leader.topic, self._incarnation, self.subscription.name)
        if isinstance(event, grouping.GroupUnread):
            self._failures += 1
            await self._leader.clock.sleep(RETRY_DELAYS.retry_after(self._failures, 0.5))
        else:
            self._failures = 0
        self._deliver(event)

    async def _save(self, effect: grouping.SaveGroup) -> None:
        event: grouping.GroupSaved | grouping.GroupDoubtful = grouping.GroupDoubtful()
        if not effect.record.sessions.joined_at_ms or await self._leader.mark_pending():
            event = await self._records.save_group(
                self._leader.topic, self._incarnation, self.subscription.name, effect
            )
        if isinstance(event, grouping.GroupSaved):
            self._saves += 1
            self._failures = 0
        else:
            self._failures += 1
            await self._leader.clock.sleep(RETRY_DELAYS.retry_after(self._failures, 0.5))
        self._deliver(event)
        self._saved.set()

    async def _close(self, effect: grouping.CloseConsumer) -> None:
        """Closes the consumer at the owner of one segment, or of all segments that it may hold, until each confirms.

        Readers of checkpoint groups have no cursor at the owners, so there is nothing to close: their reports count
        only while they hold the segment.
        """
        segments: list[int] = []
        if not self.subscription.kind.has_cursors:
            pass
        elif effect.segment_id is not None:
            segments = [effect.segment_id]
        else:
            stored = self.group.assignment.record()
            segments = list(stored.owned.get(effect.consumer, ()))
            segments += [one for one, leaving in stored.leaving.items() if leaving.holder == effect.consumer]
            segments += [one for one, follower in stored.following.items() if follower == effect.consumer]
            segments += [one for one, readers in stored.shares.items() if effect.consumer in readers]
            segments += [one for one, name in stored.losing if name == effect.consumer]
            segments = sorted(set(segments))
        await self._owners.close(effect.consumer, segments, effect.generation)
        self._deliver(grouping.ConsumerClosed(effect))

    async def _close_if_kept(self, consumer: str, segment_id: int, generation: int) -> None:
        """Closes a Pulsar client that keeps a revoked segment, because its successor does not retry for ever."""
        await self._leader.clock.sleep(self._leader.settings.drain_seconds)
        assignment = self.group.assignment
        has_it_again = consumer in assignment.members and segment_id in assignment.assigned(consumer).segment_ids
        if not has_it_again:
            await self._owners.close(consumer, [segment_id], generation)

    async def _grant(self, link: ConsumerLink, segment_id: int, generation: int) -> None:
        """Names the consumer to the segment's owner, because the client cannot send its generation itself. Retried
        while the consumer has the segment."""

        def request(ref: SegmentRef) -> host.GrantReader | None:
            sent = link.assignment
            if sent is None or all(one.segment_id != segment_id for one in sent.segments):
                return None
            return host.GrantReader("grant", ref, self.subscription.name, link.consumer, generation)

        await self._owners.retry_until_confirmed(segment_id, request)

    def _assigned(
        self,
        generation: int,
        segment_ids: Iterable[int],
        after: Mapping[int, tuple[int, ...]] | None = None,
        buckets: Mapping[int, tuple[int, ...]] | None = None,
    ) -> AssignedSegments:
        found = (self.record.segments.get(one) for one in segment_ids)
        segments = tuple(segment for segment in found if segment is not None)
        known = self.group.progress.reached
        reached = {one.segment_id: known[one.segment_id] for one in segments if one.segment_id in known}
        return AssignedSegments(
            self._leader.topic,
            self._incarnation,
            self.record.epoch,
            generation,
            segments,
            reached,
            self.group.void_below,
            after or {},
            buckets or {},
        )

    def _send_assignment(self, number: int, assigned: AssignedSegments) -> None:
        link = self._links.get(number)
        if link is None or (link.assignment == assigned and (not link.is_joining or link.is_granting)):
            return
        before, link.assignment = link.assignment, assigned
        link.leave_detector.on_assigned(one.segment_id for one in assigned.segments)
        if link.listener.reports_releases or not self.subscription.kind.has_cursors:
            link.send(assigned)
            return
        known = frozenset(() if before is None else (one.segment_id for one in before.segments))
        granted = asyncio.Event()
        link.is_granting = True
        new = [one.segment_id for one in assigned.segments if one.segment_id not in known]
        self._leader.spawn(self._grant_all(link, new, assigned.generation, granted), "grant")
        self._leader.spawn(self._send_granted(link, assigned, granted), "send assignment")

    async def _grant_all(
        self, link: ConsumerLink, segment_ids: list[int], generation: int, granted: asyncio.Event
    ) -> None:
        await together(lambda one: self._grant(link, one, generation), segment_ids)
        granted.set()

    async def _send_granted(self, link: ConsumerLink, assigned: AssignedSegments, granted: asyncio.Event) -> None:
        """Sends the assignment after the grants. If an owner does not confirm in time, the client may have to retry."""
        try:
            async with asyncio.timeout(GRANT_SECONDS):
                await granted.wait()
        except TimeoutError:
            log.info(
                "assignment sent before segment owners confirmed it",
                extra={"topic": str(self._leader.topic), "consumer": link.consumer},
            )
        if link.assignment is assigned:  # otherwise a newer one follows
            link.is_granting = False
            link.send(assigned)

    def _fence(self, link: ConsumerLink | None, error: Error | None) -> None:
        if link is None:
            return
        self._forget(link)
        link.listener.assigned(self._assigned(self.group.assignment.generation, ()))
        if error is not None:
            log.warning(
                "consumer was replaced by another one of its name",
                extra={
                    "topic": str(self._leader.topic),
                    "subscription": self.subscription.name,
                    "consumer": link.consumer,
                },
            )
            link.end(error)

    def _refuse(self, link: ConsumerLink | None, error: Error) -> None:
        if link is not None:
            self._forget(link)
            link.refuse(error)

    def _forget(self, link: ConsumerLink) -> None:
        """Nothing more is sent through this link."""
        self._links.pop(link.number, None)
        link.assignment, link.is_granting = None, False
