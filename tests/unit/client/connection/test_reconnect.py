"""Reconnecting: at once after a temporary refusal, then with growing delays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from anabranch.client.config import Backoff
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.reconnect import URGENT_EVERY_SECONDS, ReconnectLoop
from anabranch.client.errors import (
    ClientError,
    ConsumerBusy,
    LimitExceeded,
    NotReady,
    QuotaExceeded,
    TlsFailed,
    TokenUnreadable,
    TopicNotFound,
    Unreachable,
    WrongPort,
)
from anabranch.runtime.clock import SystemClock, Timer

BACKOFF = Backoff(initial=0.1, maximum=0.4, jitter=0)


class QuickClock(SystemClock):
    """Sleeps no time at all, and writes down for how long."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.now += seconds
        await asyncio.sleep(0)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        raise AssertionError("no timer is needed")


class Even:
    def random(self) -> float:
        return 0.5


class Part:
    """Attached after the refusals are used up."""

    topic = "segment://public/default/x/0000-ffff-0"

    def __init__(self, *refusals: ClientError) -> None:
        self.refusals = list(refusals)
        self.attempts = 0
        self.tried = asyncio.Event()
        self.end: ClientError | None = None

    async def serving(self, topic: str) -> Connection:
        return cast(Connection, None)

    async def attach(self, connection: Connection) -> None:
        self.attempts += 1
        self.tried.set()
        if self.refusals:
            raise self.refusals.pop(0)

    def lost(self) -> None: ...

    def ended(self, error: ClientError) -> None:
        self.end = error


@asynccontextmanager
async def attached(
    part: Part, clock: QuickClock, forgives: tuple[type[ClientError], ...] = ()
) -> AsyncIterator[ReconnectLoop]:
    made = ReconnectLoop(part, part, BACKOFF, clock, Even(), forgives)
    task = asyncio.ensure_future(made.run())
    try:
        await made.wait_first(5)
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    ("refusals", "pauses"),
    [
        ([NotReady("opening")], []),
        ([NotReady("opening"), NotReady("opening")], [0.1]),
        ([TopicNotFound("not yet"), ConsumerBusy("leaving"), NotReady("opening")], [0.1, 0.2]),
        ([Unreachable("down")], [0.1]),
        ([QuotaExceeded("full"), LimitExceeded("too many")], [0.1, 0.2]),
    ],
)
async def test_first_retry_after_a_temporary_refusal_is_immediate(
    refusals: list[ClientError], pauses: list[float]
) -> None:
    part, clock = Part(*refusals), QuickClock()
    async with attached(part, clock, (TopicNotFound, ConsumerBusy)):
        assert (clock.slept, part.attempts) == (pauses, len(refusals) + 1)


@pytest.mark.parametrize(
    ("refusal", "pauses"),
    [
        (QuotaExceeded("full"), [0.1, 0.2, 0.4, 0.6, 0.6]),  # it resumes within a second
        (LimitExceeded("too many"), [0.1, 0.2, 0.4, 0.8, 1.6]),
    ],
)
async def test_delays_stay_short_while_there_is_no_room(refusal: ClientError, pauses: list[float]) -> None:
    part, clock = Part(*[refusal] * 5), QuickClock()
    made = ReconnectLoop(part, part, Backoff(initial=0.1, maximum=30, jitter=0), clock, Even())
    task = asyncio.ensure_future(made.run())
    await made.wait_first(5)
    task.cancel()
    await asyncio.wait([task])
    assert clock.slept == pauses


async def test_repeated_urgent_losses_are_retried_with_delays() -> None:
    part, clock = Part(), QuickClock()
    async with attached(part, clock) as made:

        async def lose() -> None:
            part.tried.clear()
            made.lose(NotReady("closed"), is_urgent=True)
            async with asyncio.timeout(5):
                await part.tried.wait()

        await lose()
        assert clock.slept == []
        await lose()
        assert clock.slept == [0.1]
        clock.now += URGENT_EVERY_SECONDS
        await lose()
        assert clock.slept == [0.1]


@pytest.mark.parametrize("error", [TlsFailed("not trusted"), WrongPort("HTTP"), TokenUnreadable("no file")])
async def test_failed_handshake_ends_the_loop_only_before_the_first_attach(error: ClientError) -> None:
    part, clock = Part(error), QuickClock()
    with pytest.raises(type(error)):
        async with attached(part, clock):
            raise AssertionError("it was not attached")
    part = Part()
    async with attached(part, clock) as made:
        part.refusals = [error, error]
        part.tried.clear()
        made.lose(Unreachable("the broker stopped"))
        async with asyncio.timeout(5):
            while part.attempts < 4:
                await part.tried.wait()
                part.tried.clear()
        assert part.end is None and not made.is_lost


async def test_final_error_ends_the_reconnect_loop() -> None:
    part, clock = Part(TopicNotFound("never")), QuickClock()
    with pytest.raises(TopicNotFound):
        async with attached(part, clock):
            raise AssertionError("it was not attached")
    assert isinstance(part.end, TopicNotFound)
    assert (part.attempts, clock.slept) == (1, [])
