"""Connections to all bookies, made when they are needed, with growing delays after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.bookkeeper.bookie_connection import NO_ANSWER, AddReceiver, BookieConnection
from anabranch.storage.bookkeeper.errors import BookieUnreachable
from anabranch.storage.bookkeeper.packets import Answer, Flag
from anabranch.storage.interface import Payload

log = get_logger(__name__)

CONNECT_S = 5.0
RETRY_S, RETRY_S_MAX = 0.1, 5.0
BYTES_MAX = 128 * 1024 * 1024
"""Of one bookie, in adds without an answer. Producers' windows bound the sum long before in normal operation."""


class _Link:
    """The way to one bookie: connected, connecting, or waiting before the next attempt."""

    __slots__ = ("connecting", "connection", "failures", "reason", "retry_at")

    def __init__(self) -> None:
        self.connection: BookieConnection | None = None
        self.connecting: asyncio.Task[BookieConnection | None] | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.reason = ""


class Bookies:
    def __init__(
        self,
        clock: Clock,
        address_of: Callable[[str], tuple[str, int]],
        *,
        request_s: float,
        connect_s: float = CONNECT_S,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """`address_of` raises BookieUnreachable for an id that was never seen and is no address."""
        self._clock, self._address_of = clock, address_of
        self._request_s, self._connect_s, self._bytes_max = request_s, connect_s, bytes_max
        self._links: dict[str, _Link] = {}
        self._tasks = TaskOwner("bookies")

    async def close(self) -> None:
        await self._tasks.close()
        for link in self._links.values():
            connection, link.connection = link.connection, None
            if connection is not None:
                connection.abort("this broker closes it")

    def connect_now(self, bookies: Iterable[str]) -> None:
        """These have registered: a connection to them is tried with the next request, without the delay."""
        for bookie in bookies:
            link = self._links.get(bookie)
            if link is not None:
                link.failures, link.retry_at = 0, 0.0

    def is_connected(self, bookie: str) -> bool:
        link = self._links.get(bookie)
        return link is not None and link.connection is not None

    def add(
        self,
        bookie: str,
        ledger: int,
        entry: int,
        key: bytes,
        head: bytes,
        payload: Payload,
        flags: Flag,
        receiver: AddReceiver,
    ) -> None:
        link = self._links.get(bookie)
        if link is not None and link.connection is not None:
            link.connection.add(ledger, entry, key, head, payload, flags, receiver)
            return

        def connected(task: asyncio.Task[BookieConnection | None]) -> None:
            connection = None if task.cancelled() else task.result()
            if connection is None or not connection.is_open:
                receiver.on_add(bookie, entry, NO_ANSWER)
            else:
                connection.add(ledger, entry, key, head, payload, flags, receiver)

        connecting = self._connecting(bookie)
        if connecting is None:
            asyncio.get_running_loop().call_soon(receiver.on_add, bookie, entry, NO_ANSWER)
        else:
            connecting.add_done_callback(connected)

    async def read(self, bookie: str, ledger: int, entry: int, flags: Flag = Flag.NONE, key: bytes = b"") -> Answer:
        """Raises BookieUnreachable."""
        connection = await self.connect(bookie)
        return await connection.read(ledger, entry, flags, key)

    async def batch_read(self, bookie: str, ledger: int, first: int, entries_max: int, bytes_max: int) -> Answer:
        """Raises BookieUnreachable."""
        connection = await self.connect(bookie)
        return await connection.batch_read(ledger, first, entries_max, bytes_max)

    async def connect(self, bookie: str) -> BookieConnection:
        """The connection. Raises BookieUnreachable at once while the next attempt is not due."""
        link = self._links.get(bookie)
        if link is not None and link.connection is not None:
            return link.connection
        connecting = self._connecting(bookie)
        if connecting is None:
            raise BookieUnreachable(bookie, self._links[bookie].reason)
        connection = await asyncio.shield(connecting)
        if connection is None:
            raise BookieUnreachable(bookie, self._links[bookie].reason)
        return connection

    def _connecting(self, bookie: str) -> asyncio.Task[BookieConnection | None] | None:
        link = self._links.setdefault(bookie, _Link())
        if link.connecting is None and self._clock.monotonic() >= link.retry_at:
            link.connecting = self._tasks.spawn(self._connect(bookie, link), bookie)
            if link.connecting is None:
                link.reason = "this broker closes"
        return link.connecting

    async def _connect(self, bookie: str, link: _Link) -> BookieConnection | None:
        connection = BookieConnection(
            bookie, self._clock, request_s=self._request_s, bytes_max=self._bytes_max, on_closed=self._closed
        )
        try:
            host, port = self._address_of(bookie)
            async with asyncio.timeout(self._connect_s):
                await asyncio.get_running_loop().create_connection(lambda: connection, host, port)
        except (OSError, TimeoutError, BookieUnreachable) as error:
            link.reason = str(error) or f"no connection within {self._connect_s:g} s"
            link.failures += 1
            link.retry_at = self._clock.monotonic() + min(RETRY_S * 2 ** (link.failures - 1), RETRY_S_MAX)
            connection.abort(link.reason)
            return None
        finally:
            link.connecting = None
        link.connection = connection
        link.failures = 0
        return connection

    def _closed(self, connection: BookieConnection) -> None:
        link = self._links[connection.bookie]
        if link.connection is connection:
            link.connection, link.reason = None, connection.reason
            link.retry_at = self._clock.monotonic() + RETRY_S
            log.warning("connection to a bookie ended", extra={"bookie": connection.bookie, "reason": link.reason})
