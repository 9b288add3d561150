"""Layout watches of clients, on any broker: reads a record when it has changed and sends the layouts in order.

One store watch on all records serves all watchers; it reports only *that* a record changed. Per topic at most one read
runs, and changes during it cause one more. So a watcher never gets an older layout after a newer one, and a burst of
changes is one push. Records that a controller on this broker pushes are sent at once, without reading the store.

A regular topic has a synthetic layout (`regular_topics`). It is sent again when partitions are added or the partition
hash is found. The topic record of its name is watched too, because a migration makes it a scalable topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from anabranch.controller.events import TopicGone
from anabranch.controller.interface import LayoutListener, LayoutView, TopicExists
from anabranch.controller.placement import Place, Reachable
from anabranch.controller.record_store import RecordStore
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.regular_topics import (
    LOOK_AGAIN_SECONDS,
    LOOK_AGAIN_SECONDS_MAX,
    RegularTopic,
    regular_name,
)
from anabranch.metadata.interface import ChangeKind, MetadataStore, StoreUnavailable, Watch
from anabranch.model.errors import Error, NotAllowed, NotReady
from anabranch.model.metadata_keys import PARTITIONED_TOPICS, SCALABLE_TOPICS, scalable_topic_at
from anabranch.model.names import Domain, TopicName
from anabranch.model.segment import Segment, backing_topic
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

_MIGRATED = frozenset({"topic-migrated", "topic-migrating"})
"""Codes of errors: the regular topic became a scalable one."""
_LOOKS_MAX = 10  # the delay between two looks is at its maximum then


class TopicActivation(Protocol):
    """Creates and activates topics from any broker; calls that need the leader are sent to it."""

    async def create_by_use(self, topic: TopicName) -> None:
        """Raises TopicGone if policies do not allow it."""

    async def activate(self, topic: TopicName) -> None:
        """The topic is led when this returns."""

    async def regular(self, topic: TopicName, *, create: bool = False) -> RegularTopic | None:
        """The regular topic of this name; None if there is none. With `create`, a missing partitioned topic is created
        if policies say so. Raises TopicNotFound if `create` is given and topics are not created automatically."""


@dataclass(slots=True, eq=False)
class Watcher:
    """One watch of one client. Implements `interface.LayoutWatch`."""

    listener: LayoutListener
    asked: TopicName  # the name that the client used
    create: bool
    leave: Callable[[Watcher], None]
    sent: object = None  # the last view; None: nothing yet

    def close(self) -> None:
        self.leave(self)


@dataclass(slots=True)
class Watched:
    """One topic with watchers on this broker."""

    watchers: dict[Watcher, None] = field(default_factory=dict)
    record: TopicRecord | None = None
    pushes: int = 0  # records that the controller on this broker has pushed
    is_dirty: bool = True  # the record may have changed since the last read began
    is_reading: bool = False
    looks: int = 0  # examinations of a regular topic that did not show its partition hash
    next_look: Timer | None = None


class LayoutWatches:
    """`async with LayoutWatches(…)`: changes are followed inside."""

    def __init__(
        self, store: MetadataStore, records: RecordStore, place: Place, activation: TopicActivation, clock: Clock
    ) -> None:
        self._store, self._records, self._place, self._activation, self._clock = (
            store,
            records,
            place,
            activation,
            clock,
        )
        self._topics: dict[TopicName, Watched] = {}
        self._watches: list[Watch] = []
        self._tasks = TaskOwner("layout-watches")

    def __len__(self) -> int:
        """Watchers of all topics."""
        return sum(len(one.watchers) for one in self._topics.values())

    async def __aenter__(self) -> Self:
        for root in (SCALABLE_TOPICS, PARTITIONED_TOPICS):
            watch = self._store.watch(root)
            self._watches.append(watch)
            self._tasks.spawn(self._follow(watch, root), f"follow {root}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.close()
        for watched in self._topics.values():
            _stop_looking(watched)
        await self._tasks.close()

    # watchers ---------------------------------------------------------------------------------------------------------
    def watch(self, topic: TopicName, listener: LayoutListener, *, create: bool) -> Watcher:
        key = topic.scalable
        watched = self._topics.setdefault(key, Watched())
        watcher = Watcher(listener, topic, create, self._leave)
        watched.watchers[watcher] = None
        self._schedule_read(key, watched)
        return watcher

    def _leave(self, watcher: Watcher) -> None:
        key = watcher.asked.scalable
        watched = self._topics.get(key)
        if watched is not None:
            watched.watchers.pop(watcher, None)
            if not watched.watchers and not watched.is_reading:
                self._forget(key, watched)

    def _forget(self, key: TopicName, watched: Watched) -> None:
        _stop_looking(watched)
        if self._topics.get(key) is watched:
            del self._topics[key]

    # changes ----------------------------------------------------------------------------------------------------------
    async def _follow(self, watch: Watch, root: str) -> None:
        async for change in watch:
            if change.kind is ChangeKind.INVALIDATED:
                self.look_again()
            elif (topic := scalable_topic_at(change.key, root)) is not None and (
                watched := self._topics.get(topic)
            ) is not None:
                self._schedule_read(topic, watched)

    def look_again(self) -> None:
        """All records may have changed."""
        for topic, watched in tuple(self._topics.items()):
            self._schedule_read(topic, watched)

    def placement_changed(self) -> None:
        """Topics may have other owners: views with changed addresses are sent again."""
        for topic, watched in tuple(self._topics.items()):
            if watched.record is not None:
                self._notify(topic, watched)

    def on_record(self, topic: TopicName, record: TopicRecord | None) -> None:
        """A controller on this broker pushes its record; None: the topic was deleted."""
        watched = self._topics.get(topic)
        if watched is None:
            return
        if (record is not None and record.is_migrating) or (record is None and watched.record is None):
            return  # its watchers still see the regular topic; a migration may be undone
        watched.pushes += 1
        if record is None:
            self._end(topic, watched, TopicGone(f"{topic} was deleted"))
        else:
            watched.record = record
            self._notify(topic, watched)

    # reading ----------------------------------------------------------------------------------------------------------
    def _schedule_read(self, topic: TopicName, watched: Watched) -> None:
        watched.is_dirty = True
        if not watched.is_reading and self._tasks.spawn(self._read(topic, watched), "read") is not None:
            watched.is_reading = True

    async def _read(self, topic: TopicName, watched: Watched) -> None:
        failures = 0
        try:
            while watched.is_dirty and watched.watchers:
                watched.is_dirty, pushes = False, watched.pushes
                try:
                    found = await self._records.find(topic, sync=any(one.sent is None for one in watched.watchers))
                    if watched.pushes == pushes:
                        await self._found(topic, watched, found)
                    elif any(one.sent is None for one in watched.watchers):
                        watched.is_dirty = True
                    failures = 0
                except StoreUnavailable as error:
                    failures += 1
                    log.info("layout not read yet, retrying", extra={"topic": str(topic), "reason": error.reason})
                    self._fail_new(watched, error)
                    watched.is_dirty = True
                    await self._clock.sleep(RETRY_DELAYS.retry_after(failures, 0.5))
                except Error as error:
                    if error.code in _MIGRATED:  # since the record was read
                        watched.is_dirty = True
                        await self._clock.sleep(RETRY_DELAYS.retry_after(1, 0.5))
                    else:
                        self._end(topic, watched, error)
        finally:
            watched.is_reading = False
            if not watched.watchers:
                self._forget(topic, watched)

    async def _found(self, topic: TopicName, watched: Watched, record: TopicRecord | None) -> None:
        if record is not None and record.is_migrating:
            if record.leader_term == 0:
                await self._activation.activate(topic)
            found = await self._activation.regular(topic, create=False)
            if found is not None:
                self._notify_regular(topic, watched, found, list(watched.watchers))
            else:
                self._fail_new(watched, NotReady(f"{topic} is being migrated; try again"))
        elif record is None or record.is_deleting:
            if watched.record is not None:
                self._end(topic, watched, TopicGone(f"{topic} was deleted"))
            else:
                await self._absent(topic, watched)
        elif record.leader_term == 0:  # just written: its segments may not exist yet
            await self._activation.activate(topic)
            watched.is_dirty = True
        elif record is watched.record and all(watcher.sent is not None for watcher in watched.watchers):
            return  # the record that the controller pushed is now in the store
        elif not _is_older(record, watched.record):
            watched.record = record
            self._notify(topic, watched)

    async def _absent(self, topic: TopicName, watched: Watched) -> None:
        """No scalable topic has the name. A regular topic has a synthetic layout. If there is none either, a scalable
        topic is created if a watcher asks for it."""
        new = [watcher for watcher in watched.watchers if watcher.sent is None]
        creates = any(one.create and one.asked.domain is Domain.PERSISTENT for one in new)
        found = await self._activation.regular(topic, create=creates)
        if watched.record is not None:
            return  # it became a scalable topic meanwhile, and its watchers have the layout
        if found is not None:
            self._notify_regular(topic, watched, found, list(watched.watchers))
            return
        absent = [watcher for watcher in new if watcher.asked.domain is Domain.PERSISTENT]
        self._notify_regular(topic, watched, RegularTopic(regular_name(topic)), absent)  # created when it is used
        scalable = [watcher for watcher in new if watcher.asked.domain in (Domain.TOPIC, Domain.SEGMENT)]
        if any(watcher.create and watcher.asked.domain is Domain.TOPIC for watcher in scalable):
            try:
                await self._activation.create_by_use(topic)
            except TopicExists:
                pass  # it was created concurrently
            except Error as error:
                self._fail(watched, scalable, error)
            else:
                watched.is_dirty = True
                return
            watched.is_dirty = watched.is_dirty or any(watcher in watched.watchers for watcher in scalable)
            return
        self._fail(watched, scalable, TopicGone(f"{topic} does not exist"))

    def _notify_regular(
        self, topic: TopicName, watched: Watched, found: RegularTopic, watchers: Iterable[Watcher]
    ) -> None:
        """Sends the synthetic layout to those of the watchers that have another one. Never after a real layout: `found`
        may be older than the migration that the controller on this broker has pushed."""
        if watched.record is not None:
            return
        layout = found.layout(self._clock.now_ms())
        brokers = self._brokers(topic, layout.segments.values())
        view = LayoutView(topic, layout, brokers=brokers, is_synthetic=True)
        for watcher in watchers:
            if watcher.sent != found and watcher in watched.watchers:
                watcher.sent = found
                watcher.listener.layout_changed(view)
        if found.is_hash_wanted and watched.next_look is None and watched.watchers:
            delay = min(LOOK_AGAIN_SECONDS * 2**watched.looks, LOOK_AGAIN_SECONDS_MAX)
            watched.looks = min(watched.looks + 1, _LOOKS_MAX)
            watched.next_look = self._clock.call_later(delay, partial(self._look_for_hash, topic, watched))

    def _look_for_hash(self, topic: TopicName, watched: Watched) -> None:
        watched.next_look = None
        if watched.watchers:
            self._schedule_read(topic, watched)

    # notifying --------------------------------------------------------------------------------------------------------
    def _notify(self, topic: TopicName, watched: Watched) -> None:
        record = watched.record
        assert record is not None
        if record.leader_term == 0 or record.is_deleting:
            return
        running = record.operation
        segments = [*record.segments.values(), *record.planned_children]
        brokers = self._brokers(topic, segments)
        view = LayoutView(
            topic,
            record.layout,
            record.incarnation,
            "" if running is None else running.operation_id,
            None if running is None else running.plan,
            self._place.owner_address(topic),
            brokers,
        )
        key = (view.incarnation, record.epoch, view.operation_id, view.controller, tuple(brokers.items()))
        for watcher in tuple(watched.watchers):
            if watcher.sent != key:
                watcher.sent = key
                watcher.listener.layout_changed(view)

    def _brokers(self, topic: TopicName, segments: Iterable[Segment]) -> dict[int, Reachable]:
        found = ((one.segment_id, self._place.owner_address(backing_topic(topic, one))) for one in segments)
        return {segment_id: where for segment_id, where in found if where is not None}

    def _end(self, topic: TopicName, watched: Watched, error: Error) -> None:
        self._fail(watched, list(watched.watchers), error)
        watched.record, watched.is_dirty = None, False
        self._forget(topic, watched)

    def _fail_new(self, watched: Watched, error: Error) -> None:
        """Watchers that wait for their first layout fail at once when the store is unavailable."""
        self._fail(watched, [watcher for watcher in watched.watchers if watcher.sent is None], error)

    def _fail(self, watched: Watched, watchers: list[Watcher], error: Error) -> None:
        for watcher in watchers:
            watched.watchers.pop(watcher, None)
            watcher.listener.layout_failed(error)


def check_watchable(topic: TopicName) -> None:
    """Raises NotAllowed or TopicGone for names that have no layout."""
    if topic.domain is Domain.NON_PERSISTENT:
        raise NotAllowed(f"{topic} is not persistent: it has no segments")
    if topic.partition_index >= 0:
        raise TopicGone(f"{topic} is a partition: watch {topic.base}")


def _stop_looking(watched: Watched) -> None:
    if watched.next_look is not None:
        watched.next_look.cancel()
        watched.next_look = None


def _is_older(found: TopicRecord, known: TopicRecord | None) -> bool:
    return known is not None and found.incarnation == known.incarnation and found.epoch < known.epoch
