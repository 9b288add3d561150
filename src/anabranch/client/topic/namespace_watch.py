"""Watches the names of the scalable topics of a namespace, or of those with certain properties.

One session, with any broker: a snapshot first, then diffs. A new session names the hash of the known list, and the
broker sends nothing if it has the same one. Before the first list, a final refusal ends the watch. Afterwards the list
stays valid, and the session is opened again without a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_state import command
from anabranch.client.context import ClientContext
from anabranch.client.errors import ClientError, NotSupported, TimedOut, Unreachable, refusal
from anabranch.model.errors import Error
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import Bytes
from anabranch.protocol.topics_hash import topics_hash
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

OnChange = Callable[[frozenset[str], frozenset[str]], None]
"""Called with topics that came and topics that are gone."""


class NamespaceWatch:
    def __init__(
        self, namespace: str, topic_properties: Mapping[str, str], on_change: OnChange, context: ClientContext
    ) -> None:
        """`on_change` is called on the event loop, first with all topics; it must not raise."""
        self._namespace = namespace
        self._topic_properties = dict(topic_properties)
        self._on_change = on_change
        self._context = context
        self._id = context.watches.new_session_id()
        self._names: frozenset[str] | None = None
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._first: asyncio.Future[ClientError | None] = loop.create_future()
        self._end: asyncio.Future[ClientError] = loop.create_future()  # of the session that is open
        self._last_error: ClientError | None = None

    async def wait_first(self, timeout_s: float) -> None:
        """Wait for the first list. Raises the final refusal, or TimedOut with the last reason."""
        try:
            async with asyncio.timeout(timeout_s):
                error = await asyncio.shield(self._first)
        except TimeoutError:
            why = "the broker does not answer" if self._last_error is None else self._last_error.reason
            raise TimedOut(f"the topics of {self._namespace} are not known: {why}") from self._last_error
        if error is not None:
            raise error

    async def run(self) -> None:
        """Runs until cancelled, or until a final refusal before the first list."""
        attempt, context = 0, self._context
        while True:
            self._end = self._loop.create_future()
            was_open = False
            try:
                connection = await context.pool.connection()
                self._open(connection)
                was_open = True
                error = await self._session(connection)
            except Error as refused:
                error = refused if isinstance(refused, ClientError) else ClientError(refused.reason)
            self._last_error = error
            if not self._first.done() and not error.retryable:
                self._first.set_result(error)
                return
            if was_open and isinstance(error, Unreachable):  # an unchanged list is not sent again, so this counts
                attempt = 0
            delay = context.backoff.delay(attempt, context.chance.random())
            log.info(
                "watching the topics of a namespace again",
                extra={"namespace": self._namespace, "reason": error.reason, "delay_s": delay},
            )
            await context.clock.sleep(delay)
            attempt += 1

    def _open(self, connection: Connection) -> None:
        if not connection.supports_scalable_topics:
            raise NotSupported(f"{self._namespace}: the broker does not serve scalable topics")
        if not connection.is_usable:  # it broke already, and listeners are no longer notified
            raise Unreachable("the connection broke before the topics were asked for")
        connection.listen_session(self._id, self)
        connection.write(
            command(
                BaseCommand.WATCH_SCALABLE_TOPICS,
                watch_id=self._id,
                namespace=self._namespace,
                property_filters=[{"key": key, "value": value} for key, value in self._topic_properties.items()],
                current_hash=None if self._names is None else topics_hash(self._names),
            )
        )

    async def _session(self, connection: Connection) -> ClientError:
        try:
            return await self._end
        finally:
            connection.unlisten_session(self._id)
            connection.write(command(BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE, watch_id=self._id))

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        known = self._names or frozenset()
        if body.HasField("snapshot"):
            self._advance(frozenset(body.snapshot.topics))
        elif body.HasField("diff"):
            self._advance((known - frozenset(body.diff.removed)) | frozenset(body.diff.added))
        else:
            self._over(refusal(body.error, body.message))

    def _advance(self, names: frozenset[str]) -> None:
        known = self._names or frozenset()
        self._names = names
        self._on_change(names - known, known - names)
        if not self._first.done():
            self._first.set_result(None)

    def on_detached(self, error: ClientError) -> None:
        self._over(error)

    def _over(self, error: ClientError) -> None:
        if not self._end.done():
            self._end.set_result(error)
