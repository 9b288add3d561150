"""Performs the controller's requests for the segments that this broker owns.

Requests for one segment are performed one after another. `segment_state` lists the durable writes of each. Before the
answer is returned, ownership is checked once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import assert_never
from weakref import WeakValueDictionary

from anabranch.broker.segment.adopted_topic import adopt, adopted, release
from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.broker.segment.segment_logs import SegmentLogs
from anabranch.broker.segment.segment_state import (
    NEVER,
    OwnedSegmentState,
    check_fencing_token,
    deleted_at_ms,
    fencing_token_on,
    tombstone_properties,
)
from anabranch.broker.segment_host.ancestor_sequences import LastSequence
from anabranch.broker.segment_host.segment_listener import LocalSegmentListener
from anabranch.broker.segment_host.segment_stats import SegmentRates
from anabranch.broker.segment_host.topic_layouts import TopicLayouts
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.factory import SegmentCreation
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.controller.segment_host import (
    Adopt,
    Answer,
    ClearBacklog,
    CloseReader,
    Create,
    CreateCursor,
    Delete,
    DeleteCursor,
    DenyCursor,
    Done,
    Fence,
    FencingToken,
    GrantReader,
    Hold,
    NotPlanned,
    Release,
    Request,
    Seal,
    Seek,
    SegmentMissing,
    SegmentRef,
    SegmentStats,
    Status,
    SubscriptionEvent,
)
from anabranch.model.errors import AlreadyExists, Error, NotFound, NotReady
from anabranch.model.names import Domain, TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner


class LocalSegments:
    def __init__(
        self,
        topics: TopicRegistry,
        logs: SegmentLogs,
        listener: LocalSegmentListener,
        clock: Clock,
        layouts: TopicLayouts,
    ) -> None:
        self._topics = topics
        self._layouts = layouts
        self._clock = clock
        self._logs = logs
        self._listener = listener
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._tasks = TaskOwner("segments")
        self._rates = SegmentRates(topics.sampler, clock)

    def listen(self, callback: Callable[[SubscriptionEvent], None]) -> Callable[[], None]:
        """Every event of the segments that this broker owns."""
        return self._listener.listen(callback)

    def start(self) -> None:
        """Starts to sample rates."""
        self._tasks.spawn(self._rates.run(), "rates")

    async def stats(self, ref: SegmentRef) -> SegmentStats | None:
        """None: no such segment."""
        try:
            segment = await self._topics.segment(ref.name)
        except NotFound:
            return None
        if segment.state.ref.incarnation != ref.incarnation:
            return None
        return await self._rates.stats(segment)

    async def last_sequence(self, name: TopicName, producer: str) -> LastSequence | None:
        """Last sequence id of a producer on a local segment; None: no such segment."""
        try:
            topic = (await self._topics.segment(name)).topic
        except NotFound:
            return None
        last = LastSequence(topic.last_of(producer), topic.log.is_terminated)
        self._topics.check_here(name)
        return last

    async def close(self) -> None:
        await self._tasks.close()

    async def apply(self, fencing_token: FencingToken, request: Request) -> Answer:
        """Raises HostError, SegmentMissing, CursorMissing, and errors of storage and metadata (then the request may be
        performed); ServedElsewhere when another broker owns the segment, before or after the request.

        A request that has begun is completed even if the caller is cancelled.
        """
        task = self._tasks.spawn(self._outcome(fencing_token, request), type(request).__name__)
        if task is None:
            raise NotReady("broker is stopping")
        outcome: Answer | Error = await asyncio.shield(task)
        if isinstance(outcome, Error):
            raise outcome
        return outcome

    async def _outcome(self, fencing_token: FencingToken, request: Request) -> Answer | Error:
        try:
            return await self._apply(fencing_token, request)
        except Error as error:  # returned to the caller as an answer
            return error

    async def _apply(self, fencing_token: FencingToken, request: Request) -> Answer:
        name = request.segment.name
        async with self._locks.setdefault(name, asyncio.Lock()):
            self._topics.check_here(name)
            segment = await self._made(fencing_token, request) or await self._find(name)
            answer = await (
                self._absent(fencing_token, request) if segment is None else self._do(segment, fencing_token, request)
            )
            self._topics.check_here(name)
            if isinstance(request, Create):
                self._listener.created(name)
                if (created := self._topics.loaded(name)) is not None:
                    self._topics.activity.mark(created)  # its load is reported even if it gets no traffic
            return answer

    async def _made(self, fencing_token: FencingToken, request: Request) -> OwnedSegment | None:
        """Creates the segment with one write, without a read: as a rule it never existed. None when it exists, has a
        tombstone, or is not to be created."""
        if not isinstance(request, Create) or self._topics.loaded(request.segment.name) is not None:
            return None
        state = OwnedSegmentState(request.segment, request.operation, fencing_token)
        try:
            return await self._topics.segment(request.segment.name, SegmentCreation(state.identity(), is_first=True))
        except AlreadyExists:
            return None

    async def forget(self, name: TopicName, before_ms: int) -> bool:
        """Deletes the tombstone of a local segment that was deleted before `before_ms`; True when it was deleted."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            self._topics.check_here(name)
            if self._topics.loaded(name) is not None:
                return False
            return await self._logs.clear(name, lambda text: deleted_at_ms(text) < before_ms)

    async def delete_unnamed(self, name: TopicName) -> bool:
        """Deletes a local segment that no record names, neither in a layout nor as planned; False if one does.

        Requests for the name wait for the lock, and a plan is written before the first request for its segments. So a
        segment that the record does not name now is no part of a plan.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            self._topics.check_here(name)
            topic = await self._layouts.read(name.scalable, is_fresh=True)
            if topic is not None and topic.segment(name) is not None:
                return False
            if (await self._logs.peek(name)).exists:
                await self._topics.delete_segment(await self._topics.segment(name))
            self._topics.check_here(name)
            return True

    async def _find(self, name: TopicName) -> OwnedSegment | None:
        loaded = self._topics.loaded(name)
        if segment_of(loaded) is None and not (await self._logs.peek(name)).exists:
            return None  # only Adopt creates a partition that was never used
        if name.domain is Domain.PERSISTENT:
            return segment_of(await self._regular(name))
        return await self._topics.segment(name)

    async def _regular(self, name: TopicName) -> Topic | None:
        """The regular topic, loaded; also one that is a segment now."""
        try:
            found = await self._topics.get(name, create=False)
        except NotFound:
            return None
        return found if isinstance(found, Topic) else None

    async def _adopt(self, fencing_token: FencingToken, request: Adopt) -> Answer:
        """Only while the topic's record wants it: an undo is in the record before it releases the first partition."""
        name = request.segment.name
        record = await self._layouts.read(name.scalable, is_fresh=True)
        if record is None or (record.incarnation, record.migration) != (request.segment.incarnation, request.operation):
            raise NotPlanned(f"no migration {request.operation} of {name} is running")
        topic = await self._regular(name)
        if topic is None:
            raise NotPlanned(f"{name} does not exist")
        segment = await adopt(topic, fencing_token, request, self._clock, self._listener)
        await self._topics.adopted(topic)
        return adopted(segment, force=request.force)

    async def _absent(self, fencing_token: FencingToken, request: Request) -> Answer:
        """The segment does not exist. The fencing token is stored in a tombstone, or with the creation."""
        ref = request.segment
        if ref.name.domain is Domain.PERSISTENT:
            return await self._not_adopted(fencing_token, request)
        known = fencing_token_on((await self._logs.peek(ref.name)).properties)
        check_fencing_token(ref.name, known, fencing_token)
        if isinstance(request, Create):
            state = OwnedSegmentState(ref, request.operation, fencing_token)
            segment = await self._topics.segment(ref.name, SegmentCreation(state.identity()))
            await segment.add_cursors(request.cursors)
            return Done()
        if fencing_token > known or known == NEVER:
            await self._logs.write_tombstone(ref.name, tombstone_properties(fencing_token, self._clock.now_ms()))
        match request:
            case Fence():
                return Status(exists=False)
            case Delete() | Release() | DeleteCursor() | DenyCursor() | CloseReader() | GrantReader():
                return Done()
            case _:
                raise SegmentMissing(f"{ref} does not exist")

    async def _not_adopted(self, fencing_token: FencingToken, request: Request) -> Answer:
        match request:
            case Adopt():
                return await self._adopt(fencing_token, request)
            case Fence():
                return Status(exists=False)
            case Release() | Delete() | DeleteCursor() | DenyCursor() | CloseReader() | GrantReader():
                return Done()
            case _:
                raise SegmentMissing(f"{request.segment.name} is no segment")

    async def _do(self, segment: OwnedSegment, fencing_token: FencingToken, request: Request) -> Answer:
        ref, state = request.segment, segment.state
        if ref.name.domain is Domain.PERSISTENT and ref.incarnation != state.ref.incarnation:
            await release(segment)  # the mark of a migration that is over
            return await self._not_adopted(fencing_token, request)
        state.admit(fencing_token)
        if ref.incarnation != state.ref.incarnation and isinstance(request, Delete | DeleteCursor):
            await segment.flush_segment_state()
            return Done()  # that incarnation is deleted
        if ref.incarnation != state.ref.incarnation:
            await segment.flush_segment_state()
            state.check_incarnation(ref)
        match request:
            case Create(_, _, cursors):
                await segment.add_cursors(cursors)
            case Adopt(_, _, force):
                await segment.flush_segment_state()
                return adopted(segment, force=force)
            case Release():
                await release(segment)
                await self._topics.adopted(segment.topic)
            case Fence():
                await segment.flush_segment_state()
                return segment.status()
            case Seal(operation, _, children):
                await self._listener.prepare_seal(request)
                return await segment.seal(operation, children)
            case Delete():
                await self._topics.delete_segment(segment)
            case CreateCursor(_, _, spec):
                await segment.add_cursors((spec,))
            case DenyCursor(_, _, subscription, reason):
                segment.deny_cursor(subscription, reason)
                await segment.flush_segment_state()
            case DeleteCursor(_, _, subscription):
                await segment.drop_cursor(subscription)
            case Seek():
                return await segment.seek_cursor(request)
            case ClearBacklog(operation, _, subscription):
                await segment.clear_cursor(subscription, operation)
            case CloseReader(_, _, subscription, consumer, generation):
                segment.close_readers(subscription, generation, consumer)
                await segment.flush_segment_state()
            case GrantReader(_, _, subscription, consumer, generation):
                segment.grant_reader(subscription, consumer, generation)
                await segment.flush_segment_state()
            case Hold(_, _, subscription, position):
                segment.hold(subscription, position)
                await segment.flush_segment_state()
            case _:
                assert_never(request)
        return Done()
