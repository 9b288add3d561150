"""One TCP connection to one bookie: pipelined requests, answers matched, deadlines, bounded bytes in flight.

Requests of one turn of the event loop are sent with one write. Answers carry no request number, so a connection with
an overdue request is closed: a late answer would be taken for that of the next equal request. A connection is used
until it ends; `Bookies` makes the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from anabranch.runtime.clock import Clock, Timer
from anabranch.storage.bookkeeper import packets
from anabranch.storage.bookkeeper.errors import BookieUnreachable, MalformedPacket
from anabranch.storage.bookkeeper.packets import Answer, AnswerDecoder, Code, Flag, Op
from anabranch.storage.interface import Payload

NO_ANSWER = -1
"""Code of an add whose outcome is unknown: the connection ended, could not be made, or the answer is overdue."""

CHECKS_PER_DEADLINE = 4


class AddReceiver(Protocol):
    def on_add(self, bookie: str, entry: int, code: int) -> None:
        """The outcome of one add: a `Code`, or NO_ANSWER. Never called inside the call that sent it."""


class _Add:
    __slots__ = ("next", "receiver", "sent_at", "size")

    def __init__(self, receiver: AddReceiver, sent_at: float, size: int) -> None:
        self.receiver, self.sent_at, self.size = receiver, sent_at, size
        self.next: _Add | None = None  # a later add of the same entry


class _Read:
    __slots__ = ("future", "sent_at")

    def __init__(self, future: asyncio.Future[Answer], sent_at: float) -> None:
        self.future, self.sent_at = future, sent_at


class BookieConnection(asyncio.Protocol):
    def __init__(
        self,
        bookie: str,
        clock: Clock,
        *,
        request_s: float,
        bytes_max: int,
        on_closed: Callable[[BookieConnection], None],
    ) -> None:
        """`bytes_max`: of adds without an answer. A bookie that is slower than the others must not fill the memory."""
        self.bookie = bookie
        self._clock, self._request_s, self._bytes_max, self._on_closed = clock, request_s, bytes_max, on_closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = AnswerDecoder()
        self._adds: dict[tuple[int, int], _Add] = {}  # (ledger, entry), oldest first
        self._reads: dict[tuple[int, int], list[_Read]] = {}
        self._batches: dict[int, _Read] = {}
        self._request_id = 0
        self._output: list[bytes | memoryview | bytearray] = []
        self._is_flush_due = False
        self._check: Timer | None = None
        self._reason: str | None = None
        self.pending_bytes = 0

    @property
    def is_open(self) -> bool:
        return self._reason is None

    @property
    def reason(self) -> str:
        return self._reason or ""

    def add(
        self,
        ledger: int,
        entry: int,
        key: bytes,
        head: bytes,
        payload: Payload,
        flags: Flag,
        receiver: AddReceiver,
    ) -> None:
        frame = packets.add(key, head, payload, flags)
        size = len(frame[0]) + len(payload)
        one, known = _Add(receiver, self._clock.monotonic(), size), self._adds.get((ledger, entry))
        if known is None:
            self._adds[ledger, entry] = one
        else:
            while known.next is not None:
                known = known.next
            known.next = one
        self.pending_bytes += size
        self._write(*frame)
        if self.pending_bytes > self._bytes_max:
            self._loop.call_soon(self.abort, f"{self.pending_bytes:,} bytes are waiting for its answers")

    def read(self, ledger: int, entry: int, flags: Flag = Flag.NONE, key: bytes = b"") -> asyncio.Future[Answer]:
        one = _Read(self._loop.create_future(), self._clock.monotonic())
        self._reads.setdefault((ledger, entry), []).append(one)
        self._write(packets.read(ledger, entry, flags, key))
        return one.future

    def batch_read(self, ledger: int, first: int, entries_max: int, bytes_max: int) -> asyncio.Future[Answer]:
        self._request_id += 1
        one = self._batches[self._request_id] = _Read(self._loop.create_future(), self._clock.monotonic())
        self._write(packets.batch_read(ledger, first, self._request_id, entries_max, bytes_max))
        return one.future

    def abort(self, reason: str) -> None:
        """Close it; the outcome of everything without an answer is unknown."""
        if self._reason is not None:
            return
        self._reason = reason
        if self._check is not None:
            self._check.cancel()
        if self._transport is not None:
            self._transport.abort()
        error = BookieUnreachable(self.bookie, reason)
        for read in (*(one for reads in self._reads.values() for one in reads), *self._batches.values()):
            if not read.future.done():
                read.future.set_exception(error)
                read.future.exception()  # the reader may have gone
        adds, self._adds = self._adds, {}
        self._reads.clear()
        self._batches.clear()
        self._output.clear()
        self.pending_bytes = 0
        self._on_closed(self)
        for (_, entry), add in adds.items():
            self._answer_adds(add, entry)

    def _answer_adds(self, add: _Add | None, entry: int) -> None:
        while add is not None:
            add.receiver.on_add(self.bookie, entry, NO_ANSWER)
            add = add.next

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._check = self._clock.call_later(self._request_s / CHECKS_PER_DEADLINE, self._check_deadlines)
        if self._reason is not None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(f"the connection ended: {exc or 'closed by the bookie'}")

    def data_received(self, data: bytes) -> None:
        try:
            for answer in self._decoder.feed(data):
                self._take(answer)
        except MalformedPacket as error:
            self.abort(error.reason)

    # inside

    def _take(self, answer: Answer) -> None:
        if answer.op == Op.ADD:
            add = self._adds.pop((answer.ledger, answer.entry), None)
            if add is None:
                raise MalformedPacket(f"an answer to the add of {answer.ledger}:{answer.entry}, which was not asked")
            if add.next is not None:
                self._adds[answer.ledger, answer.entry] = add.next
            self.pending_bytes -= add.size
            add.receiver.on_add(self.bookie, answer.entry, answer.code)
            return
        if answer.op == Op.BATCH_READ:
            read = self._batches.pop(answer.request_id, None)
        else:
            reads = self._reads.get((answer.ledger, answer.entry), [])
            read = reads.pop(0) if reads else None
            if not reads:
                self._reads.pop((answer.ledger, answer.entry), None)
        if read is None:
            raise MalformedPacket(f"an answer to a read of {answer.ledger}:{answer.entry}, which was not asked")
        if not read.future.done():
            read.future.set_result(answer)

    def _write(self, *parts: bytes | memoryview | bytearray) -> None:
        self._output += parts
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        output, self._output = self._output, []
        if output and self._transport is not None and self._reason is None:
            self._transport.write(b"".join(output))

    def _check_deadlines(self) -> None:
        if self._reason is not None:
            return
        self._check = self._clock.call_later(self._request_s / CHECKS_PER_DEADLINE, self._check_deadlines)
        oldest = [next(iter(self._adds.values())).sent_at] if self._adds else []
        oldest += [next(iter(self._reads.values()))[0].sent_at] if self._reads else []
        oldest += [next(iter(self._batches.values())).sent_at] if self._batches else []
        if oldest and self._clock.monotonic() - min(oldest) > self._request_s:
            self.abort(f"no answer within {self._request_s:g} s")


def code_text(code: int) -> str:
    if code == NO_ANSWER:
        return "no answer"
    return Code(code).name.lower().replace("_", " ") if code in set(Code) else f"code {code}"
