"""Requests of one ordered subscription to the owners of the topic's segments, retried until confirmed.

Requests are sent by the topic's leader, under its term. If an owner knows a later term, the leader stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from anabranch.controller import segment_host as host
from anabranch.controller.segment_host import SegmentRef, Status
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.segment import Segment, backing_topic
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS

log = get_logger(__name__)

ASK_TOGETHER = 16
"""Concurrent requests to owners, per purpose."""


class RequestSender(Protocol):
    """The part of the topic's leader that sends requests."""

    topic: TopicName
    clock: Clock
    owner_epoch: Callable[[TopicName], int]

    async def ask_host(self, request: host.Request) -> host.Answer: ...

    def stop_leading(self, reason: str) -> None: ...


async def together(ask: Callable[[int], Awaitable[None]], segment_ids: Iterable[int]) -> None:
    """Asks for all segments, ASK_TOGETHER at a time."""
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
        """`segments` returns the current segments of the topic; `is_over` stops the retries."""
        self._leader, self._subscription, self._incarnation = leader, subscription, incarnation
        self._segments, self._is_over = segments, is_over

    def ref(self, segment_id: int) -> SegmentRef | None:
        segment = self._segments().get(segment_id)
        if segment is None:
            return None
        return SegmentRef(backing_topic(self._leader.topic, segment), self._incarnation, segment_id)

    def owner_epochs(self, segment_ids: Iterable[int]) -> dict[int, int]:
        """By segment: a number that changes with the segment's owner."""
        refs = {one: self.ref(one) for one in segment_ids}
        return {one: self._leader.owner_epoch(ref.name) for one, ref in refs.items() if ref is not None}

    async def ask_drained(self, segment_ids: Iterable[int], found: Callable[[int, int], None]) -> None:
        """Asks each owner until it answers, and calls `found` with each drained segment and its rewind count. Later
        drains are reported by the owners as events."""

        async def ask(segment_id: int) -> None:
            status = await self._answer(
                segment_id,
                lambda ref: host.Fence("drained", ref),
                "drain state of a segment is not known yet, retrying",
            )
            if status is None:
                return
            assert isinstance(status, Status)
            for name, rewind_count in status.drained:
                if name == self._subscription:
                    found(segment_id, rewind_count)

        await together(ask, segment_ids)

    async def close(self, consumer: str, segment_ids: Iterable[int], generation: int) -> None:
        """Closes the consumer there and fences lower generations."""
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
        """Repeats the request until the owner confirms it, or until `request` returns None."""
        await self._answer(segment_id, request, "segment owner did not confirm a request, retrying")

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
