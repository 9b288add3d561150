"""All loaded topics of this broker: opened once however many ask, closed when idle, deleted on request.

Knows how a topic is made from its log; must not know connections or commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from anabranch.broker.catalog import Catalog
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.inactive import PATROL_SECONDS, Visits, needs_patrol
from anabranch.broker.memorytopic import MemoryTopic
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic import Topic
from anabranch.model.errors import BadName, Error, NotAllowed, NotReady
from anabranch.model.names import Domain, TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.topiclog import TopicLog

log = logging.getLogger(__name__)

AnyTopic = Topic | MemoryTopic
OpenLog = Callable[[str], Awaitable[TopicLog]]
"""Metadata key → open log (created when missing)."""

CLOSE_TOGETHER = 64


async def _nothing(_: TopicName) -> None:
    return


class Topics:
    def __init__(
        self,
        catalog: Catalog,
        open_log: OpenLog,
        *,
        settings: BrokerSettings,
        clock: Clock,
        check_writable: Callable[[], None],
    ) -> None:
        """`check_writable` raises what an append would raise now."""
        self._catalog = catalog
        self._open_log = open_log
        self._check_writable = check_writable
        self._settings = settings
        self._clock = clock
        self._topics: dict[TopicName, AnyTopic] = {}
        self._opening: dict[TopicName, asyncio.Future[AnyTopic]] = {}
        self._closing: dict[TopicName, asyncio.Future[None]] = {}
        self._dirty: list[Topic] = []
        self._tasks = TaskOwner("topics")
        self._stopped = False
        self._changes = 0  # of policies, whichever
        self._visits = Visits()
        self.on_vanishing: Callable[[TopicName], Awaitable[None]] = _nothing  # told when a topic dies of disuse

    def __iter__(self) -> Iterator[AnyTopic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def start(self) -> None:
        self._tasks.spawn(self._sweep(), "sweep")
        self._tasks.spawn(self._patrol(), "patrol")

    def loaded(self, name: TopicName) -> AnyTopic | None:
        return self._topics.get(name)

    # -- opening

    async def get(self, name: TopicName, *, create: bool) -> AnyTopic:
        """The loaded topic; raises TopicNotFound when it is missing and may not be created."""
        if name.domain not in (Domain.PERSISTENT, Domain.NON_PERSISTENT):
            raise NotAllowed(f"{name} cannot be used by a client of regular topics")
        while True:
            if self._stopped:
                raise NotReady("broker is stopping")
            found = self._topics.get(name)
            if found is not None:
                return found
            closing = self._closing.get(name)
            if closing is not None:
                await asyncio.shield(closing)
                continue
            if name not in self._opening:
                await self._catalog.check_may_load(name, create)
            if name not in self._topics and name not in self._closing:  # both may have changed while we asked
                return await self._open_once(name)

    async def _open_once(self, name: TopicName) -> AnyTopic:
        """All who ask at once wait for one opening."""
        if self._stopped:
            raise NotReady("broker is stopping")
        opening = self._opening.get(name)
        if opening is None:
            # A task of its own: the one who asked first may go away without failing the others.
            task = self._tasks.spawn(self._open(name), f"open {name}")
            if task is None:
                raise NotReady("broker is stopping")
            opening = self._opening[name] = task
            task.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(opening)

    async def _open(self, name: TopicName) -> AnyTopic:
        topic: AnyTopic
        changes = self._changes
        if name.is_persistent:
            topic_log = await self._open_log(self._catalog.topic_key(name))
            topic = Topic(
                name,
                topic_log,
                settings=self._settings,
                clock=self._clock,
                on_dirty=self._dirty.append,
                check_writable=self._check_writable,
            )
            try:
                policies = await self._catalog.effective(name.namespace_path)
                await topic.load(policies.deduplicate)
                await topic.apply(policies)
            except BaseException:
                await topic_log.close()
                raise
        else:
            topic = MemoryTopic(name, settings=self._settings, clock=self._clock)
            await topic.apply(await self._catalog.effective(name.namespace_path))
        self._topics[name] = topic
        if self._changes != changes:  # policies changed while the topic was opened
            await topic.apply(await self._catalog.effective(name.namespace_path))
        return topic

    async def apply_policies(self, namespace: str) -> None:
        """The policies of a namespace have changed: its loaded topics go by the new ones when this returns."""
        self._changes += 1
        policies = await self._catalog.effective(namespace)
        for topic in self:
            if topic.name.namespace_path == namespace:
                try:
                    await topic.apply(policies)
                except Error as error:  # being closed (it will read them when opened again), or its disk is failing
                    log.warning("policies not applied", extra={"topic": str(topic.name), "reason": error.reason})

    async def create(self, name: TopicName) -> None:
        """Make a topic exist: an explicit request of an administrator, whatever the auto-creation policy says."""
        if name.domain not in (Domain.PERSISTENT, Domain.NON_PERSISTENT):
            raise BadName(f"{name} is not a regular topic")
        await self._catalog.policies(name.namespace_path)
        if name.is_persistent and not await self._catalog.exists(name):
            await self._catalog.check_room(name.namespace_path, 1)
            await self._open_once(name)

    # -- dispatch after a group

    def group_ended(self) -> None:
        dirty, self._dirty[:] = list(self._dirty), []
        for topic in dirty:
            try:
                topic.dispatch()
            except Exception:  # one topic's fault must not keep the others from their messages
                log.exception("dispatch failed", extra={"topic": str(topic.name)})

    # -- closing

    async def close(self, name: TopicName) -> None:
        """Unload: clients are told to come back; nothing is deleted."""
        topic = self._topics.pop(name, None)
        if topic is not None:
            await self._close(topic)

    async def _close(self, topic: AnyTopic) -> None:
        done = asyncio.get_running_loop().create_future()
        self._closing[topic.name] = done
        try:
            await topic.close()
        finally:
            del self._closing[topic.name]
            done.set_result(None)

    async def delete(self, name: TopicName, *, force: bool) -> None:
        if name not in self._topics and not await self._catalog.exists(name):
            raise TopicNotFound(f"topic {name} does not exist")
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
            now = self._clock.monotonic()
            for topic in self:
                await self._sweep_topic(topic, now - topic.used_at > self._settings.idle_topic_seconds)

    async def _sweep_topic(self, topic: AnyTopic, is_unused: bool) -> None:
        if self._topics.get(topic.name) is not topic:
            return  # closed or deleted since the sweep began
        try:
            if isinstance(topic, Topic) and topic.is_idle and topic.is_doomed:
                log.info("inactive topic deleted", extra={"topic": str(topic.name)})
                await self._delete_unused(topic)
            elif topic.is_idle and is_unused and not (isinstance(topic, Topic) and topic.is_eligible):
                del self._topics[topic.name]
                await self._close(topic)
            elif isinstance(topic, Topic):
                await topic.sweep()
        except Error as error:  # a full or failing disk: the next sweep tries again
            log.warning("topic was not swept", extra={"topic": str(topic.name), "reason": error.reason})

    async def _delete_unused(self, topic: Topic) -> None:
        try:
            await topic.delete(force=True, when_fenced=partial(self.on_vanishing, topic.name))
        finally:
            self._topics.pop(topic.name, None)  # half deleted: opening it again finishes the work

    async def _patrol(self) -> None:
        """Wake sleeping topics that time has something to do with; the sweep then finds them."""
        while True:
            await self._clock.sleep(PATROL_SECONDS)
            try:
                await self._wake()
            except Error as error:  # metadata or disk failing: the next round tries again
                log.warning("patrol ended early", extra={"reason": error.reason})

    async def _wake(self) -> None:
        sleeping: list[TopicName] = []
        for tenant in await self._catalog.tenants():
            for namespace in await self._catalog.namespaces(tenant):
                if needs_patrol(await self._catalog.effective(namespace)):
                    known = await self._catalog.topics(namespace)
                    sleeping += [name for name in known if name not in self._topics]
        for name in self._visits.choose(sleeping, self._clock.monotonic()):
            try:
                await self.get(name, create=False)
            except TopicNotFound:
                continue  # deleted meanwhile

    async def stop(self) -> None:
        """Close everything, many at a time; what cannot be closed is reported, the rest goes on."""
        self._stopped = True
        await self._tasks.close()
        remaining = list(self._topics.values())
        self._topics.clear()
        for start in range(0, len(remaining), CLOSE_TOGETHER):
            some = remaining[start : start + CLOSE_TOGETHER]
            for topic, outcome in zip(
                some, await asyncio.gather(*map(self._close, some), return_exceptions=True), strict=True
            ):
                if isinstance(outcome, BaseException):
                    log.error("topic did not close cleanly", extra={"topic": str(topic.name)}, exc_info=outcome)
