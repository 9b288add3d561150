"""The owners of a topic's segments as one ordered subscription needs them: asked again and again, until they answer.

Every request goes through the topic's leader, under its term; an owner that knows of a later one ends us. Must not know
consumers, or why something is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from anabranch.controller import segment_host as host
from anabranch.controller.segment_host import SegmentRef, Status
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.segment import Segment, backing_topic
from anabranch.runtime.clock import Clock
from anabranch.runtime.retry_delays import RETRY_DELAYS

log = logging.getLogger(__name__)

ASK_TOGETHER = 16
"""Requests to owners of segments under way at a time, for one purpose."""


class RequestSender(Protocol):
    """The topic's leader, as far as it is needed here."""

    topic: TopicName
    clock: Clock
    owner_epoch: Callable[[TopicName], int]

    async def ask_host(self, request: host.Request) -> host.Answer: ...

    def stop_leading(self, reason: str) -> None: ...


async def together(ask: Callable[[int], Awaitable[None]], segment_ids: Iterable[int]) -> None:
    """A few at a time; returns when all have been asked."""
    wanted = tuple(segment_ids)
    for start in range(0, len(wanted), ASK_TOGETHER):
        await asyncio.gather(*map(ask, wanted[start : start + ASK_TOGETHER]))


class SegmentOwners:
    def __init__(
        self,
        leader: RequestSender,
        subscription: str,
        incarnation: int,
        segments: Callable[[], Mapping[int, Segment]],
        is_over: Callable[[], bool],
    ) -> None:
        """`segments` of the topic as they are now; `is_over`: nobody wants to know any more."""
        self._leader, self._subscription, self._incarnation = leader, subscription, incarnation
        self._segments, self._is_over = segments, is_over

    def ref(self, segment_id: int) -> SegmentRef | None:
        segment = self._segments().get(segment_id)
        if segment is None:
            return None
        return SegmentRef(backing_topic(self._leader.topic, segment), self._incarnation, segment_id)

    def owner_epochs(self, segment_ids: Iterable[int]) -> dict[int, int]:
        """Another number whenever a segment has another owner."""
        refs = {one: self.ref(one) for one in segment_ids}
        return {one: self._leader.owner_epoch(ref.name) for one, ref in refs.items() if ref is not None}

    async def ask_drained(self, segment_ids: Iterable[int], found: Callable[[int, int], None]) -> None:
        """Until each has answered; `found` is told the segments that are drained, and their rewinds. Later the owners
        tell by themselves."""

        async def ask(segment_id: int) -> None:
            status = await self._answer(segment_id, lambda ref: host.Fence("drained", ref), "not known whether drained")
            if status is None:
                return
            assert isinstance(status, Status)
            for name, rewinds in status.drained:
                if name == self._subscription:
                    found(segment_id, rewinds)

        await together(ask, segment_ids)

    async def close(self, consumer: str, segment_ids: Iterable[int], generation: int) -> None:
        """The consumer is to be closed there, and not to come back under a lower generation."""
        name = self._subscription
        await together(
            lambda one: self.retry_until_confirmed(
                one, lambda ref: host.CloseReader("close", ref, name, consumer, generation)
            ),
            segment_ids,
        )

    async def hold(self, segment_id: int, position: Position | None) -> None:
        await self.retry_until_confirmed(segment_id, lambda ref: host.Hold("hold", ref, self._subscription, position))

    async def retry_until_confirmed(
        self, segment_id: int, request: Callable[[SegmentRef], host.Request | None]
    ) -> None:
        """Until the owner has confirmed it; None: it is not wanted any more."""
        await self._answer(segment_id, request, "owner does not answer")

    async def _answer(
        self, segment_id: int, request: Callable[[SegmentRef], host.Request | None], trouble: str
    ) -> host.Answer | None:
        failures = 0
        while (ref := self.ref(segment_id)) is not None and not self._is_over() and (asked := request(ref)) is not None:
            try:
                return await self._leader.ask_host(asked)
            except host.StaleTerm as error:
                self._leader.stop_leading(error.reason)
                return None
            except Error as error:
                failures += 1
                log.info(trouble, extra={"segment": str(ref.name), "reason": error.reason})
                await self._leader.clock.sleep(RETRY_DELAYS.retry_after(failures, 0.5))
        return None
