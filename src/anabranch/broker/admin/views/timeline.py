"""The timeline of a scalable topic for viewers: its geometry once, then changes and ticks.

The geometry of a topic (which segment had which range from when to when) is a table of columns. A viewer gets it once,
and after a split or merge only the segments that the change created or sealed. A *tick* has the figures of the segments
that change: the active ones, and the newest sealed ones that a subscription still reads.

All viewers of a topic on a broker share one `TopicFeed`: it reads once per `TICK_SECONDS`, and at once when the layout
changes, however many look. It has no task: the viewer that waits longest reads, the others take what it read. Without
viewers there is no work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from anabranch.broker.admin.scalable_topics import ScalableAdmin, positions_of, scalable_name, segment_figures
from anabranch.broker.services import Services
from anabranch.controller.interface import LayoutView, LayoutWatch, ScalableTopics, TopicRecord
from anabranch.controller.segment_host import SegmentStats
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment, backing_topic

TICK_SECONDS = 1.0
SEALED_MAX = 256  # sealed segments in a tick, the newest ones

COLUMNS = ("id", "start", "end", "createdAtMs", "sealedAtMs", "createdEpoch", "sealedEpoch", "parents", "topic")


def geometry(topic: TopicName, record: TopicRecord, since: int = -1) -> dict[str, Any]:
    """Rows of the segments, by id; with `since` only those created or sealed in a later epoch. A viewer whose number of
    segments is not `count` then has some that retention has deleted, and asks for all again."""
    changed = [one for one in _by_id(record) if max(one.created_at_epoch, one.sealed_at_epoch) > since]
    rows = [_row(topic, one) for one in changed]
    found: dict[str, Any] = {
        "epoch": record.epoch,
        "incarnation": record.incarnation,
        "columns": list(COLUMNS),
        "rows": rows,
        "count": len(record.segments),
    }
    if (origin := record.migrated_from) is not None:
        found["migratedFrom"] = {"topic": origin.topic, "partitions": origin.partitions, "atMs": origin.at_ms}
    return found


def _by_id(record: TopicRecord) -> list[Segment]:
    return sorted(record.segments.values(), key=lambda one: one.segment_id)


def _row(topic: TopicName, one: Segment) -> list[Any]:
    legacy = None if one.legacy_topic_name is None else str(backing_topic(topic, one))
    return [
        one.segment_id,
        one.hash_range.start,
        one.hash_range.end,
        one.created_at_ms,
        one.sealed_at_ms,
        one.created_at_epoch,
        one.sealed_at_epoch,
        list(one.parent_ids),
        legacy,
    ]


def measured(record: TopicRecord) -> TopicRecord:
    """The record with the segments that a tick has figures of."""
    sealed = sorted(one for one, segment in record.segments.items() if not segment.is_active)[-SEALED_MAX:]
    if len(sealed) + len(record.layout.active) == len(record.segments):
        return record
    newest = set(sealed)
    kept = {one: segment for one, segment in record.segments.items() if segment.is_active or one in newest}
    return replace(record, layout=replace(record.layout, segments=kept))


def tick(
    record: TopicRecord, state: Mapping[str, Any], figures: Mapping[int, SegmentStats], now_ms: int
) -> dict[str, Any]:
    """What changes all the time: figures of segments, subscriptions with their sessions, the running operation."""
    scaling = dict(state["autoScale"])
    scaling.pop("loads", None)
    last = record.last_operation
    segments = {str(one): segment_figures(stats) for one, stats in sorted(figures.items())}
    return {
        "t": now_ms,
        "epoch": record.epoch,
        "active": len(record.layout.active),
        "segments": {one: facts for one, facts in segments.items() if facts},
        "subscriptions": {
            name: _subscription(record, figures, name, facts) for name, facts in state["subscriptions"].items()
        },
        "operation": state["operation"],
        "lastOperation": None
        if last is None
        else {
            "id": last.operation_id,
            "kind": last.kind.value,
            "outcome": last.outcome.value,
            "finishedAtMs": last.finished_at_ms,
            "reason": last.reason,
        },
        "autoScale": scaling,
    }


def _subscription(
    record: TopicRecord, figures: Mapping[int, SegmentStats], name: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    measured_segments = {one: record.segments[one] for one in figures if one in record.segments}
    segments = positions_of(measured_segments, figures, name, facts)
    return {
        "type": facts["type"],
        "state": facts["state"],
        "generation": facts.get("generation", 0),
        "consumerCount": facts["consumerCount"],
        "consumers": facts.get("consumers", {}),
        "waiting": facts["waiting"],
        "msgBacklog": sum(one["backlog"] or 0 for one in segments.values()),
        "segments": {
            one: {key: it[key] for key in ("backlog", "drained", "consumer", "consumers")}
            for one, it in segments.items()
        },
    }


@dataclass(frozen=True, slots=True)
class Sample:
    serial: int
    record: TopicRecord
    tick: dict[str, Any]


class TopicFeed:
    """Newest sample of one topic. Implements `controller.interface.LayoutListener`."""

    def __init__(self, read: Callable[[], Awaitable[tuple[TopicRecord, dict[str, Any]]]]) -> None:
        self.viewers = 0
        self.watch: LayoutWatch | None = None
        self._read = read
        self._sample: Sample | None = None
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()

    def layout_changed(self, view: LayoutView) -> None:
        self._changed.set()

    def layout_failed(self, error: Error) -> None:
        self._changed.set()  # the next read raises it

    async def newer(self, serial: int) -> Sample:
        """A sample with a higher serial. Raises what reading raises, for example TopicNotFound after a deletion."""
        async with self._turn:
            if self._sample is not None and self._sample.serial > serial:
                return self._sample
            if self._sample is not None:
                await self.pause()
            self._changed.clear()
            record, found = await self._read()
            number = 1 if self._sample is None else self._sample.serial + 1
            self._sample = Sample(number, record, found)
            return self._sample

    async def pause(self) -> None:
        """Until the layout changes, at most `TICK_SECONDS`."""
        try:
            async with asyncio.timeout(TICK_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return


class TimelineAdmin:
    def __init__(self, services: Callable[[], Services], scalable: ScalableAdmin) -> None:
        self._services = services
        self._scalable = scalable
        self._feeds: dict[TopicName, TopicFeed] = {}

    def _topics(self) -> ScalableTopics:
        found = self._services().scalable
        if found is None:
            raise NotAllowed("scalable topics are switched off on this broker")
        return found

    async def timeline(self, topic: str, since: int) -> dict[str, Any]:
        """On any broker: `geometry`."""
        name = scalable_name(topic)
        return geometry(name, await self._topics().record(name), since)

    async def tick(self, topic: str) -> dict[str, Any]:
        """On any broker: figures of the segments that change, subscriptions, the running operation."""
        _, found = await self._read(scalable_name(topic))
        return found

    async def _read(self, name: TopicName) -> tuple[TopicRecord, dict[str, Any]]:
        state = await self._scalable.state(name)
        record = await self._topics().record(name)
        figures = await self._topics().figures(name, measured(record))
        return record, tick(record, state, figures, self._services().clock.now_ms())

    @asynccontextmanager
    async def feed(self, topic: str) -> AsyncGenerator[TopicFeed]:
        """The shared feed of a topic, for one viewer."""
        name = scalable_name(topic)
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = TopicFeed(lambda: self._read(name))
        feed.viewers += 1
        try:
            if feed.watch is None:
                feed.watch = self._topics().watch(name, feed, create=False)
            yield feed
        finally:
            feed.viewers -= 1
            if feed.viewers == 0:
                self._feeds.pop(name, None)
                if feed.watch is not None:
                    feed.watch.close()
