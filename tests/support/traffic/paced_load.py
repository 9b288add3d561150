"""Keyed, numbered messages of the SDK at a fixed rate, and when they were confirmed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from anabranch import MessageId, Producer
from tests.support.traffic.delivery_audit import Numbered, encode

KEYS = 512
TICK_SECONDS = 0.002
FLUSH_SECONDS = 120.0


@dataclass
class PacedLoad:
    """An open loop: what is due is sent, whatever became of what was sent before."""

    producer: Producer
    rate: float
    sent: list[Numbered] = field(default_factory=list)
    done: list[tuple[float, float]] = field(default_factory=list)  # sent, confirmed
    errors: list[BaseException] = field(default_factory=list)
    is_over: bool = False
    task: asyncio.Future[None] = field(init=False)

    def start(self) -> None:
        self.task = asyncio.ensure_future(self.run())

    async def run(self) -> None:
        began, count = time.perf_counter(), 0
        while not self.is_over:
            due = int((time.perf_counter() - began) * self.rate)
            while count < due:
                self._send()
                count += 1
            await asyncio.sleep(TICK_SECONDS)
        await self.producer.flush(timeout=FLUSH_SECONDS)

    def _send(self) -> None:
        count = len(self.sent)
        message, now = (f"key-{count % KEYS}", count // KEYS), time.perf_counter()
        self.sent.append(message)
        future = self.producer.send_nowait(encode(*message, 100), key=message[0])
        future.add_done_callback(lambda one: self._confirmed(one, now))

    def _confirmed(self, future: asyncio.Future[MessageId], sent_at: float) -> None:
        if future.cancelled() or (error := future.exception()) is not None:
            self.errors.append(RuntimeError("cancelled") if future.cancelled() else error)  # type: ignore[arg-type]  # not cancelled: it has one
        else:
            self.done.append((sent_at, time.perf_counter()))
