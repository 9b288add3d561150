"""Commands: bytes to protobuf messages and back.

Reading returns a new message each time. One reused upb message would be 0.1 µs faster, but it never frees its memory,
about 60 bytes per SEND, and handlers could not keep a request across an await.

Writing: plain functions that return complete frames. Two frames exist once per entry, SEND_RECEIPT and the head of
MESSAGE. They are written through messages that are reused per thread: setting scalars and serializing allocates nothing
in them and is four times as fast as new messages (benchmarks/micro/codec.py has the figures).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.errors import BadCommand

BaseCommand = pb.BaseCommand
U64_MASK = (1 << 64) - 1
NO_REQUEST = U64_MASK
"""Request id of commands that the broker sends without a request: Java's -1."""

CONNECT, SEND, ACK, FLOW, PING, PONG = (
    int(kind)
    for kind in (
        BaseCommand.CONNECT,
        BaseCommand.SEND,
        BaseCommand.ACK,
        BaseCommand.FLOW,
        BaseCommand.PING,
        BaseCommand.PONG,
    )
)

_SIZES = Struct(">II").pack
_PARSE: Callable[[memoryview | bytes], pb.BaseCommand] = BaseCommand.FromString  # type: ignore[assignment]  # takes views
_FIELDS = {int(number): name.lower() for name, number in BaseCommand.Type.items()}
_GETTERS = {number: attrgetter(name) for number, name in _FIELDS.items()}


def read_command(data: memoryview | bytes) -> tuple[int, Any]:
    """The command's number and its sub-message, complete and with valid text. Raises only BadCommand."""
    try:
        command = _PARSE(data)
    except DecodeError as cause:
        raise BadCommand(f"command does not parse: {cause}") from cause
    # An absent or unknown type reads as the first one, CONNECT; any other value proves that the field is present.
    kind: int = command.type
    if kind == SEND:
        send = command.send  # an absent body reads as an empty one, without its ids
        if send.IsInitialized():
            return kind, send
    elif kind == FLOW:
        flow = command.flow
        if flow.IsInitialized():
            return kind, flow
    elif kind in (PING, PONG):
        return kind, _GETTERS[kind](command)
    return kind, _checked(command, kind)


def _checked(command: pb.BaseCommand, kind: int) -> Any:
    name = _FIELDS[kind]
    if not command.HasField("type"):
        raise BadCommand("command without a known type")
    if not command.HasField(name):
        raise BadCommand(f"{name.upper()} has no body")
    body: Message = _GETTERS[kind](command)
    if not body.IsInitialized():
        raise BadCommand(f"{name.upper()} lacks a required field")
    _check_text(body)
    return body


def _check_text(message: Message) -> None:
    """upb returns text that is not UTF-8 as bytes; it is refused here, so that no handler sees it."""
    for descriptor, value in message.ListFields():
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if descriptor.is_repeated else (value,):
                _check_text(part)
        elif descriptor.type == FieldDescriptor.TYPE_STRING:
            for text in value if descriptor.is_repeated else (value,):
                if not isinstance(text, str):
                    raise BadCommand(f"{descriptor.full_name} is not UTF-8")


def frame(command: pb.BaseCommand) -> bytes:
    """A complete frame without payload."""
    data = command.SerializeToString()
    size = len(data)
    return _SIZES(size + 4, size) + data


def frame_with_payload(command: pb.BaseCommand, payload: bytes | bytearray | memoryview) -> bytes:
    """A complete frame with an entry after the command, for clients and tests."""
    data = command.SerializeToString()
    size = len(data)
    return b"".join((_SIZES(size + 4 + len(payload), size), data, payload))


def frame_before(command: pb.BaseCommand, head: bytes, body_bytes: int) -> bytes:
    """A frame up to and including `head`, the beginning of the entry; `body_bytes` more bytes follow."""
    data = command.SerializeToString()
    size = len(data)
    return b"".join((_SIZES(size + 4 + len(head) + body_bytes, size), data, head))


# ---------------------------------------------------------------------------------------------- once per entry


class _Hot:
    """Reused messages for the hot frames. Between calls they hold only what the next call overwrites or compares."""

    __slots__ = (
        "highest",
        "message",
        "message_bytes",
        "message_id",
        "message_partition",
        "receipt",
        "receipt_bytes",
        "receipt_id",
        "receipt_partition",
    )

    def __init__(self) -> None:
        receipt = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        self.receipt = receipt.send_receipt
        self.receipt.highest_sequence_id = self.highest = 0
        self.receipt_id = self.receipt.message_id
        self.receipt_partition = -1
        self.receipt_bytes = receipt.SerializeToString
        message = BaseCommand(type=BaseCommand.MESSAGE)
        self.message = message.message
        self.message_id = self.message.message_id
        self.message_partition = -1
        self.message_bytes = message.SerializeToString


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.hot = _Hot()


_LOCAL = _PerThread()


def receipt_frame(
    producer_id: int,
    sequence_id: int,
    ledger: int,
    entry: int,
    partition: int = -1,
    highest_sequence_id: int = 0,
    credit_bytes: int = 0,
    credit_messages: int = 0,
) -> bytes:
    """SEND_RECEIPT. Ids of -1 (a duplicate) are allowed; credits only for clients with `anabranch_extensions`."""
    hot = _LOCAL.hot
    receipt, identity = hot.receipt, hot.receipt_id
    receipt.producer_id = producer_id
    receipt.sequence_id = sequence_id
    if ledger < 0 or entry < 0:
        ledger, entry = ledger & U64_MASK, entry & U64_MASK
    identity.ledgerId = ledger
    identity.entryId = entry
    if highest_sequence_id != hot.highest:
        receipt.highest_sequence_id = hot.highest = highest_sequence_id
    if partition != hot.receipt_partition:
        _set_partition(identity, partition)
        hot.receipt_partition = partition
    if credit_bytes or credit_messages:
        receipt.credit_bytes, receipt.credit_messages = credit_bytes, credit_messages
        data = hot.receipt_bytes()
        receipt.ClearField("credit_bytes")
        receipt.ClearField("credit_messages")
    else:
        data = hot.receipt_bytes()
    size = len(data)
    return _SIZES(size + 4, size) + data


def message_header(
    payload_bytes: int,
    consumer_id: int,
    ledger: int,
    entry: int,
    partition: int = -1,
    redelivery_count: int = 0,
    ack_set: Sequence[int] | None = None,
    consumer_epoch: int | None = None,
) -> bytes:
    """A MESSAGE frame up to the entry, whose `payload_bytes` bytes follow unchanged. Words of `ack_set` are signed."""
    hot = _LOCAL.hot
    identity = hot.message_id
    hot.message.consumer_id = consumer_id
    identity.ledgerId = ledger
    identity.entryId = entry
    if partition != hot.message_partition:
        _set_partition(identity, partition)
        hot.message_partition = partition
    if redelivery_count or ack_set or consumer_epoch is not None:
        return _rare_message_header(consumer_id, identity, payload_bytes, redelivery_count, ack_set, consumer_epoch)
    data = hot.message_bytes()
    size = len(data)
    return _SIZES(size + 4 + payload_bytes, size) + data


def varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _rare_message_header(
    consumer_id: int,
    identity: pb.MessageIdData,
    payload_bytes: int,
    redelivery_count: int,
    ack_set: Sequence[int] | None,
    consumer_epoch: int | None,
) -> bytes:
    # A new message, because repeated fields of a reused one would grow without bound.
    message = pb.CommandMessage(consumer_id=consumer_id, message_id=identity, ack_set=ack_set)
    if redelivery_count:
        message.redelivery_count = redelivery_count
    if consumer_epoch is not None:
        message.consumer_epoch = consumer_epoch
    data = BaseCommand(type=BaseCommand.MESSAGE, message=message).SerializeToString()
    return _SIZES(len(data) + 4 + payload_bytes, len(data)) + data


def _set_partition(identity: pb.MessageIdData, partition: int) -> None:
    if partition < 0:
        identity.ClearField("partition")
    else:
        identity.partition = partition


# ------------------------------------------------------------------------------------------------------------ values


def message_id(position: Position, *, partition: int = -1, batch_index: int = -1) -> pb.MessageIdData:
    """A wire id; -1 and Java's largest long are sent unchanged."""
    data = pb.MessageIdData(ledgerId=position.ledger & U64_MASK, entryId=position.entry & U64_MASK)
    if partition >= 0:
        data.partition = partition
    if batch_index >= 0:
        data.batch_index = batch_index
    return data


def position_of(data: pb.MessageIdData) -> Position:
    """The position of a wire id; unsigned values beyond Java's long are negative numbers."""
    return Position(signed(data.ledgerId), signed(data.entryId))


def signed(value: int) -> int:
    """An unsigned 64-bit field that carries a Java long."""
    return value - (1 << 64) if value >> 63 else value
