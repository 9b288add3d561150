"""A reader that only asks questions: where a topic begins and ends, which entry a time has, how large the next entries
are. It has no permits unless entries are asked for, so the broker sends it none.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_state import command
from anabranch.client.errors import ClientError, NotReady
from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.protocol.entry import Bytes, metadata
from anabranch.spark.client.entry_fetcher import subscribe_fields


class Sampled(NamedTuple):
    entries: int
    messages: int


class Probe:
    def __init__(self, connection: Connection, topic: str, name: str, timeout_s: float) -> None:
        self._connection = connection
        self._topic = topic
        self._name = name
        self._timeout_s = timeout_s
        self._consumer_id = 0
        self._failure: ClientError | None = None
        self._news = asyncio.Event()
        self._sizes: list[tuple[Position, int]] = []

    @property
    def is_over(self) -> bool:
        return self._failure is not None or not self._connection.is_usable

    async def open(self, start: Position, **fields: Any) -> None:
        """Begins with the entry at `start`. More `fields` of SUBSCRIBE replace those of a reader."""
        self._failure, self._sizes = None, []
        self._consumer_id = self._connection.new_id()
        self._connection.listen_consumer(self._consumer_id, self)
        try:
            asked = subscribe_fields(self._topic, self._name, start) | fields
            await self._connection.ask(BaseCommand.SUBSCRIBE, self._timeout_s, consumer_id=self._consumer_id, **asked)
        except BaseException:
            self._connection.unlisten(self._consumer_id)
            raise

    async def heads(self) -> tuple[Position, Position]:
        """The last entry that readers get (EARLIEST: none is there), and what this subscription has consumed."""
        answer = await self._connection.ask(
            BaseCommand.GET_LAST_MESSAGE_ID, self._timeout_s, consumer_id=self._consumer_id
        )
        if not answer.HasField("consumer_mark_delete_position"):
            raise NotReady("the broker does not say where a reader is: it is older than Pulsar 2.9")
        return position_of(answer.last_message_id), position_of(answer.consumer_mark_delete_position)

    async def seek(self, *, time_ms: int | None = None, position: pb.MessageIdData | None = None) -> None:
        """The broker closes the reader after it has moved; open it again under the same name."""
        where = {"message_id": position} if time_ms is None else {"message_publish_time": time_ms}
        await self._connection.ask(BaseCommand.SEEK, self._timeout_s, consumer_id=self._consumer_id, **where)
        async with asyncio.timeout(self._timeout_s):
            while self._failure is None:
                await self._next()
        self._connection.unlisten(self._consumer_id)

    async def sample(self, entries: int, permits: int) -> Sampled:
        """The next entries: so many, or as many as have that number of messages."""
        self._connection.write(command(BaseCommand.FLOW, consumer_id=self._consumer_id, messagePermits=permits))
        async with asyncio.timeout(self._timeout_s):
            while len(self._sizes) < entries and sum(size for _, size in self._sizes) < permits:
                if self._failure is not None:
                    raise self._failure
                await self._next()
        return Sampled(len(self._sizes), sum(size for _, size in self._sizes))

    async def has_entry(self, within_s: float) -> bool:
        """Does the first entry come?"""
        self._connection.write(command(BaseCommand.FLOW, consumer_id=self._consumer_id, messagePermits=1))
        try:
            async with asyncio.timeout(within_s):
                while not self._sizes:
                    if self._failure is not None:
                        raise self._failure
                    await self._next()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self._connection.unlisten(self._consumer_id)
        if not self.is_over:
            await self._connection.ask(BaseCommand.CLOSE_CONSUMER, self._timeout_s, consumer_id=self._consumer_id)

    async def _next(self) -> None:
        await self._news.wait()
        self._news.clear()

    # -- of the connection

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind == BaseCommand.MESSAGE:
            at = Position(body.message_id.ledgerId, body.message_id.entryId)
            self._sizes.append((at, max(metadata(payload).num_messages_in_batch, 1)))
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self._failure = NotReady("the broker closed the reader")
        self._news.set()

    def on_detached(self, error: ClientError) -> None:
        self._failure = error
        self._news.set()
