"""Keeps a producer or consumer attached to the broker of its topic: lookup, attach, wait for the loss, back off.

After a temporary refusal the first retry is immediate, and later ones wait with growing delays. Most such refusals are
over in a hundredth of the first delay.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from anabranch.client.config import Backoff
from anabranch.client.connection.connection import Connection
from anabranch.client.errors import (
    ClientError,
    ConsumerBusy,
    HandshakeFailed,
    LimitExceeded,
    ProducerBusy,
    QuotaExceeded,
    Refused,
    TimedOut,
)
from anabranch.model.errors import Error
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

URGENT_EVERY_SECONDS = 0.05
QUOTA_SECONDS_MAX = 0.6
"""Longest delay after a refusal for lack of space (a full disk, a backlog quota). With the broker's probe of the disk,
every 0.2 s, a producer sends again within a second after there is room."""


class BrokerLookup(Protocol):
    """Finds the broker of a topic; usually the connection pool."""

    async def serving(self, topic: str) -> Connection: ...


class Attachable(Protocol):
    """What is kept attached: a segment producer or a segment consumer."""

    @property
    def topic(self) -> str: ...

    async def attach(self, connection: Connection) -> None:
        """Open it on this connection; raises ClientError. Later losses are reported to `ReconnectLoop.lose`."""

    def lost(self) -> None:
        """The connection has ended. Called after every attempt to attach, successful or not."""

    def ended(self, error: ClientError) -> None:
        """It will not be attached again."""


class ReconnectLoop:
    def __init__(
        self,
        part: Attachable,
        pool: BrokerLookup,
        backoff: Backoff,
        clock: Clock,
        chance: Chance,
        forgives: tuple[type[ClientError], ...] = (),
    ) -> None:
        """`forgives`: refusals that are temporary here, even before the first successful attach."""
        self._part = part
        self._pool = pool
        self._backoff = backoff
        self._clock = clock
        self._chance = chance
        self._forgives = forgives
        self._is_urgent = False
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._loss: asyncio.Future[ClientError] = loop.create_future()
        self._first: asyncio.Future[ClientError | None] = loop.create_future()
        self._last_error: ClientError | None = None

    def lose(self, error: ClientError, *, is_urgent: bool = False) -> None:
        """The connection broke, or the broker closed the producer or consumer. If urgent, the next attempt is
        immediate, once per `URGENT_EVERY_SECONDS`, so that a broker that keeps closing it is not flooded."""
        if not self._loss.done():
            self._is_urgent = is_urgent
            self._loss.set_result(error)

    @property
    def last_error(self) -> ClientError | None:
        return self._last_error

    @property
    def is_lost(self) -> bool:
        return self._loss.done()

    async def wait_first(self, timeout_s: float) -> None:
        """Wait for the first attach. Raises the final error, or TimedOut with the last reason."""
        try:
            async with asyncio.timeout(timeout_s):
                error = await asyncio.shield(self._first)
        except TimeoutError:
            why = "the broker does not answer" if self._last_error is None else self._last_error.reason
            raise TimedOut(f"{self._part.topic} is not available: {why}") from self._last_error
        if error is not None:
            raise error

    async def run(self) -> None:
        """Runs until cancelled, or until a final error."""
        attempt, urgent_at = 0, float("-inf")
        while True:
            self._loss = self._loop.create_future()
            self._is_urgent = False
            try:
                connection = await self._pool.serving(self._part.topic)
                await self._part.attach(connection)
                if not self._first.done():
                    self._first.set_result(None)
                attempt = 0
                error = await self._loss
            except Error as refused:
                error = refused if isinstance(refused, ClientError) else ClientError(refused.reason)
            self._last_error = error
            self._part.lost()
            if self._is_final(error):
                self._part.ended(error)
                if not self._first.done():
                    self._first.set_result(error)
                return
            is_urgent = self._is_urgent or (attempt == 0 and isinstance(error, Refused) and not _is_lasting(error))
            if is_urgent and self._clock.monotonic() - urgent_at >= URGENT_EVERY_SECONDS:
                urgent_at = self._clock.monotonic()
                continue
            delay = self._backoff.delay(attempt, self._chance.random())
            if isinstance(error, QuotaExceeded):
                delay = min(delay, QUOTA_SECONDS_MAX)
            log.info(
                "reconnecting after a delay",
                extra={"topic": self._part.topic, "reason": error.reason, "delay_s": delay},
            )
            await self._clock.sleep(delay)
            attempt += 1

    def _is_final(self, error: ClientError) -> bool:
        if isinstance(error, self._forgives):
            return False
        if not self._first.done():
            # The application that opens it should know at once that another one is connected.
            return not error.retryable or isinstance(error, ProducerBusy | ConsumerBusy)
        # A refusal with an unknown reason means a broker in trouble, so it is not final. Neither is a failed handshake:
        # an operator may replace the certificate or the token file.
        return not error.retryable and type(error) is not Refused and not isinstance(error, HandshakeFailed)


def _is_lasting(error: ClientError) -> bool:
    """A limit lasts. Other refusals may be over at once: the broker opens, moves or closes the topic, or it still has
    the previous connection of this producer or consumer."""
    return isinstance(error, QuotaExceeded | LimitExceeded)
