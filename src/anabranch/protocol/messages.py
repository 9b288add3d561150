"""Runs of plain MESSAGE frames: all heads for the entries of one read at once.

There are two implementations with equal results: C, if the extension was built, and Python. `ANABRANCH_NATIVE=off` in
the environment selects Python. Entries are ((ledger, entry), messages, payload, …) tuples like storage's `StoredEntry`,
which this layer must not import. Other messages (redeliveries, partial batches, epochs) use `commands.message_header`.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from anabranch.protocol.commands import BaseCommand, varint
from anabranch.protocol.native import NATIVE, MessageRun

Payload = bytes | bytearray | memoryview
_SIZES = Struct(">II").pack


class PlainRuns:
    """Message runs of one consumer; keeps what does not change between entries."""

    __slots__ = ("_consumer_id", "_heads", "_partition")

    def __init__(self, consumer_id: int, partition: int) -> None:
        self._consumer_id = consumer_id
        self._partition = partition
        self._heads = MessageHeads(consumer_id, -1, partition)

    def take(self, entries: list[Any], start: int, bytes_max: int, messages_max: int) -> MessageRun:
        """Frames for entries from `start` on, up to `bytes_max` payload bytes or `messages_max` messages; the last
        entry may exceed them.
        """
        heads, out, positions = self._heads, list[Payload](), list[Any]()
        size = wire = total = 0
        each: int | None = None
        for index in range(start, len(entries)):
            if size >= bytes_max or total >= messages_max:
                break
            position, messages, payload, *_ = entries[index]
            ledger, entry = position
            if ledger != heads.ledger:
                heads = self._heads = MessageHeads(self._consumer_id, ledger, self._partition)
            length = len(payload)
            head = heads.head(entry, length)
            out += head, payload
            positions.append(position)
            size += length
            wire += length + len(head)
            total += messages
            each = messages if each is None or each == messages else -1
        return out, positions, wire, size, total, -1 if each is None else each


class NativeRuns:
    """The implementation in C."""

    __slots__ = ("_consumer_id", "_partition")

    def __init__(self, consumer_id: int, partition: int) -> None:
        self._consumer_id = consumer_id
        self._partition = partition

    def take(self, entries: list[Any], start: int, bytes_max: int, messages_max: int) -> MessageRun:
        assert NATIVE is not None
        assert NATIVE.message_run is not None
        return NATIVE.message_run(self._consumer_id, self._partition, entries, start, bytes_max, messages_max)


MessageRuns = PlainRuns if NATIVE is None or NATIVE.message_run is None else NativeRuns


class MessageHeads:
    """Heads of plain MESSAGE frames of one consumer and ledger: the result of `message_header` at half the cost.

    Encoded by hand, because only the entry id changes between heads; a test compares the bytes with `message_header`.
    """

    __slots__ = ("_after", "_before", "_begin", "_end", "_payload_bytes", "_size", "_start", "ledger", "partition")

    def __init__(self, consumer_id: int, ledger: int, partition: int) -> None:
        self.ledger = ledger
        self.partition = partition
        self._start = b"\x08" + varint(consumer_id) + b"\x12"
        self._after = b"" if partition < 0 else b"\x18" + varint(partition)
        self._end = 0  # ids below it and of at least half its length are covered by the values below
        self._before = b""
        self._size = 0
        self._payload_bytes = -1  # for payloads of this size …
        self._begin = b""  # … heads begin with this; neighbouring payloads often have equal size

    def head(self, entry: int, payload_bytes: int) -> bytes:
        if entry >= self._end or entry << 7 < self._end:
            self._cover(entry)
        if payload_bytes != self._payload_bytes:
            self._payload_bytes = payload_bytes
            self._begin = _SIZES(self._size + 4 + payload_bytes, self._size) + self._before
        if entry < 1 << 14:
            number = bytes((entry & 127 | 128, entry >> 7)) if entry > 127 else bytes((entry,))
        elif entry < 1 << 21:
            number = bytes((entry & 127 | 128, entry >> 7 & 127 | 128, entry >> 14))
        else:
            number = varint(entry)
        return self._begin + number + self._after

    def _cover(self, entry: int) -> None:
        """All lengths around a number whose varint has the same length."""
        digits = len(varint(entry))
        self._end = 1 << 7 * digits
        identity = b"\x08" + varint(self.ledger) + b"\x10"
        body = self._start + varint(len(identity) + digits + len(self._after)) + identity
        length = len(body) + digits + len(self._after)
        self._before = _MESSAGE_TAGS + varint(length) + body
        self._size = len(self._before) + digits + len(self._after)
        self._payload_bytes = -1


_MESSAGE_TAGS = b"\x08" + varint(BaseCommand.MESSAGE) + varint(BaseCommand.MESSAGE_FIELD_NUMBER << 3 | 2)
