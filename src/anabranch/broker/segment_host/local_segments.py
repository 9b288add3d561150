"""The owner of segments on one broker: every request of the controller's port, done here or not at all.

Requests of one segment are done one after another. What each costs in durable writes is said in `segment_facts`; that
this broker still owns the segment is looked at last, before the answer leaves. Knows no transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import assert_never
from weakref import WeakValueDictionary

from anabranch.broker.segment.segment_logs import SegmentLogs
from anabranch.broker.segment.segment_state import (
    NEVER,
    OwnedSegmentState,
    check_fencing_token,
    deleted_at_ms,
    fencing_token_on,
    tombstone_properties,
)
from anabranch.broker.segment.segment_topic import SegmentTopic, TellSealed
from anabranch.broker.segment_host.ancestor_sequences import LastSequence
from anabranch.broker.segment_host.segment_stats import SegmentRates
from anabranch.broker.topic_registry.factory import SegmentCreation
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.controller.segment_host import (
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
    HostEvent,
    Request,
    Seal,
    Seek,
    SegmentMissing,
    SegmentRef,
    SegmentStats,
    Status,
)
from anabranch.model.errors import AlreadyExists, Error, NotFound, NotReady
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner

MADE_SECONDS = 5.0


class LocalSegments:
    def __init__(self, topics: TopicRegistry, logs: SegmentLogs, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._logs = logs
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._listeners: list[Callable[[HostEvent], None]] = []
        self._tasks = TaskOwner("segments")
        self._rates = SegmentRates(topics.sampler, clock)
        self._awaited: dict[TopicName, asyncio.Event] = {}  # planned segments that clients wait for
        self.tell_sealed: TellSealed | None = None  # what producers of our own kind are told
        self.before_seal: Callable[[Seal], Awaitable[None]] | None = None
        topics.on_segment = self._adopt

    def listen(self, callback: Callable[[HostEvent], None]) -> Callable[[], None]:
        """Every event of the segments that this broker owns."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def _adopt(self, topic: SegmentTopic) -> None:
        topic.on_event = self._tell
        topic.tell_sealed = self.tell_sealed

    def start(self) -> None:
        """Rates are looked at from now on."""
        self._tasks.spawn(self._rates.run(), "rates")

    async def stats(self, ref: SegmentRef) -> SegmentStats | None:
        """None when it is not there."""
        try:
            topic = await self._topics.segment(ref.name)
        except NotFound:
            return None
        if topic.state.ref.incarnation != ref.incarnation:
            return None
        return await self._rates.stats(topic)

    async def last_sequence(self, name: TopicName, producer: str) -> LastSequence | None:
        """What one of our segments has of a producer; None when it is not there."""
        try:
            topic = await self._topics.segment(name)
        except NotFound:
            return None
        last = LastSequence(topic.last_of(producer), topic.log.is_terminated)
        self._topics.check_here(name)
        return last

    def _tell(self, event: HostEvent) -> None:
        for tell in tuple(self._listeners):
            tell(event)

    async def close(self) -> None:
        await self._tasks.close()

    async def apply(self, fencing_token: FencingToken, request: Request) -> Answer:
        """Raises HostError, SegmentMissing, CursorMissing, and whatever storage and metadata say (then it may have been
        done); ServedElsewhere when the segment is another broker's, before or by the end.

        Whoever asks may give up waiting: what was begun is finished.
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
        except Error as error:  # an answer like any other: who asks is told
            return error

    async def _apply(self, fencing_token: FencingToken, request: Request) -> Answer:
        name = request.segment.name
        async with self._locks.setdefault(name, asyncio.Lock()):
            self._topics.check_here(name)
            topic = await self._made(fencing_token, request) or await self._find(name)
            answer = await (
                self._absent(fencing_token, request) if topic is None else self._do(topic, fencing_token, request)
            )
            self._topics.check_here(name)
            if isinstance(request, Create) and (awaited := self._awaited.pop(name, None)) is not None:
                awaited.set()
            return answer

    async def _made(self, fencing_token: FencingToken, request: Request) -> SegmentTopic | None:
        """What is to be made was never heard of, as a rule: then making it is one write, and nothing is looked up. None
        when it is there, or was, or is not to be made."""
        if not isinstance(request, Create) or self._topics.loaded(request.segment.name) is not None:
            return None
        state = OwnedSegmentState(request.segment, request.operation, fencing_token)
        try:
            return await self._topics.segment(request.segment.name, SegmentCreation(state.identity(), is_first=True))
        except AlreadyExists:
            return None

    async def forget(self, name: TopicName, before_ms: int) -> bool:
        """The grave of a segment of ours that was buried before that; True when it is gone."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            self._topics.check_here(name)
            if self._topics.loaded(name) is not None:
                return False
            return await self._logs.clear(name, lambda text: deleted_at_ms(text) < before_ms)

    async def _find(self, name: TopicName) -> SegmentTopic | None:
        loaded = self._topics.loaded(name)
        if not isinstance(loaded, SegmentTopic) and not (await self._logs.peek(name)).exists:
            return None
        return await self._topics.segment(name)

    async def wait_made(self, name: TopicName) -> None:
        """Until a segment of ours is there, or for as long as a client may be kept waiting for it."""
        if self._topics.loaded(name) is not None:
            return
        awaited = self._awaited.setdefault(name, asyncio.Event())  # before we look: it may be made meanwhile
        if (await self._logs.peek(name)).exists:
            self._awaited.pop(name, None)
            awaited.set()
            return
        try:
            async with asyncio.timeout(MADE_SECONDS):
                await awaited.wait()
        except TimeoutError:
            self._awaited.pop(name, None)  # it is looked for once more, and missed

    async def _absent(self, fencing_token: FencingToken, request: Request) -> Answer:
        """The segment is not there. The mandate is remembered all the same, but for a creation it goes with that."""
        ref = request.segment
        known = fencing_token_on((await self._logs.peek(ref.name)).properties)
        check_fencing_token(ref.name, known, fencing_token)
        if isinstance(request, Create):
            state = OwnedSegmentState(ref, request.operation, fencing_token)
            topic = await self._topics.segment(ref.name, SegmentCreation(state.identity()))
            await topic.add_cursors(request.cursors)
            return Done()
        if fencing_token > known or known == NEVER:
            await self._logs.write_tombstone(ref.name, tombstone_properties(fencing_token, self._clock.now_ms()))
        match request:
            case Fence():
                return Status(exists=False)
            case Delete() | DeleteCursor() | DenyCursor() | CloseReader() | GrantReader():
                return Done()
            case _:
                raise SegmentMissing(f"{ref} does not exist")

    async def _do(self, topic: SegmentTopic, fencing_token: FencingToken, request: Request) -> Answer:
        ref, state = request.segment, topic.state
        state.admit(fencing_token)
        if ref.incarnation != state.ref.incarnation and isinstance(request, Delete | DeleteCursor):
            await topic.flush_segment_state()
            return Done()  # that life is over
        if ref.incarnation != state.ref.incarnation:
            await topic.flush_segment_state()
            state.check_incarnation(ref)
        match request:
            case Create(_, _, cursors):
                await topic.add_cursors(cursors)
            case Fence():
                await topic.flush_segment_state()
                return topic.status()
            case Seal(operation, _, children):
                if self.before_seal is not None:
                    await self.before_seal(request)
                return await topic.seal(operation, children)
            case Delete():
                await self._topics.delete_segment(topic)
            case CreateCursor(_, _, spec):
                await topic.add_cursors((spec,))
            case DenyCursor(_, _, subscription, reason):
                topic.deny_cursor(subscription, reason)
                await topic.flush_segment_state()
            case DeleteCursor(_, _, subscription):
                await topic.drop_cursor(subscription)
            case Seek(operation, _, subscription, publish_ms, generation):
                return await topic.seek_cursor(subscription, operation, publish_ms, generation)
            case ClearBacklog(operation, _, subscription):
                await topic.clear_cursor(subscription, operation)
            case CloseReader(_, _, subscription, _, generation):
                topic.close_readers(subscription, generation)
                await topic.flush_segment_state()
            case GrantReader(_, _, subscription, consumer, generation):
                topic.grant_reader(subscription, consumer, generation)
                await topic.flush_segment_state()
            case Hold(_, _, subscription, position):
                topic.hold(subscription, position)
                await topic.flush_segment_state()
            case _:
                assert_never(request)
        return Done()
