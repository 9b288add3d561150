"""Sends messages through the SDK's producer and counts them: in flight, stored, latency."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from anabranch.cli.traffic.histogram import Histogram
from anabranch.client import MessageId, Producer
from anabranch.runtime.clock import Clock

BYTES_MAX = 32 << 20
PENDING_BYTES_MAX = 4 * BYTES_MAX  # of the producer: more than we ever let wait


@dataclass(slots=True)
class Sent:
    """What has happened so far."""

    messages: int = 0
    bytes: int = 0
    stored: int = 0
    stored_at: float = 0.0
    last: MessageId | None = None

    def __str__(self) -> str:
        return f"{self.stored:,} of {self.messages:,} sent messages are stored"


class Sender:
    """Never waits by itself: `wait_below` does, and raises what went wrong first."""

    def __init__(self, producer: Producer, clock: Clock, sent: Sent) -> None:
        """`sent` is the caller's, who reads it also after a failure."""
        self._producer = producer
        self._clock = clock
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._failure: BaseException | None = None
        self._news = asyncio.Event()
        self.sent = sent
        self.latencies = Histogram()

    def send(self, data: bytes, key: str | None, due: float) -> None:
        """Its time counts from when it was due."""
        future = self._producer.send_nowait(data, key=key)
        self._in_flight += 1
        self._in_flight_bytes += len(data)
        self.sent.messages += 1
        self.sent.bytes += len(data)
        future.add_done_callback(partial(self._settled, due, len(data)))

    def _settled(self, due: float, size: int, future: asyncio.Future[MessageId]) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= size
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._failure = self._failure or error
        else:
            now = self._clock.monotonic()
            self.latencies.record(now - due)
            self.sent.stored += 1
            self.sent.stored_at = now
            self.sent.last = future.result()
        self._news.set()

    async def wait_below(self, messages: int) -> None:
        """Until fewer are in flight."""
        while self._failure is None and (self._in_flight >= messages or self._in_flight_bytes >= BYTES_MAX):
            self._news.clear()
            await self._news.wait()
        if self._failure is not None:
            raise self._failure
