"""All topics that are loaded on this broker: opened on demand, unloaded when idle, deleted on request.

`factory` makes a topic from its log; `unloaded_scan` loads topics that time-based policies apply to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.catalog.policies import Policies
from anabranch.broker.catalog.topic_policy_records import topic_policies_key
from anabranch.broker.close_notifications import CloseNotifications
from anabranch.broker.errors import NamespaceNotFound, TopicNotFound
from anabranch.broker.placement import Address, ServedElsewhere
from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.activity import ActivityTracker
from anabranch.broker.topic_registry.factory import AnyTopic, OpenLog, SegmentCreation, SegmentSupport, TopicFactory
from anabranch.broker.topic_registry.rate_sampler import Sampler
from anabranch.broker.topic_registry.unloaded_scan import UnloadedTopicScan
from anabranch.model.errors import AlreadyExists, BadName, Error, NotAllowed, NotFound, NotReady
from anabranch.model.names import Domain, TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner, YieldBudget
from anabranch.storage.interface import Fenced

log = get_logger(__name__)

CLOSE_TOGETHER = 64
REST_SECONDS = 60.0
"""Longest time between two sweeps of a topic without activity."""


async def _nothing(_: TopicName) -> None:
    return


def _everything(_: TopicName) -> None:
    """`check_here` of a single broker: it serves every topic."""


class InactiveTopicListener(Protocol):
    async def before_inactive_delete(self, name: TopicName) -> None:
        """Called when the topic is fenced, before its log is deleted; an error keeps it."""


class TopicRegistry:
    def __init__(
        self,
        catalog: Catalog,
        open_log: OpenLog,
        *,
        settings: BrokerSettings,
        clock: Clock,
        check_writable: Callable[[], None],
        check_here: Callable[[TopicName], None] | None = None,
        wait_placed: Callable[[TopicName], Awaitable[None]] | None = None,
        segments: SegmentSupport | None = None,
        inactive: InactiveTopicListener | None = None,
    ) -> None:
        """`check_writable` raises what an append would raise now; `check_here` raises ServedElsewhere; `wait_placed`
        waits while a topic is being moved. `segments`: None without scalable topics. `inactive` is called for each
        topic that is deleted because it was inactive."""
        self._creations: dict[TopicName, SegmentCreation] = {}  # of segments that are being created
        self._segments = segments
        self._inactive = inactive
        self._check_here = check_here or _everything
        self._wait_placed = wait_placed or _nothing
        self._catalog = catalog
        self._clock = clock
        self._topics: dict[TopicName, AnyTopic] = {}
        self._opening: dict[TopicName, asyncio.Future[AnyTopic]] = {}
        self._closing: dict[TopicName, asyncio.Future[None]] = {}
        self._dirty: list[Topic] = []
        self._tasks = TaskOwner("topics")
        self._stopped = False
        self._changes = 0  # number of policy changes
        self._policy_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.activity: ActivityTracker[AnyTopic] = ActivityTracker()
        self._unswept = self.activity.view()
        self._factory = TopicFactory(
            catalog,
            open_log,
            segments,
            settings=settings,
            clock=clock,
            tasks=self._tasks,
            check_writable=check_writable,
            on_dirty=self._dirty.append,
            mark_active=self.activity.mark,
        )
        self._unloaded_scan = UnloadedTopicScan(
            catalog,
            None if segments is None else segments.logs,
            clock,
            is_unloaded=self._is_unloaded,
            load=lambda name: self.get(name, create=False),
        )
        self.sampler = Sampler(clock, self.activity.view())

    def __iter__(self) -> Iterator[AnyTopic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def start(self) -> None:
        self._tasks.spawn(self._sweep(), "sweep")
        self._tasks.spawn(self._unloaded_scan.run(), "patrol")
        self._tasks.spawn(self.sampler.run(self._topics), "sampler")

    def names(self) -> list[TopicName]:
        """Names of all topics that are loaded or being opened."""
        return [*self._topics, *(name for name in self._opening if name not in self._topics)]

    def loaded(self, name: TopicName) -> AnyTopic | None:
        return self._topics.get(name)

    # -- opening

    async def get(self, name: TopicName, *, create: bool) -> AnyTopic:
        """The loaded topic; raises TopicNotFound when it is missing and may not be created."""
        if name.domain is Domain.TOPIC:
            raise NotAllowed(f"{name} cannot be used by a client of regular topics")
        await self._wait_placed(name)
        while True:
            found = await self._loaded_or_none(name)
            if found is not None:
                return found
            if name.domain is Domain.SEGMENT:
                await self._admit_segment(name)
            elif name not in self._opening:
                await self._catalog.check_may_load(name, create)
            if name not in self._topics and name not in self._closing:  # both may have changed meanwhile
                try:
                    return await self._open_once(name)
                except NotFound as error:
                    raise TopicNotFound(f"Topic {name} not found") from error
                except AlreadyExists:  # created meanwhile by its owner: open it
                    if name.domain is not Domain.SEGMENT:
                        raise

    async def _admit_segment(self, name: TopicName) -> None:
        if self._segments is None:
            raise NotAllowed(f"{name} cannot be used by a client of regular topics")
        await self._segments.listener.admit(name)

    async def _loaded_or_none(self, name: TopicName) -> AnyTopic | None:
        """The loaded topic, after a close in progress has ended; None if it is not loaded."""
        while True:
            if self._stopped:
                raise NotReady("broker is stopping")
            self._check_here(name)
            closing = self._closing.get(name)
            if closing is None:
                return self._topics.get(name)
            await asyncio.shield(closing)

    # -- segments

    def check_here(self, name: TopicName) -> None:
        """Raises ServedElsewhere unless this broker owns the topic."""
        self._check_here(name)

    async def segment(self, name: TopicName, creation: SegmentCreation | None = None) -> OwnedSegment:
        """The loaded segment, created if `creation` is given. Raises NotFound if it does not exist, AlreadyExists if
        it exists and `creation.is_first` is set."""
        while True:
            found = await self._loaded_or_none(name)
            is_joined = name in self._opening  # which may have begun without `creation`
            if found is None:
                if creation is not None:
                    self._creations[name] = creation
                try:
                    found = await self._open_once(name)
                except NotFound:
                    if creation is None or not is_joined:
                        raise
                    continue
                finally:
                    self._creations.pop(name, None)
            segment = segment_of(found)
            if segment is not None:
                return segment
            assert found.is_closed, f"{name} is no segment"  # closed since it was found: open it again

    async def delete_segment(self, segment: OwnedSegment) -> None:
        """Delete it; a tombstone remains."""
        try:
            await segment.topic.delete(force=True)
        finally:
            self._forget(segment.topic)  # half deleted: opening it again finishes the deletion

    async def _open_once(self, name: TopicName) -> AnyTopic:
        """Concurrent callers share one opening."""
        if self._stopped:
            raise NotReady("broker is stopping")
        opening = self._opening.get(name)
        if opening is None:
            # A separate task: the first caller may be cancelled without failing the others.
            opening = asyncio.get_running_loop().create_future()
            if self._tasks.spawn(self._open_for(name, opening), f"open {name}") is None:
                raise NotReady("broker is stopping")
            self._opening[name] = opening
            opening.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(opening)

    async def _open_for(self, name: TopicName, opening: asyncio.Future[AnyTopic]) -> None:
        try:
            opening.set_result(await self._open(name))
        except Error as error:
            opening.set_exception(error)
        except BaseException:  # reported by the owner of this task
            opening.set_exception(NotReady("the topic could not be opened"))
            raise
        finally:
            opening.exception()  # mark it as retrieved: the callers may be cancelled

    async def _open(self, name: TopicName) -> AnyTopic:
        changes = self._changes
        topic = await self._factory.make(name, self._creations.get(name))
        try:
            self._check_here(name)
        except Error:  # it was moved away while it was opened
            await topic.close()
            raise
        self._topics[name] = topic
        self.sampler.sample(topic)  # rates count from here
        if self._changes != changes:  # policies changed while the topic was opened
            async with self._applying(name.namespace_path):
                await topic.apply(await self._policies_of(topic))
        return topic

    async def _policies_of(self, topic: AnyTopic) -> Policies:
        return self._adapted(topic, await self._catalog.effective_of(topic.name))

    def _adapted(self, topic: AnyTopic, policies: Policies) -> Policies:
        return self._factory.adapted(topic.name, policies, is_adopted=segment_of(topic) is not None)

    async def adopted(self, topic: Topic) -> None:
        """The regular topic became a segment, or is none any more: it gets the policies for that."""
        async with self._applying(topic.name.namespace_path):
            await topic.apply(await self._policies_of(topic))

    async def apply_policies(self, namespace: str) -> None:
        """The policies of a namespace changed: when this returns, its loaded topics use the new ones."""
        self._changes += 1
        async with self._applying(namespace):
            topics = [topic for topic in self if topic.name.namespace_path == namespace]
            policies = await self._catalog.effective_of_all(namespace, [topic.name for topic in topics])
            for topic in topics:
                await self._apply(topic, policies(topic.name))

    async def apply_all_policies(self) -> None:
        """The broker's settings changed: the same for all loaded topics."""
        for namespace in sorted({name.namespace_path for name in self.names()}):
            try:
                await self.apply_policies(namespace)
            except NamespaceNotFound:
                continue  # deleted; its topics are being closed

    async def apply_topic_policies(self, name: TopicName) -> None:
        """The policies of one topic changed: the same for it, its partitions and its segments."""
        self._changes += 1
        key = topic_policies_key(name)
        async with self._applying(name.namespace_path):
            policies = await self._catalog.effective_of(name)
            for topic in self:
                if topic.name.namespace_path == name.namespace_path and topic_policies_key(topic.name) == key:
                    await self._apply(topic, policies)

    async def _apply(self, topic: AnyTopic, policies: Policies) -> None:
        try:
            await topic.apply(self._adapted(topic, policies))
        except Error as error:  # it is being closed, or its disk is failing
            log.warning("policies not applied", extra={"topic": str(topic.name), "reason": error.reason})

    def _applying(self, namespace: str) -> asyncio.Lock:
        """Lock per namespace: the policies that are read last are applied last."""
        return self._policy_locks.setdefault(namespace, asyncio.Lock())

    async def create(self, name: TopicName) -> None:
        """Create a topic at an administrator's request, independent of the auto-creation policy."""
        if name.domain not in (Domain.PERSISTENT, Domain.NON_PERSISTENT):
            raise BadName(f"{name} is not a regular topic")
        await self._catalog.policies(name.namespace_path)
        await self._wait_placed(name)
        self._check_here(name)
        if name.is_persistent and not await self._catalog.exists(name):
            await self._catalog.check_free(name)
            await self._catalog.check_room(name.namespace_path, 1)
            await self._open_once(name)

    # -- dispatch after a group

    def group_ended(self) -> None:
        dirty, self._dirty[:] = list(self._dirty), []
        self.activity.mark_all(dirty)
        for topic in dirty:
            try:
                topic.dispatch()
            except Exception:  # a fault in one topic must not stop dispatch in the others
                log.exception("dispatch failed", extra={"topic": str(topic.name)})

    # -- closing

    async def close(self, name: TopicName, here: Address | None = None) -> None:
        """Unload: clients are disconnected from the topic; nothing is deleted.

        With `here` (this broker's address) they are notified after the close, and reconnect without a pause.
        """
        topic = self._topics.pop(name, None)
        if topic is None:
            return
        notifications = None if here is None else CloseNotifications(here)
        try:
            await self._close(topic, notifications)
        finally:
            if notifications is not None:
                notifications.send()

    async def hand_over(
        self, moves: Callable[[TopicName], bool], next_address: Callable[[TopicName], Address | None]
    ) -> list[CloseNotifications]:
        """Close the topics that move. The caller sends the notifications as soon as the new owners serve the topics.

        `check_here` must refuse these topics already, so that none is opened again meanwhile. Raises if one could not
        be closed: its confirmed entries may be in this broker's log only, and no other broker may open it.
        """
        for name, opening in list(self._opening.items()):
            if moves(name):
                await asyncio.wait([opening])
        for name, closing in list(self._closing.items()):  # an idle topic may be closing already
            if moves(name):
                await asyncio.wait([closing])
        began, moving = self._clock.monotonic(), [topic for topic in self if moves(topic.name)]
        all_notifications = [CloseNotifications(next_address(topic.name)) for topic in moving]
        for topic in moving:
            del self._topics[topic.name]
        failed = await self._close_many(moving, all_notifications)
        if moving:
            seconds = round(self._clock.monotonic() - began, 3)
            log.info("topics closed for their next owners", extra={"topics": len(moving), "seconds": seconds})
        if failed:
            raise failed[0]
        return [notifications for notifications in all_notifications if len(notifications)]

    async def _close_many(
        self, topics: Sequence[AnyTopic], all_notifications: Sequence[CloseNotifications | None]
    ) -> list[BaseException]:
        """Close `CLOSE_TOGETHER` topics at a time. A failure does not stop the others; failures are returned."""
        failed: list[BaseException] = []
        for start in range(0, len(topics), CLOSE_TOGETHER):
            some = topics[start : start + CLOSE_TOGETHER]
            closing = map(self._close, some, all_notifications[start : start + CLOSE_TOGETHER])
            for topic, outcome in zip(some, await asyncio.gather(*closing, return_exceptions=True), strict=True):
                if isinstance(outcome, Fenced):
                    log.info(
                        "topic was taken over by another broker",
                        extra={"topic": str(topic.name)},
                    )
                elif isinstance(outcome, BaseException):
                    log.error("topic did not close cleanly", extra={"topic": str(topic.name)}, exc_info=outcome)
                    failed.append(outcome)
        return failed

    async def _close(self, topic: AnyTopic, notifications: CloseNotifications | None = None) -> None:
        done = asyncio.get_running_loop().create_future()
        self._closing[topic.name] = done
        try:
            await topic.close(notifications=notifications)
        finally:
            self._forget(topic)
            del self._closing[topic.name]
            done.set_result(None)

    def _forget(self, topic: AnyTopic) -> None:
        """The topic is closed or deleted: nothing refers to it any more."""
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]
        self.activity.forget(topic)
        self.sampler.forget(topic)

    async def delete(self, name: TopicName, *, force: bool) -> None:
        if name not in self._topics and not await self._catalog.exists(name):
            raise TopicNotFound(f"Topic {name} not found")
        topic = await self.get(name, create=False)
        if (segment := segment_of(topic)) is not None:
            raise NotAllowed(f"{name} is {segment.state.ref} of {name.scalable}: delete the scalable topic")
        try:
            await topic.delete(force=force)
        except NotAllowed:
            raise
        except BaseException:
            self._forget(topic)  # half deleted: opening it again finishes the deletion
            raise
        self._forget(topic)

    async def _sweep(self) -> None:
        """Periodically unload idle topics, delete inactive ones, and run the housekeeping of the others."""
        while True:
            await self._clock.sleep(self._catalog.settings.sweep_seconds)
            await self._sweep_once()

    async def _sweep_once(self) -> None:
        now, budget, active = self._clock.monotonic(), YieldBudget(self._clock), self._unswept.take()
        for topic in self:
            if topic.rests_until <= now or topic in active:
                await self._sweep_topic(topic, now - topic.used_at > self._catalog.settings.idle_topic_seconds)
                await budget.spend()

    def _rest(self, topic: AnyTopic) -> float:
        """When the next sweep of the topic is due, if it has no activity before."""
        now = self._clock.monotonic()
        rest = topic.resting_seconds() if isinstance(topic, Topic) else REST_SECONDS
        if topic.is_idle and isinstance(topic, Topic) and topic.is_eligible:
            return now  # it may be deleted by one of the next sweeps
        until = now + min(rest, REST_SECONDS)
        return min(until, topic.used_at + self._catalog.settings.idle_topic_seconds) if topic.is_idle else until

    async def _sweep_topic(self, topic: AnyTopic, is_unused: bool) -> None:
        if self._topics.get(topic.name) is not topic:
            return  # closed or deleted since the sweep began
        try:
            if isinstance(topic, Topic) and topic.is_idle and topic.should_delete:
                log.info("inactive topic deleted", extra={"topic": str(topic.name)})
                await self._delete_unused(topic)
            elif topic.is_idle and is_unused and not (isinstance(topic, Topic) and topic.is_eligible):
                del self._topics[topic.name]
                await self._close(topic)
            elif isinstance(topic, Topic):
                await topic.sweep()
            topic.rests_until = self._rest(topic)
        except Error as error:  # disk full or failing: the next sweep retries
            log.warning(
                "sweep of topic failed, will be retried",
                extra={"topic": str(topic.name), "reason": error.reason},
            )

    async def _delete_unused(self, topic: Topic) -> None:
        try:
            inactive = self._inactive
            before = None if inactive is None else partial(inactive.before_inactive_delete, topic.name)
            await topic.delete(force=True, when_fenced=before)
        finally:
            self._forget(topic)  # half deleted: opening it again finishes the deletion

    def _is_unloaded(self, name: TopicName) -> bool:
        """Whether this broker serves the topic and has not loaded it."""
        try:
            self._check_here(name)
        except ServedElsewhere:
            return False
        return name not in self._topics

    async def stop(self) -> None:
        """Close all topics. A failure is logged and does not stop the others."""
        self._stopped = True
        await self._tasks.close()
        remaining = list(self._topics.values())
        self._topics.clear()
        await self._close_many(remaining, [None] * len(remaining))
