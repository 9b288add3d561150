"""Makes a topic from its log, its kind and the policies of its namespace. The result is loaded and ready to use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.catalog.policies import Policies, segment_policies
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.segment.owned_segment import OwnedSegment, SegmentListener
from anabranch.broker.segment.segment_logs import SegmentLogs
from anabranch.broker.segment.segment_state import PROPERTY
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic.non_persistent_topic import NonPersistentTopic
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic.topic_hooks import TopicHooks
from anabranch.model.errors import AlreadyExists, Error, NotAllowed
from anabranch.model.names import Domain, TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.interface import Fenced
from anabranch.storage.topic.topic_log import TopicLog

log = get_logger(__name__)

AnyTopic = Topic | NonPersistentTopic
OpenLog = Callable[[TopicName], Awaitable[TopicLog]]
"""Metadata key → open log (created when missing)."""


@dataclass(frozen=True, slots=True)
class SegmentCreation:
    """How a segment is created: properties of its record. `is_first`: created without a look for an existing one."""

    properties: Mapping[str, str]
    is_first: bool = False


class SegmentAdmission(SegmentListener, Protocol):
    async def admit(self, name: TopicName) -> None:
        """Raises TopicNotFound unless a client may attach to the segment. Waits for a segment that is planned."""


@dataclass(frozen=True, slots=True)
class SegmentSupport:
    """What a broker with scalable topics needs to load segments."""

    logs: SegmentLogs
    listener: SegmentAdmission


class TopicFactory:
    def __init__(
        self,
        catalog: Catalog,
        open_log: OpenLog,
        segments: SegmentSupport | None,
        *,
        settings: BrokerSettings,
        clock: Clock,
        tasks: TaskOwner,
        check_writable: Callable[[], None],
        on_dirty: Callable[[Topic], None],
        mark_active: Callable[[AnyTopic], None],
    ) -> None:
        """`segments`: None without scalable topics."""
        self.segments = segments
        self._catalog = catalog
        self._open_log = open_log
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._check_writable = check_writable
        self._on_dirty = on_dirty
        self._mark_active = mark_active

    async def make(self, name: TopicName, creation: SegmentCreation | None) -> AnyTopic:
        """The topic, loaded and with its policies applied. `creation`: given if a segment may be created."""
        if name.is_persistent:
            return await self._make_stored(name, creation)
        topic = NonPersistentTopic(name, settings=self._settings, clock=self._clock, mark_active=self._mark_active)
        await topic.apply(await self._catalog.effective_of(name))
        return topic

    async def _make_stored(self, name: TopicName, creation: SegmentCreation | None) -> Topic:
        reading = self._tasks.spawn(self._policies_or_error(name), f"policies for {name}")
        make_hooks: Callable[[Topic], TopicHooks] | None = None
        if name.domain is not Domain.SEGMENT:
            topic_log = await self._open_regular(name)
            if self.segments is not None and PROPERTY in topic_log.properties:
                make_hooks = self._make_segment
        elif self.segments is None:
            raise NotAllowed(f"{name}: scalable topics are not enabled on this broker")
        else:
            topic_log, make_hooks = await self._open_segment(name, creation, self.segments.logs), self._make_segment
        topic = Topic(
            name,
            topic_log,
            settings=self._settings,
            clock=self._clock,
            on_dirty=self._on_dirty,
            check_writable=self._check_writable,
            mark_active=self._mark_active,
            make_hooks=make_hooks,
        )
        try:
            policies = await self.policies(name) if reading is None else await reading
            if isinstance(policies, Error):
                raise policies
            if make_hooks is not None:
                policies = self.adapted(name, policies, is_adopted=True)
            await topic.load(policies.deduplicate)
            await topic.apply(policies)
        except BaseException:
            await topic_log.close()
            raise
        return topic

    async def _open_regular(self, name: TopicName) -> TopicLog:
        """Open the log, and resolve a conflict with a scalable topic of the same name (`catalog.name_conflicts`)."""
        topic_log = await self._open_log(name)
        try:
            if await self._keeps_wrapped(name, topic_log):
                return topic_log
            await self._catalog.resolve_name_conflict(name, is_new=topic_log.epoch == 1)
        except AlreadyExists as taken:
            await _withdraw(topic_log)
            raise TopicNotFound(f"Topic {name} not found: {taken.reason}") from taken
        except BaseException:
            await topic_log.close()
            raise
        return topic_log

    async def _keeps_wrapped(self, name: TopicName, topic_log: TopicLog) -> bool:
        """Whether a segment wraps the topic. The mark of a migration that is over without a trace is removed."""
        migrated = await self._catalog.migrated(name, is_fresh=PROPERTY in topic_log.properties)
        if migrated is not None and str(name) in migrated.wrapped:
            return True
        if PROPERTY in topic_log.properties:
            log.warning("mark of an undone migration removed from a regular topic", extra={"topic": str(name)})
            left = {key: text for key, text in topic_log.properties.items() if key != PROPERTY}
            await topic_log.set_properties(left)
        return False

    async def _open_segment(self, name: TopicName, creation: SegmentCreation | None, logs: SegmentLogs) -> TopicLog:
        if creation is None:
            return await logs.open(name, None)
        return await logs.open(name, creation.properties, is_first=creation.is_first)

    def _make_segment(self, topic: Topic) -> OwnedSegment:
        assert self.segments is not None
        return OwnedSegment(topic, self._clock, self.segments.listener)

    # -- policies

    async def _policies_or_error(self, name: TopicName) -> Policies | Error:
        try:
            return await self.policies(name)
        except Error as error:
            return error

    async def policies(self, name: TopicName) -> Policies:
        return self.adapted(name, await self._catalog.effective_of(name))

    def adapted(self, name: TopicName, policies: Policies, *, is_adopted: bool = False) -> Policies:
        """The policies in force as they apply to this topic. `is_adopted`: it is a regular topic that a segment
        wraps."""
        if self.segments is None or not (name.domain is Domain.SEGMENT or is_adopted):
            return policies
        return segment_policies(policies, self.segments.logs.retention)


async def _withdraw(topic_log: TopicLog) -> None:
    """Remove the log of a regular topic whose name a scalable topic has. One with data is kept, closed."""
    if topic_log.chain.messages_ever or topic_log.cursors:
        log.error(
            "regular topic not served, a scalable topic has its name",
            extra={"topic": topic_log.name},
        )
        await topic_log.close()
        return
    try:
        await topic_log.delete()
    except Fenced:
        log.info("regular topic already removed, a scalable topic has its name", extra={"topic": topic_log.name})
