"""One attached producer: its flow-control window, its pending SENDs, its receipts.

Receipts are sent strictly in SEND order, otherwise clients close the connection. Entries become durable in order. A
receipt without an append (a duplicate) is deferred behind the appends before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.publish.producer_access import AccessMode
from anabranch.protocol import commands, replies
from anabranch.protocol.native import NATIVE
from anabranch.protocol.pulsar_pb2 import AncestorSequence
from anabranch.protocol.server_errors import ServerError
from anabranch.storage.interface import Payload


@dataclass(slots=True)
class Window:
    bytes_max: int
    messages_max: int
    bytes: int = 0
    messages: int = 0

    @property
    def is_open(self) -> bool:
        return self.bytes < self.bytes_max and self.messages < self.messages_max

    def take(self, size: int, messages: int) -> None:
        self.bytes += size
        self.messages += messages

    def give(self, size: int, messages: int) -> None:
        self.bytes -= size
        self.messages -= messages
        assert self.bytes >= 0
        assert self.messages >= 0


class Publish(NamedTuple):
    """One SEND. A tuple, because one is made for every entry."""

    producer: Producer
    sequence: int
    highest: int  # as the client sent it; the receipt repeats it
    last_sequence: int  # last sequence id the entry covers, for deduplication
    messages: int
    payload: Payload
    is_last_chunk: bool

    @property
    def size(self) -> int:
        return len(self.payload)


class Deferred:
    """A receipt without an append, sent in SEND order. `receipt` is None until known, b"" if none is sent."""

    __slots__ = ("after", "receipt")

    def __init__(self, after: int, receipt: bytes | None) -> None:
        self.after = after  # sent when this many appends of the producer are completed
        self.receipt = receipt


class Producer:
    __slots__ = (
        "peer", "producer_id", "name", "partition", "epoch", "mode", "metadata", "window", "pending", "grants_credits",
        "connected_ms", "schema_version", "ancestors", "fencing_epoch", "first_sequence_id", "messages_in", "bytes_in",
        "chunks_in",
        "closed", "is_ready", "request_id", "_submitted", "_completed", "_deferred", "_on_idle",
    )  # fmt: skip

    def __init__(
        self,
        peer: ClientConnection,
        *,
        producer_id: int,
        request_id: int,
        name: str,
        partition: int,
        epoch: int,
        mode: AccessMode,
        metadata: Mapping[str, str],
        window: Window,
        grants_credits: bool,
        connected_ms: int,
        schema_version: bytes = b"",
        fencing_epoch: int | None = None,
        first_sequence_id: int | None = None,
    ) -> None:
        self.peer = peer
        self.producer_id = producer_id
        self.request_id = request_id
        self.name = name
        self.partition = partition
        self.epoch = epoch
        self.mode = mode
        self.metadata = metadata
        self.window = window
        self.pending: deque[Publish] = deque()
        self.grants_credits = grants_credits
        self.connected_ms = connected_ms
        self.schema_version = schema_version  # of its messages; empty without a schema
        self.ancestors: Sequence[AncestorSequence] = ()  # last sequence ids in the ancestors of its segment
        self.fencing_epoch = fencing_epoch  # of two producers with one name, the higher epoch wins
        self.first_sequence_id = (
            first_sequence_id  # first that it will send; ancestors with this id or later are reported
        )
        self.messages_in = 0
        self.chunks_in = 0  # received: parts of messages that are larger than an entry
        self.bytes_in = 0
        self.closed = False
        self.is_ready = True
        self._submitted = 0
        self._completed = 0
        self._deferred: deque[Deferred] = deque()
        self._on_idle: Callable[[], None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether everything it sent has been answered."""
        return self._completed >= self._submitted and not self.pending and not self._deferred

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call when everything in flight is answered; several calls are made in order."""
        before = self._on_idle

        def both() -> None:
            if before is not None:
                before()
            call()

        if self.is_idle:
            call()
        else:
            self._on_idle = both

    def _check_idle(self) -> None:
        if self._on_idle is not None and self.is_idle:
            call, self._on_idle = self._on_idle, None
            call()

    def submitted(self, size: int, messages: int, count: int = 1) -> None:
        self._submitted += count
        window = self.window  # what `window.take` does, without the call
        window.bytes += size
        window.messages += messages

    def completed(self, publishes: Sequence[Publish], ledger: int, entry: int) -> tuple[int, int]:
        """The publishes are durable as consecutive entries from `entry` on: send their receipts and those deferred
        behind them. Returns their bytes and messages."""
        size = messages = 0
        for _, _, _, _, count, payload, _ in publishes:
            size += len(payload)
            messages += count
        self.bytes_in += size
        self.messages_in += messages
        self.window.give(size, messages)
        self.peer.add_pending_bytes(-size)
        if self.closed:
            self._completed += len(publishes)
        elif self._deferred:
            for number, publish in enumerate(publishes, entry):
                self._completed += 1
                self.peer.send(self._receipt(publish, ledger, number))
                self._answer_deferred()
        else:
            self._completed += len(publishes)
            self.peer.send(*self._receipts(publishes, ledger, entry))
        if self._on_idle is not None:
            self._check_idle()
        return size, messages

    def failed(self, publish: Publish) -> None:
        self._completed += 1
        self.window.give(publish.size, publish.messages)
        self.peer.add_pending_bytes(-publish.size)
        self._check_idle()

    def duplicate(self, publish: Publish) -> None:
        """Already stored: send a receipt without a position, in SEND order."""
        self.peer.add_pending_bytes(-publish.size)
        self._deferred.append(Deferred(self._submitted, self._receipt(publish, -1, -1)))
        self._answer_deferred()

    def in_flight_duplicate(self, publish: Publish) -> Deferred:
        """A copy of an entry in flight (perhaps of another connection): defer its receipt until that is completed."""
        self._deferred.append(deferred := Deferred(self._submitted, None))
        return deferred

    def in_flight_duplicate_done(self, deferred: Deferred, publish: Publish, *, is_duplicate: bool) -> None:
        """If the first copy failed no receipt is sent: its producer was closed and the client sends again."""
        self.peer.add_pending_bytes(-publish.size)
        deferred.receipt = self._receipt(publish, -1, -1) if is_duplicate else b""
        self._answer_deferred()
        self._check_idle()

    def _answer_deferred(self) -> None:
        deferred = self._deferred
        while deferred and deferred[0].after <= self._completed and (receipt := deferred[0].receipt) is not None:
            deferred.popleft()
            if receipt and not self.closed:
                self.peer.send(receipt)

    def _receipts(self, publishes: Sequence[Publish], ledger: int, entry: int) -> list[bytes]:
        if self.grants_credits:
            return [self._receipt(publish, ledger, number) for number, publish in enumerate(publishes, entry)]
        if NATIVE is not None:
            return [NATIVE.receipts(self.producer_id, ledger, entry, self.partition, publishes)]
        receipt, producer_id, partition = commands.receipt_frame, self.producer_id, self.partition
        return [
            receipt(producer_id, sequence, ledger, number, partition, highest)
            for number, (_, sequence, highest, _, _, _, _) in enumerate(publishes, entry)
        ]

    def _receipt(self, publish: Publish, ledger: int, entry: int) -> bytes:
        if self.grants_credits:
            return commands.receipt_frame(
                self.producer_id,
                publish.sequence,
                ledger,
                entry,
                self.partition,
                publish.highest,
                publish.size,
                publish.messages,
            )
        return commands.receipt_frame(
            self.producer_id, publish.sequence, ledger, entry, self.partition, publish.highest
        )

    def refuse(self, publish: Publish, code: ServerError, text: str) -> None:
        self.peer.add_pending_bytes(-publish.size)
        self.peer.send(replies.send_error(self.producer_id, max(publish.sequence, publish.highest), code, text))

    def drop_pending(self) -> None:
        """The producer is closed: pending SENDs are neither stored nor answered."""
        while self.pending:
            self.peer.add_pending_bytes(-self.pending.popleft().size)
        self._deferred.clear()
        self._check_idle()

    def __repr__(self) -> str:
        return f"<Producer {self.name!r} id={self.producer_id} in flight={self._submitted - self._completed}>"
