"""Reads one range of entries with a non-durable reader. Handles permits, holes in the range, and reconnecting.

The event loop's thread fills a bounded buffer of entries and the task's thread empties it, so that the next entries
arrive while Spark processes the last ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_state import command
from anabranch.client.errors import ClientError, NotReady, TimedOut
from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, message_id
from anabranch.protocol.entry import Bytes
from anabranch.protocol.managed_clients import managed
from anabranch.spark.offsets.partitions import Range

FIRST_PERMITS = 1_000
PERMITS_MAX = 1_000_000


class Hole(Error):
    """Entries inside a range that should be there are not."""

    code = "hole"

    def __init__(self, one: Range, wanted: Position, found: Position) -> None:
        super().__init__(f"{one.backing}: {found} came where {wanted} was expected")
        self.range, self.wanted, self.found = one, wanted, found


class Stored(NamedTuple):
    position: Position
    payload: Bytes


class EntryConnections(Protocol):
    """What a fetch needs of the client: consumers on connections, and a pause that a stop ends."""

    timeout_s: float

    def attach(self, topic: str, entry_buffer: EntryBuffer, prefix: str) -> Future[None]: ...

    def write(self, entry_buffer: EntryBuffer, data: bytes) -> None: ...

    def detach(self, entry_buffer: EntryBuffer) -> None: ...

    def pause(self, seconds: float) -> None: ...


class EntryBuffer:
    """The listener of one reader on one connection. Filled on the loop's thread, emptied on the task's."""

    def __init__(self, start: Position, end: Position) -> None:
        self.start, self.end = start, end
        self.consumer_id = 0
        self.connection: Connection | None = None
        self.is_filtered = False  # the broker leaves out entries that are no messages, as Apache Pulsar does
        self._entries: deque[Stored] = deque()
        self._news = threading.Condition()
        self._failure: ClientError | None = None
        self._is_complete = False

    # -- on the loop's thread

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind == BaseCommand.MESSAGE:
            at = Position(body.message_id.ledgerId, body.message_id.entryId)
            with self._news:
                if at >= self.end or at < self.start:
                    self._is_complete = self._is_complete or at >= self.end
                else:
                    self._entries.append(Stored(at, payload))
                    self._is_complete = self._is_complete or at == Position(self.end.ledger, self.end.entry - 1)
                self._news.notify()
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self.on_detached(NotReady("the broker closed the reader"))

    def on_detached(self, error: ClientError) -> None:
        with self._news:
            self._failure = error
            self._news.notify()

    # -- on the task's thread

    def take(self, timeout_s: float) -> list[Stored]:
        """What has come, at least one entry; [] at the end of the range. Raises the failure, or TimedOut."""
        with self._news:
            self._news.wait_for(lambda: self._entries or self._is_complete or self._failure, timeout_s)
            if self._entries:
                found = list(self._entries)
                self._entries.clear()
                return found
            if self._is_complete:
                return []
            raise self._failure or TimedOut(f"no entry within {timeout_s:g} s")


def managed_fields() -> dict[str, Any]:
    """This client goes on reading and writing when a regular topic becomes a scalable one. Segments ignore it."""
    return {"metadata": [pb.KeyValue(key=name, value=value) for name, value in managed().items()]}


def subscribe_fields(topic: str, name: str, start: Position) -> dict[str, Any]:
    """A reader: exclusive, not durable, beginning with `start` itself."""
    return managed_fields() | {
        "topic": topic,
        "subscription": name,
        "subType": pb.CommandSubscribe.Exclusive,
        "consumer_name": name,
        "durable": False,
        "start_message_id": message_id(start),
        "force_topic_creation": False,
    }


class Fetch:
    """Iterate over it: lists of entries of the range, in order, without a hole. `used` says what was taken in."""

    def __init__(
        self,
        connections: EntryConnections,
        one: Range,
        *,
        prefetch_bytes: int,
        retries: int,
        backoff_ms: int,
        fails_on_holes: bool = True,
        prefix: str = "spark",
    ) -> None:
        self._connections = connections
        self._range = one
        self._prefetch_bytes = prefetch_bytes
        self._retries = retries
        self._backoff_s = backoff_ms / 1000
        self._fails_on_holes = fails_on_holes
        self._prefix = prefix
        self._entry_buffer: EntryBuffer | None = None
        self._permits = 0  # granted and not used yet, about
        self._messages = 0
        self._bytes = 0
        self._is_filtered = False
        self.crossed: list[tuple[Position, Position]] = []
        """Where entries of a later ledger followed, or none at all, and the broker leaves out entries."""

    def __iter__(self) -> Iterator[list[Stored]]:
        following, attempt = self._range.start, 0
        is_first = True
        try:
            while following < self._range.end:
                try:
                    entry_buffer = self._entry_buffer or self._attached(following)
                    found = entry_buffer.take(self._connections.timeout_s)
                    self._is_filtered = entry_buffer.is_filtered
                except ClientError as error:
                    self._let_go()
                    if attempt >= self._retries or not (error.retryable or isinstance(error, NotReady)):
                        raise
                    self._connections.pause(self._backoff_s * 2**attempt)
                    attempt += 1
                    continue
                if not found:
                    break
                attempt = 0
                for at, _ in found:
                    if not _follows(at, following, self._is_filtered) and self._fails_on_holes:
                        raise Hole(self._range, following, at)
                    if self._is_filtered and at.ledger != following.ledger:
                        self.crossed.append((following, at))
                    if is_first and at != self._range.start and at.ledger != self._range.start.ledger:
                        self.began_late = at
                    is_first = False
                    following = Position(at.ledger, at.entry + 1)
                yield found
            if following < self._range.end and self._is_filtered:
                self.crossed.append((following, self._range.end))
            elif following < self._range.end and self._fails_on_holes:
                raise Hole(self._range, following, self._range.end)
        finally:
            self._let_go()

    began_late: Position | None = None
    """The first entry, when it is of a later ledger than the range begins with: it ended there, or was trimmed."""

    def used(self, messages: int, size_bytes: int) -> None:
        """So much was taken out: there is room again."""
        self._messages += messages
        self._bytes += size_bytes
        self._permits -= messages
        per_message = max(self._bytes / max(self._messages, 1), 1)
        wanted = int(min(max(self._prefetch_bytes / per_message, FIRST_PERMITS), PERMITS_MAX))
        if self._entry_buffer is not None and wanted - self._permits > wanted // 4:
            self._grant(self._entry_buffer, wanted - self._permits)

    def _attached(self, start: Position) -> EntryBuffer:
        entry_buffer = EntryBuffer(start, self._range.end)
        attached = self._connections.attach(self._range.backing, entry_buffer, self._prefix)
        attached.result(3 * self._connections.timeout_s)  # it has its own deadlines
        self._entry_buffer, self._permits = entry_buffer, 0
        self._grant(entry_buffer, FIRST_PERMITS)
        return entry_buffer

    def _grant(self, entry_buffer: EntryBuffer, permits: int) -> None:
        self._permits += permits
        flow = command(BaseCommand.FLOW, consumer_id=entry_buffer.consumer_id, messagePermits=permits)
        self._connections.write(entry_buffer, flow)

    def _let_go(self) -> None:
        entry_buffer, self._entry_buffer = self._entry_buffer, None
        if entry_buffer is not None:
            self._connections.detach(entry_buffer)


def _follows(at: Position, expected: Position, is_filtered: bool) -> bool:
    """The entry itself, or the first one of a later ledger; where entries are left out, any later one."""
    return at == expected or (at.ledger > expected.ledger and at.entry == 0) or (is_filtered and at > expected)
