"""Keyed, numbered, pipelined messages through the SDK, and their outcomes. `delivery_audit` checks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from anabranch import MessageId, Producer
from tests.support.traffic.delivery_audit import Numbered, Verdict, by_stream, decode, encode, judge

RETRY_DELAYS = 60.0
PENDING_BYTES_MAX = 1 << 20
PAUSE_SECONDS = 0.002


class KeyedLoad:
    def __init__(self, producer: Producer, keys: int = 40) -> None:
        self._producer = producer
        self._keys = keys
        self._next: dict[str, int] = {}
        self._sent: list[Numbered] = []
        self._news = asyncio.Event()
        self._is_over = False
        self.futures: list[asyncio.Future[MessageId]] = []

    def burst(self, count: int, size: int = 60) -> None:
        for _ in range(count):
            key = f"key-{len(self._sent) % self._keys}"
            number = self._next[key] = self._next.get(key, -1) + 1
            self.futures.append(self._producer.send_nowait(encode(key, number, size), key=key))
            self._sent.append((key, number))
        self._news.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A steady stream, bounded by what waits for its receipt; everything has its outcome afterwards."""

        async def run() -> None:
            while not self._is_over:
                if self._producer.pending_bytes < PENDING_BYTES_MAX:
                    self.burst(20)
                await asyncio.sleep(PAUSE_SECONDS)

        task = asyncio.ensure_future(run())
        try:
            yield
        finally:
            self._is_over = True
            await task
            await self._producer.flush(timeout=RETRY_DELAYS)

    async def progress(self, count: int = 100) -> None:
        """Until so many that are not sent yet are confirmed."""
        first = len(self.futures)
        async with asyncio.timeout(RETRY_DELAYS):
            while len(self.futures) < first + count:
                self._news.clear()
                await self._news.wait()
            await asyncio.wait(self.futures[first : first + count])

    def verdict(self, stored: Iterable[bytes]) -> Verdict:
        """Of what the topic has; no send may have failed."""
        errors = [error for future in self.futures if (error := future.exception()) is not None]
        assert not errors, f"{len(errors)} errors: {errors[0]!r}"
        return judge(by_stream(self._sent), by_stream(decode(one) for one in stored))
