"""The demo's traffic: keyed orders and their consumers; records confirmed and received messages for the audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise

from anabranch import Checkpoint, CheckpointConsumer, Client, MessageId, Producer, QueueConsumer, StreamConsumer
from scripts.demo_changes import Changes
from scripts.demo_show import Show
from tests.support.traffic.delivery_audit import Numbered, Verdict, by_stream, decode, encode, judge

KEYS = 200
MESSAGE_BYTES = 100
TICK_SECONDS = 0.002
WORKERS = 2


class Orders:
    """An open loop: what is due is sent, whatever became of what was sent before."""

    def __init__(self, producer: Producer, messages: int, rate: int) -> None:
        self._producer = producer
        self._messages = messages
        self._rate = rate
        self._sent = 0
        self._news = asyncio.Event()
        self.confirmed: list[Numbered] = []
        self.confirmed_at: list[float] = []
        self.errors: list[BaseException] = []

    async def run(self) -> None:
        began = time.monotonic()
        while self._sent < self._messages:
            due = min(self._messages, int((time.monotonic() - began) * self._rate))
            while self._sent < due:
                message = (f"customer-{self._sent % KEYS}", self._sent // KEYS)
                future = self._producer.send_nowait(encode(*message, MESSAGE_BYTES), key=message[0])
                future.add_done_callback(partial(self._outcome, message))
                self._sent += 1
            await asyncio.sleep(TICK_SECONDS)

    def _outcome(self, message: Numbered, future: asyncio.Future[MessageId]) -> None:
        if future.cancelled():
            self.errors.append(asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self.errors.append(error)
        else:
            self.confirmed.append(message)
            self.confirmed_at.append(time.monotonic())
        self._news.set()

    async def wait_share(self, share: float) -> None:
        """Until so much of it is confirmed."""
        while len(self.confirmed) < share * self._messages:
            self._news.clear()
            await self._news.wait()

    @property
    def is_complete(self) -> bool:
        return len(self.confirmed) == self._messages and not self.errors

    def pause_ms(self, changes: Changes, *, is_kill: bool) -> float:
        """The longest time without a confirmation near the changes of this kind."""
        pauses = (
            later - earlier
            for earlier, later in pairwise(self.confirmed_at)
            if changes.is_near(later, is_kill=is_kill) and (is_kill or not changes.is_near(later, is_kill=True))
        )
        return max(pauses, default=0.0) * 1000


class Readers:
    def __init__(self) -> None:
        self.stream: list[Numbered] = []
        self.queue: list[Numbered] = []
        self.checkpoint: list[Numbered] = []
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    @asynccontextmanager
    async def opened(cls, client: Client, topic: str) -> AsyncIterator[Readers]:
        readers = cls()
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            stream = await enter(client.stream_consumer(topic, subscription="audit", start="earliest"))
            workers = [
                await enter(client.queue_consumer(topic, subscription="work", start="earliest")) for _ in range(WORKERS)
            ]
            reader = await enter(client.checkpoint_consumer(topic, start=Checkpoint.earliest()))
            work = [readers._follow(stream), readers._read(reader), *map(readers._work, workers)]
            readers._tasks = [asyncio.ensure_future(one) for one in work]
            try:
                yield readers
            finally:
                for task in readers._tasks:
                    task.cancel()
                await asyncio.gather(*readers._tasks, return_exceptions=True)

    async def _follow(self, consumer: StreamConsumer) -> None:
        async for message in consumer:
            self.stream.append(decode(message.value))
            await consumer.ack_cumulative(message)

    async def _work(self, consumer: QueueConsumer) -> None:
        async for message in consumer:
            self.queue.append(decode(message.value))
            await consumer.ack(message)

    async def _read(self, consumer: CheckpointConsumer) -> None:
        async for message in consumer:
            self.checkpoint.append(decode(message.value))

    async def wait_all(self, orders: Orders, show: Show) -> None:
        """Until each has seen everything; a reader that failed says so."""
        wanted = set(orders.confirmed)
        while any(not wanted <= set(seen) for seen in (self.stream, self.queue, self.checkpoint)):
            for task in self._tasks:
                if task.done():
                    task.result()
            show.progress(
                f"read: {len(self.stream):,} stream, {len(self.queue):,} queue, {len(self.checkpoint):,} reader"
            )
            await asyncio.sleep(0.2)


def report(orders: Orders, readers: Readers, changes: Changes, show: Show) -> bool:
    """Prints what each reader saw; did all hold?"""
    confirmed = by_stream(orders.confirmed)
    verdicts: list[tuple[str, Verdict]] = [
        ("stream, every key in order", judge(confirmed, by_stream(readers.stream))),
        (f"queue, {WORKERS} workers", judge(confirmed, by_stream(readers.queue), ordered=False)),
        ("checkpoint reader, what is stored", judge(confirmed, by_stream(readers.checkpoint))),
    ]
    show.say("")
    show.row(
        "confirmed", f"{len(orders.confirmed):,} orders of {KEYS} customers, {show.count(len(orders.errors))} errors"
    )
    for label, verdict in verdicts:
        counts = f"lost {show.count(len(verdict.lost))}, reordered {show.count(len(verdict.out_of_order))}"
        show.row(label, f"{verdict.read:,} read, {counts}, duplicated {show.count(verdict.repeated)}")
    calm, kill = (orders.pause_ms(changes, is_kill=one) for one in (False, True))
    show.row("longest pause", f"{calm:.0f} ms around splits and merges, {kill / 1000:.1f} s around the kill")
    stream, _, stored = (verdict for _, verdict in verdicts)
    return orders.is_complete and all(one.holds for _, one in verdicts) and not stream.repeated and not stored.repeated
