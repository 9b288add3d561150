"""What this broker does for its segments beside their requests: admission of clients, seal notifications, events.

It exists before the registry of topics, because the registry calls it when a client asks for a segment and whenever a
segment is loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.broker.publish.producer import Producer
from anabranch.broker.segment.owned_segment import OwnedSegment
from anabranch.broker.segment.segment_logs import SegmentLogs
from anabranch.broker.segment_host.seal_notifications import SealNotifications
from anabranch.broker.segment_host.topic_layouts import TopicLayouts, find_segment
from anabranch.controller.segment_host import Seal, SubscriptionEvent
from anabranch.model.names import TopicName

CREATED_SECONDS = 5.0


class LocalSegmentListener:
    """Implements `SegmentListener` and the registry's `SegmentAdmission`."""

    def __init__(self, layouts: TopicLayouts, logs: SegmentLogs, seals: SealNotifications) -> None:
        self._layouts = layouts
        self._logs = logs
        self._seals = seals
        self._callbacks: list[Callable[[SubscriptionEvent], None]] = []
        self._awaited: dict[TopicName, asyncio.Event] = {}  # planned segments that clients wait for

    # -- events

    def listen(self, callback: Callable[[SubscriptionEvent], None]) -> Callable[[], None]:
        """Every event of the segments that this broker owns."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def on_event(self, event: SubscriptionEvent) -> None:
        for callback in tuple(self._callbacks):
            callback(event)

    # -- seals

    async def prepare_seal(self, request: Seal) -> None:
        """Called before the seal begins: reads the children, so that nothing is read while producers wait."""
        await self._seals.prepare(request)

    def notify_sealed(self, producer: Producer, segment: OwnedSegment) -> None:
        self._seals.notify(producer, segment)

    # -- admission

    async def admit(self, name: TopicName) -> None:
        """Raises TopicNotFound unless the segment is in its topic's layout or in the running operation. Waits for a
        planned segment, because producers connect before it is created."""
        topic, segment = await find_segment(self._layouts, name)
        if topic.is_planned(segment):
            await self._wait_created(name)

    async def _wait_created(self, name: TopicName) -> None:
        """Returns after CREATED_SECONDS at the latest; then the client's request fails with NotFound."""
        awaited = self._awaited.setdefault(name, asyncio.Event())  # before the look: it may be created meanwhile
        if (await self._logs.peek(name)).exists:
            self.created(name)
            return
        try:
            async with asyncio.timeout(CREATED_SECONDS):
                await awaited.wait()
        except TimeoutError:
            self._awaited.pop(name, None)

    def created(self, name: TopicName) -> None:
        """A segment of this broker has been created."""
        if (awaited := self._awaited.pop(name, None)) is not None:
            awaited.set()
