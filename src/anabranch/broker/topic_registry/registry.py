"""All loaded topics of this broker: opened once however many ask, closed when idle, deleted on request.

How one is made from its log is in `topic_maker`, which unloaded ones are woken in `patrol`. Must not know connections
or commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from weakref import WeakValueDictionary

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.close_notifications import CloseNotifications
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.placement import Address, ServedElsewhere
from anabranch.broker.segment.segment_logs import SegmentLogs
from anabranch.broker.segment.segment_topic import SegmentTopic
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.activity import ActivityTracker
from anabranch.broker.topic_registry.factory import AnyTopic, OpenLog, SegmentCreation, TopicFactory
from anabranch.broker.topic_registry.rate_sampler import Sampler
from anabranch.broker.topic_registry.unloaded_scan import UnloadedTopicScan
from anabranch.model.errors import AlreadyExists, BadName, Error, NotAllowed, NotFound, NotReady
from anabranch.model.names import Domain, TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner, YieldBudget
from anabranch.storage.interface import Fenced

log = logging.getLogger(__name__)

CLOSE_TOGETHER = 64
REST_SECONDS = 60.0
"""A topic in which nothing happens is swept so often at least, whatever it said of itself."""


async def _nothing(_: TopicName) -> None:
    return


async def _no_segments(name: TopicName) -> None:
    raise NotAllowed(f"{name} cannot be used by a client of regular topics")


def _everything(_: TopicName) -> None:
    """A broker alone serves every topic."""


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
        segments: SegmentLogs | None = None,
    ) -> None:
        """`check_writable` raises what an append would raise now, `check_here` ServedElsewhere; `wait_placed` lets a
        topic that changes hands arrive first. `segments`: None where there are no scalable topics."""
        self._creations: dict[TopicName, SegmentCreation] = {}  # of segments that are being made
        self.admit_segment: Callable[[TopicName], Awaitable[None]] = _no_segments  # raises unless it may be attached to
        self.on_segment: Callable[[SegmentTopic], None] = lambda _: None  # told of each before it is loaded
        self._check_here = check_here or _everything
        self._wait_placed = wait_placed or _nothing
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._topics: dict[TopicName, AnyTopic] = {}
        self._opening: dict[TopicName, asyncio.Future[AnyTopic]] = {}
        self._closing: dict[TopicName, asyncio.Future[None]] = {}
        self._dirty: list[Topic] = []
        self._tasks = TaskOwner("topics")
        self._stopped = False
        self._changes = 0  # of policies, whichever
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
            on_segment=self._segment_made,
        )
        self._unloaded_scan = UnloadedTopicScan(
            catalog, segments, clock, is_unloaded=self._is_unloaded, load=lambda name: self.get(name, create=False)
        )
        self.sampler = Sampler(clock, self.activity.view())
        self.before_inactive_delete: Callable[[TopicName], Awaitable[None]] = (
            _nothing  # told when a topic dies of disuse
        )

    def __iter__(self) -> Iterator[AnyTopic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def start(self) -> None:
        self._tasks.spawn(self._sweep(), "sweep")
        self._tasks.spawn(self._unloaded_scan.run(), "patrol")
        self._tasks.spawn(self.sampler.run(self._topics), "sampler")

    def names(self) -> list[TopicName]:
        """Of all that is loaded or just being opened."""
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
            found = await self._settled(name)
            if found is not None:
                return found
            if name.domain is Domain.SEGMENT:
                await self.admit_segment(name)
            elif name not in self._opening:
                await self._catalog.check_may_load(name, create)
            if name not in self._topics and name not in self._closing:  # both may have changed while we asked
                try:
                    return await self._open_once(name)
                except NotFound as error:
                    raise TopicNotFound(f"Topic {name} not found") from error
                except AlreadyExists:  # its owner tried to make it without looking; it looks now
                    if name.domain is not Domain.SEGMENT:
                        raise

    async def _settled(self, name: TopicName) -> AnyTopic | None:
        """The loaded topic, when none is just being closed."""
        while True:
            if self._stopped:
                raise NotReady("broker is stopping")
            self._check_here(name)
            closing = self._closing.get(name)
            if closing is None:
                return self._topics.get(name)
            await asyncio.shield(closing)

    # -- segments, for their owner

    def check_here(self, name: TopicName) -> None:
        """ServedElsewhere for what is another's."""
        self._check_here(name)

    async def segment(self, name: TopicName, creation: SegmentCreation | None = None) -> SegmentTopic:
        """The loaded segment; with `creation` it is made. NotFound when it is not there, AlreadyExists when it is made
        without looking (`SegmentCreation.is_first`) and there is something."""
        while True:
            found = await self._settled(name)
            is_joined = name in self._opening  # which may have begun without knowing of the creation
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
            assert isinstance(found, SegmentTopic)
            return found

    def _segment_made(self, topic: SegmentTopic) -> None:
        self.on_segment(topic)  # whoever it is by now

    async def delete_segment(self, topic: SegmentTopic) -> None:
        """It leaves a grave."""
        try:
            await topic.delete(force=True)
        finally:
            self._topics.pop(topic.name, None)  # half deleted: opening it again finishes the work

    async def _open_once(self, name: TopicName) -> AnyTopic:
        """All who ask at once wait for one opening."""
        if self._stopped:
            raise NotReady("broker is stopping")
        opening = self._opening.get(name)
        if opening is None:
            # A task of its own: the one who asked first may go away without failing the others.
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
            opening.exception()  # seen: whoever asked may be gone

    async def _open(self, name: TopicName) -> AnyTopic:
        changes = self._changes
        topic = await self._factory.make(name, self._creations.get(name))
        try:
            self._check_here(name)
        except Error:  # it was given away while we opened it
            await topic.close()
            raise
        self._topics[name] = topic
        self.sampler.look(topic)  # rates count from here
        if self._changes != changes:  # policies changed while the topic was opened
            async with self._applying(name.namespace_path):
                await topic.apply(await self._factory.policies(name))
        return topic

    async def apply_policies(self, namespace: str) -> None:
        """The policies of a namespace have changed: its loaded topics go by the new ones when this returns."""
        self._changes += 1
        async with self._applying(namespace):
            policies = await self._catalog.effective(namespace)
            for topic in self:
                if topic.name.namespace_path == namespace:
                    try:
                        await topic.apply(self._factory.adapted(topic.name, policies))
                    except Error as error:  # being closed (it reads them when opened again), or its disk is failing
                        log.warning("policies not applied", extra={"topic": str(topic.name), "reason": error.reason})

    def _applying(self, namespace: str) -> asyncio.Lock:
        """Who reads the policies last applies them last; otherwise older ones could stay."""
        return self._policy_locks.setdefault(namespace, asyncio.Lock())

    async def create(self, name: TopicName) -> None:
        """Make a topic exist: an explicit request of an administrator, whatever the auto-creation policy says."""
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
            except Exception:  # one topic's fault must not keep the others from their messages
                log.exception("dispatch failed", extra={"topic": str(topic.name)})

    # -- closing

    async def close(self, name: TopicName, here: Address | None = None) -> None:
        """Unload: clients are told to come back; nothing is deleted.

        With our own address they are told when the topic is closed, and come back without a pause.
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

        `check_here` must refuse these topics already, so that none of them is opened again meanwhile. Raises when one
        of them could not be closed: then what it confirmed may be in our log alone, and nobody may open it.
        """
        for name, opening in list(self._opening.items()):
            if moves(name):
                await asyncio.wait([opening])
        for name, closing in list(self._closing.items()):  # an idle topic may just be closing by itself
            if moves(name):
                await asyncio.wait([closing])
        moving = [topic for topic in self if moves(topic.name)]
        all_notifications = [CloseNotifications(next_address(topic.name)) for topic in moving]
        for topic in moving:
            del self._topics[topic.name]
        failed = await self._close_many(moving, all_notifications)
        if failed:
            raise failed[0]
        return [notifications for notifications in all_notifications if len(notifications)]

    async def _close_many(
        self, topics: Sequence[AnyTopic], all_notifications: Sequence[CloseNotifications | None]
    ) -> list[BaseException]:
        """Many at a time; what cannot be closed is reported, the rest goes on. The answer is what went wrong."""
        failed: list[BaseException] = []
        for start in range(0, len(topics), CLOSE_TOGETHER):
            some = topics[start : start + CLOSE_TOGETHER]
            closing = map(self._close, some, all_notifications[start : start + CLOSE_TOGETHER])
            for topic, outcome in zip(some, await asyncio.gather(*closing, return_exceptions=True), strict=True):
                if isinstance(outcome, Fenced):
                    log.info("topic was taken over", extra={"topic": str(topic.name)})
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
            del self._closing[topic.name]
            done.set_result(None)

    async def delete(self, name: TopicName, *, force: bool) -> None:
        if name not in self._topics and not await self._catalog.exists(name):
            raise TopicNotFound(f"Topic {name} not found")
        topic = await self.get(name, create=False)
        try:
            await topic.delete(force=force)
        except NotAllowed:
            raise
        except BaseException:
            self._topics.pop(name, None)  # half deleted: opening it again finishes the work
            raise
        self._topics.pop(name, None)

    async def _sweep(self) -> None:
        """Close topics nobody uses, so that memory follows use and not history; let logs drop what is consumed."""
        while True:
            await self._clock.sleep(self._settings.sweep_seconds)
            now, budget, active = self._clock.monotonic(), YieldBudget(self._clock), self._unswept.take()
            for topic in self:
                if topic.rests_until <= now or topic in active:
                    await self._sweep_topic(topic, now - topic.used_at > self._settings.idle_topic_seconds)
                    await budget.spend()

    def _rest(self, topic: AnyTopic) -> float:
        """Until when time alone gives the next sweeps nothing to do for it."""
        now = self._clock.monotonic()
        rest = topic.resting_seconds() if isinstance(topic, Topic) else REST_SECONDS
        if topic.is_idle and isinstance(topic, Topic) and topic.is_eligible:
            return now  # the sweep that deletes it is the next one, or another
        until = now + min(rest, REST_SECONDS)
        return min(until, topic.used_at + self._settings.idle_topic_seconds) if topic.is_idle else until

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
        except Error as error:  # a full or failing disk: the next sweep tries again
            log.warning("topic was not swept", extra={"topic": str(topic.name), "reason": error.reason})

    async def _delete_unused(self, topic: Topic) -> None:
        try:
            await topic.delete(force=True, when_fenced=partial(self.before_inactive_delete, topic.name))
        finally:
            self._topics.pop(topic.name, None)  # half deleted: opening it again finishes the work

    def _is_unloaded(self, name: TopicName) -> bool:
        """Ours, and not loaded?"""
        try:
            self._check_here(name)
        except ServedElsewhere:
            return False
        return name not in self._topics

    async def stop(self) -> None:
        """Close everything, many at a time; what cannot be closed is reported, the rest goes on."""
        self._stopped = True
        await self._tasks.close()
        remaining = list(self._topics.values())
        self._topics.clear()
        await self._close_many(remaining, [None] * len(remaining))
