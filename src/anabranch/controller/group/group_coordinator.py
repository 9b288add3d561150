"""The consumers of one ordered subscription, led: the shell around `GroupState`. Does its effects, knows who is
connected.

A consumer's connection is a `ConsumerLink`, numbered here; what a consumer is told goes through it. Whoever registers
is answered together with its first assignment, once that is durable. Must not know frames or sockets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, assert_never

from anabranch.controller import segment_host as host
from anabranch.controller.group import assignment as assigning
from anabranch.controller.group import consumer_sessions as seating
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group import group_events as grouping
from anabranch.controller.group.assignment import AwaitRelease
from anabranch.controller.group.checkpoint_progress import Report
from anabranch.controller.group.group_state import GroupState
from anabranch.controller.group.implicit_leave import ImplicitLeaveDetector
from anabranch.controller.group.owner_requests import SegmentOwners, together
from anabranch.controller.group.retention_holds import Holds
from anabranch.controller.interface import AssignedSegments, ConsumerLink
from anabranch.controller.record_store import Records
from anabranch.controller.records.subscription_registry import Subscription
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import SegmentRef
from anabranch.controller.topic import subscription_workflow as registering
from anabranch.controller.topic.operation_events import NotLeading, StepDown
from anabranch.model.errors import Error, NotAllowed
from anabranch.runtime.retry_delays import RETRY_DELAYS

if TYPE_CHECKING:
    from anabranch.controller.topic.topic_controller import TopicController

log = logging.getLogger(__name__)

GRANT_SECONDS = 2.0
"""So long a client of Pulsar waits for its assignment while the owners of its segments are told."""

_links = count(1)
"""Numbers of links: never used twice while this process lives."""


class SessionTaken(NotAllowed):
    """Another process of the consumer's name has registered since."""

    code = "consumer-fenced"


class GroupCoordinator:
    """For one life of a subscription, while one leader leads."""

    def __init__(
        self, leader: TopicController, records: Records, subscription: Subscription, record: TopicRecord
    ) -> None:
        self.subscription = subscription
        self.life = subscription.operation_id
        self.record = record
        self._leader, self._records = leader, records
        self._incarnation = record.incarnation
        self.group = GroupState(
            self.life,
            leader.term,
            first_generation=subscription.first_generation,
            grace_ms=int(leader.settings.session_grace_seconds * 1000),
        )
        self._owners = SegmentOwners(
            leader, subscription.name, record.incarnation, lambda: self.record.segments, lambda: self.is_over
        )
        self._holds = Holds(self.group, lambda: self.record.segments, self._owners.hold, leader.clock)
        self._links: dict[int, ConsumerLink] = {}
        self._names: dict[int, str] = {}
        self._owner_epochs: dict[int, int] = {}  # who owned the segments that are not drained, when we last looked
        self._pushed: dict[int, AssignedSegments] = {}  # what each link was told last
        self._granting: set[int] = set()  # links whose last assignment is told when the owners know
        self._farewells = ImplicitLeaveDetector()
        self._joining: dict[int, asyncio.Future[AssignedSegments]] = {}
        self._saves = 0  # group records that are durable
        self._saved = asyncio.Event()
        self._failures = 0
        self.is_over = False

    @property
    def has_sessions(self) -> bool:
        return bool(self.group.sessions.names)

    def start(self) -> None:
        self._perform(self.group.begin())
        self._deliver(grouping.LayoutTold(self.record.layout))
        if not self.subscription.kind.has_cursors:
            self._holds.changed()
            self._leader.spawn(self._holds.run(), "holds")

    def end(self, error: Error) -> None:
        """Nobody is told anything any more; who waits for an answer gets this one."""
        self.is_over = True
        for joining in self._joining.values():
            if not joining.done():
                joining.set_exception(error)
                joining.exception()
        self._saved.set()
        links, self._links = self._links, {}
        for link in links.values():
            link.ended(error)

    # what consumers say -----------------------------------------------------------------------------------------------
    async def register(
        self, name: str, link: ConsumerLink, number: int, held: Iterable[int], generation: int | None
    ) -> AssignedSegments:
        """Its assignment, durable. `number` is what `new_link` gave for this link."""
        joining: asyncio.Future[AssignedSegments] = asyncio.get_running_loop().create_future()
        before = self._joining.get(number)
        if before is not None and not before.done():
            before.cancel()
        self._links[number], self._names[number], self._joining[number] = link, name, joining
        is_new = generation is None and link.says_released  # clients of Pulsar never say one
        self._deliver(seating.Registered(name, number, is_new))
        if generation is not None:
            self._deliver(assigning.Holding(name, generation, frozenset(held)))
        try:
            async with asyncio.timeout(self._leader.settings.call_seconds):
                return await asyncio.shield(joining)
        except TimeoutError as error:
            self.disconnected(number)
            raise NotLeading(f"the registration of {name} could not be stored in time") from error
        except BaseException:  # nobody is there any more who could say that this connection is gone
            self.disconnected(number)
            raise
        finally:
            if self._joining.get(number) is joining:
                del self._joining[number]

    def disconnected(self, number: int) -> None:
        self._forget(number)
        self._deliver(seating.Disconnected(number))

    async def leave(self, name: str, number: int | None) -> None:
        """Returns when that is durable."""
        self._deliver(seating.LeftCleanly(name, number))
        if number is not None:
            self._forget(number)
        await self._wait_saved()

    def released(self, number: int, segment_ids: Iterable[int], generation: int) -> None:
        name = self._names.get(number)
        if name is not None and self.group.sessions.is_current(name, number):
            for one in segment_ids:
                self._deliver(assigning.Released(name, one, generation))

    async def progressed(self, number: int, reports: Iterable[Report]) -> None:
        """Of a checkpoint group: how far a member is. Returns when that is durable. Raises SessionTaken."""
        name = self._names.get(number)
        if name is None or not self.group.sessions.is_current(name, number):
            raise SessionTaken("another process has this consumer's name and session now")
        for one in reports:
            self._deliver(grouping.Progressed(name, one))
        self._holds.changed()
        await self._wait_saved()

    async def _wait_saved(self) -> None:
        """Until what was said is stored; nothing is waited for when it changed nothing."""
        try:
            async with asyncio.timeout(self._leader.settings.call_seconds):
                while not self.group.is_ready and not self.is_over:
                    await self._next_save()
                wanted = self._saves + self.group.saves_due
                while self._saves < wanted and not self.is_over:
                    await self._next_save()
        except TimeoutError as error:
            raise NotLeading("what was said could not be stored in time") from error
        if self.is_over:
            raise NotLeading("another broker leads the topic now")

    async def _next_save(self) -> None:
        self._saved.clear()
        await self._saved.wait()

    # what happens -----------------------------------------------------------------------------------------------------
    def layout_told(self, record: TopicRecord) -> None:
        self.record = record
        self._deliver(grouping.LayoutTold(record.layout))
        self._note_owners()
        self._holds.changed()

    def placement_changed(self) -> None:
        """A drain is told by who owned the segment then. Where that is another broker now, it may not have lived to:
        the next one is asked."""
        before = dict(self._owner_epochs)
        self._note_owners()
        moved = [one for one, owner_epoch in self._owner_epochs.items() if before.get(one, owner_epoch) != owner_epoch]
        if moved and self.subscription.kind.has_cursors:
            self._leader.spawn(self._owners.ask_drained(sorted(moved), self._found_drained), "ask drained again")

    def _note_owners(self) -> None:
        if not self.group.has_layout:
            return
        self._owner_epochs = self._owners.owner_epochs(self.group.drain.undrained)

    def _found_drained(self, segment_id: int, rewinds: int) -> None:
        self._deliver(draining.Drained(segment_id, rewinds))

    def heard(self, event: host.Drained | host.Refilled | host.ReaderLeft) -> None:
        if isinstance(event, host.ReaderLeft):
            self._reader_left(event.segment.segment_id, event.reader)
            return
        kind = draining.Drained if isinstance(event, host.Drained) else draining.Refilled
        self._deliver(kind(event.segment.segment_id, event.rewinds))

    def halt(self, operation_id: str) -> None:
        self._deliver(grouping.Halt(operation_id))

    def resume(self, operation_id: str, moved: Mapping[int, host.Moved]) -> None:
        found = [
            (draining.Drained if one.is_drained else draining.Refilled)(segment_id, one.rewinds)
            for segment_id, one in sorted(moved.items())
        ]
        self._deliver(grouping.Resume(operation_id, tuple(found)))

    def _reader_left(self, segment_id: int, reader: str) -> None:
        """A client that has no word for leaving closed it."""
        member = reader.removesuffix(f"-seg-{segment_id}")
        for number, name in tuple(self._names.items()):
            if name != member or self._links[number].says_released:
                continue
            if self._farewells.closed(number, segment_id):
                self._forget(number)
                self._deliver(seating.LeftCleanly(name, number))

    def _deliver(self, event: grouping.Event) -> None:
        if not self.is_over and not self._leader.is_over:
            self._perform(self.group.handle(event, self._leader.clock.now_ms()))

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
                    leader.spawn(self._owners.ask_drained(segment_ids, self._found_drained), "ask drained")
            case grouping.Push(connection, _, generation, segment_ids):
                self._push(connection, self._assigned(generation, segment_ids))
            case AwaitRelease(segment_id, holder, generation):
                if self._hands_over_by_closing(holder):
                    self._later(0, assigning.Released(holder, segment_id, generation))
                    leader.spawn(self._close_if_kept(holder, segment_id, generation), "close consumer")
                else:
                    self._later(leader.settings.drain_seconds, grouping.ReleaseOverdue(segment_id, generation))
            case grouping.Halted(operation_id, generation):
                leader.deliver(leader.subs, registering.Halted(operation_id, generation))
            case grouping.Resumed(operation_id):
                leader.deliver(leader.subs, registering.Resumed(operation_id))
            case grouping.SaveProgressAt(at_ms):
                self._later(max(0, at_ms - leader.clock.now_ms()) / 1000, grouping.ProgressDue())
            case grouping.CloseConsumer():
                leader.spawn(self._close(effect), "close consumer")
            case seating.WakeAt(at_ms):
                self._later(max(0, at_ms - leader.clock.now_ms()) / 1000, seating.Ticked())
            case seating.Welcome():
                pass  # its assignment follows: both are one answer
            case seating.Fence(_, connection):
                self._fence(connection)
            case seating.Refuse(_, connection, error):
                self._refuse(connection, error)
            case StepDown(reason):
                leader.depose(reason)
            case _:
                assert_never(effect)

    def _hands_over_by_closing(self, holder: str) -> bool:
        """Clients of Pulsar never say that they have let go: they close their exclusive reader, and until then the
        segment's owner lets nobody else in. So the next one may be told at once; it knocks until the door is open."""
        links = [self._links[number] for number, name in self._names.items() if name == holder]
        return self.subscription.kind.has_cursors and bool(links) and not any(link.says_released for link in links)

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
        if not effect.record.sessions.joined_at_ms or await self._leader.want():
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
        """At the owner of one segment, or of all that the consumer can have had; until each has confirmed it. Readers
        of checkpoint groups have no cursor there that they could move: what they say counts here, while it is theirs.
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
        await self._owners.close(effect.consumer, segments, effect.generation)
        self._deliver(grouping.ConsumerClosed(effect))

    async def _close_if_kept(self, consumer: str, segment_id: int, generation: int) -> None:
        """A client of Pulsar that was told to let go and does not: its successor knocks, but not for ever."""
        await self._leader.clock.sleep(self._leader.settings.drain_seconds)
        assignment = self.group.assignment
        has_it_again = consumer in assignment.members and segment_id in assignment.assigned(consumer).segment_ids
        if not has_it_again:
            await self._owners.close(consumer, [segment_id], generation)

    async def _grant(self, number: int, segment_id: int, generation: int) -> None:
        """The owner is told whom to let in, as long as that is so: the client cannot say it itself."""
        name, consumer = self.subscription.name, self._names.get(number)

        def request(ref: SegmentRef) -> host.GrantReader | None:
            told = self._pushed.get(number)
            is_so = told is not None and any(one.segment_id == segment_id for one in told.segments)
            return host.GrantReader("grant", ref, name, consumer, generation) if is_so and consumer else None

        await self._owners.insist(segment_id, request)

    def _assigned(self, generation: int, segment_ids: Iterable[int]) -> AssignedSegments:
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
        )

    def _push(self, number: int, assigned: AssignedSegments) -> None:
        joining, link, before = self._joining.get(number), self._links.get(number), self._pushed.get(number)
        is_joining = joining is not None and not joining.done()
        if before == assigned and (not is_joining or number in self._granting):
            return
        if link is None and not is_joining:
            return
        self._pushed[number] = assigned
        self._farewells.given(number, (one.segment_id for one in assigned.segments))
        if link is None or link.says_released or not self.subscription.kind.has_cursors:
            self._tell(number, assigned)
            return
        known = frozenset(() if before is None else (one.segment_id for one in before.segments))
        granted = asyncio.Event()
        self._granting.add(number)
        new = [one.segment_id for one in assigned.segments if one.segment_id not in known]
        self._leader.spawn(self._grant_all(number, new, assigned.generation, granted), "grant")
        self._leader.spawn(self._tell_granted(number, assigned, granted), "tell")

    def _tell(self, number: int, assigned: AssignedSegments) -> None:
        joining, link = self._joining.get(number), self._links.get(number)
        if joining is not None and not joining.done():
            joining.set_result(assigned)
        elif link is not None:
            link.assigned(assigned)

    async def _grant_all(self, number: int, segment_ids: list[int], generation: int, granted: asyncio.Event) -> None:
        await together(lambda one: self._grant(number, one, generation), segment_ids)
        granted.set()

    async def _tell_granted(self, number: int, assigned: AssignedSegments, granted: asyncio.Event) -> None:
        """A client that cannot say under which assignment it comes is named to the owners before it comes; where one
        does not answer, it may have to knock."""
        try:
            async with asyncio.timeout(GRANT_SECONDS):
                await granted.wait()
        except TimeoutError:
            log.info("told before its owners were", extra={"topic": str(self._leader.topic)})
        if self._pushed.get(number) is assigned:  # otherwise a newer one is about to be told
            self._granting.discard(number)
            self._tell(number, assigned)

    def _fence(self, number: int) -> None:
        link = self._forget(number)
        if link is not None:
            link.assigned(self._assigned(self.group.assignment.generation, ()))

    def _forget(self, number: int) -> ConsumerLink | None:
        self._names.pop(number, None)
        self._pushed.pop(number, None)
        self._granting.discard(number)
        self._farewells.forget(number)
        return self._links.pop(number, None)

    def _refuse(self, number: int, error: Error) -> None:
        joining = self._joining.get(number)
        self._forget(number)
        if joining is not None and not joining.done():
            joining.set_exception(error)
            joining.exception()


def new_link() -> int:
    return next(_links)
