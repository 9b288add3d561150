"""Mutated frames, for anything that reads frames. The same seed gives the same frames.

Two kinds, mixed: *well-sized* frames (both size fields fit, so that the damage reaches parsers and handlers) and frames
with wrong sizes. Names and ids come from small sets, so that a real broker sees the same topics and ids again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import build_batch, build_entry

CLIENT_COMMANDS = (4, 5, 6, 10, 11, 12, 15, 16, 18, 19, 20, 21, 23, 25, 28, 29, 32)

_TEXTS = (
    "persistent://public/default/fuzz-0",
    "persistent://public/default/fuzz-1",
    "persistent://public/default/fuzz-1-partition-0",
    "non-persistent://public/default/fuzz-2",
    "topic://public/default/fuzz-3",
    "segment://public/default/fuzz-3/0000-ffff-0",
    "persistent://public/default/a/b",
    "public/default",
    "fuzz",
    "sub",
    "",
    " ",
    "../../etc",
    "tab\tand\nline",
    "日本語-😀",
    "%2F%00+",
    "x" * 2_000,
)
_NUMBERS = (0, 0, 1, 1, 2, 3, 100, 127, 128, 255, 65_535, 65_536, 2**31 - 1)
_BIG = (2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def random_command(rng: random.Random, kind: int | None = None) -> pb.BaseCommand:
    """A complete command of plausible shape, with any values."""
    number = rng.choice(list(pb.BaseCommand.Type.values())) if kind is None else kind
    name = pb.BaseCommand.Type.Name(number)
    command = pb.BaseCommand(type=name)
    body: Message = getattr(command, name.lower())
    body.SetInParent()
    _fill(rng, body, depth=0)
    return command


def random_payload(rng: random.Random) -> bytes:
    """An entry, valid or not."""
    match rng.randrange(4):
        case 0:
            return build_entry(rng.randbytes(rng.randrange(200)), key=rng.choice((None, "k", "")))
        case 1:
            return build_batch([rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 5))])
        case 2:
            return _damaged(rng, build_entry(rng.randbytes(rng.randrange(200))))
        case _:
            return rng.randbytes(rng.randrange(64))


def mutated_frames(seed: int, count: int) -> Iterator[bytes]:
    """`count` frames, most of them invalid in some way; none is longer than about 20 kB."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.choice(_MUTATIONS)(rng)


def sized(command: bytes, payload: bytes = b"") -> bytes:
    """A frame with correct sizes."""
    return (len(command) + len(payload) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + payload


def _fill(rng: random.Random, message: Message, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            for _ in range(rng.choice((0, 0, 1, 3))):
                _append(rng, message, field, depth)
        elif field.is_required or (rng.random() < 0.4 and depth < 3):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                part = getattr(message, field.name)
                part.SetInParent()
                _fill(rng, part, depth + 1)
            else:
                setattr(message, field.name, _scalar(rng, field))


def _append(rng: random.Random, message: Message, field: Any, depth: int) -> None:
    values: Any = getattr(message, field.name)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if depth < 3:
            _fill(rng, values.add(), depth + 1)
    else:
        values.append(_scalar(rng, field))


def _scalar(rng: random.Random, field: Any) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return rng.choice(_TEXTS)
        case FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 8, 40)))
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.TYPE_DOUBLE:
            return rng.choice((0.0, -1.5, 1e300, float("inf")))
        case FieldDescriptor.TYPE_ENUM:
            return rng.choice([value.number for value in field.enum_type.values])
    bits, is_signed = {
        FieldDescriptor.TYPE_INT32: (32, True),
        FieldDescriptor.TYPE_UINT32: (32, False),
        FieldDescriptor.TYPE_INT64: (64, True),
        FieldDescriptor.TYPE_UINT64: (64, False),
    }[field.type]
    value = rng.choice(_BIG if rng.random() < 0.15 else _NUMBERS) % (1 << bits)
    return value - (1 << bits) if is_signed and value >> (bits - 1) else value


def _good(rng: random.Random) -> bytes:
    kind = rng.choice(CLIENT_COMMANDS) if rng.random() < 0.8 else None
    command = random_command(rng, kind)
    return sized(command.SerializeToString(), random_payload(rng) if command.type == pb.BaseCommand.SEND else b"")


def _opening(rng: random.Random) -> bytes:
    """The first commands of a normal client; without them hardly any later frame would reach a producer or consumer."""
    number, topic = rng.randrange(2), rng.choice(_TEXTS[:4])
    match rng.randrange(4):
        case 0 | 1:
            producer = pb.CommandProducer(topic=topic, producer_id=number, request_id=rng.choice(_NUMBERS))
            command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=producer)
        case 2:
            subscribe = pb.CommandSubscribe(topic=topic, subscription="sub", consumer_id=number, request_id=1)
            subscribe.subType = rng.choice((pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared))
            subscribe.initialPosition = pb.CommandSubscribe.Earliest
            command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=subscribe)
        case _:
            flow = pb.CommandFlow(consumer_id=number, messagePermits=rng.choice((1, 1000, 2**32 - 1)))
            command = pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=flow)
    return sized(command.SerializeToString())


def _plausible_send(rng: random.Random) -> bytes:
    """A SEND to a producer that may exist, with an entry that may be valid."""
    command = random_command(rng, pb.BaseCommand.SEND)
    command.send.producer_id = rng.randrange(2)
    command.send.ClearField("message_id")
    return sized(command.SerializeToString(), random_payload(rng))


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """A few bytes flipped, removed, doubled or inserted."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del out[at : at + rng.randrange(1, 9)]
            case 3:
                out[at:at] = out[at : at + rng.randrange(1, 9)]
            case _:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(out)


def _damaged_command(rng: random.Random) -> bytes:
    return sized(_damaged(rng, random_command(rng, rng.choice(CLIENT_COMMANDS)).SerializeToString()))


def _damaged_anywhere(rng: random.Random) -> bytes:
    return _damaged(rng, _good(rng))


def _damaged_send(rng: random.Random) -> bytes:
    return sized(random_command(rng, pb.BaseCommand.SEND).SerializeToString(), _damaged(rng, random_payload(rng)))


def _wrong_body(rng: random.Random) -> bytes:
    """Type and body differ, or the type is unknown, or there is no body."""
    command = random_command(rng).SerializePartialToString()
    kind = rng.choice((0, 1, 2, 3, 6, 13, 41, 69, 82, 127))
    return sized(bytes((0x08, kind)) + rng.choice((command[2:], command, b"")))


def _random_command_bytes(rng: random.Random) -> bytes:
    return sized(rng.randbytes(rng.randrange(80)), rng.randbytes(rng.choice((0, 0, 30))))


def _deeply_nested(rng: random.Random) -> bytes:
    """Message ids nested deeper than any parser expects."""
    inner = b"\x08\x01\x10\x01"
    for _ in range(rng.choice((5, 99, 101, 300))):
        inner = b"\x08\x01\x10\x01\x3a" + _varint(len(inner)) + inner
    seek = b"\x08\x01\x10\x02\x1a" + _varint(len(inner)) + inner
    return sized(b"\x08\x1c\xe2\x01" + _varint(len(seek)) + seek)


def _bad_text(rng: random.Random) -> bytes:
    command = random_command(rng, rng.choice((4, 5, 21, 23, 32))).SerializeToString()
    return sized(command.replace(b"fuzz", rng.choice((b"\xff\xfe\x00\xc0", b"\xed\xa0\x80z", b"\x00\x01\x02\x03"))))


def _lying_sizes(rng: random.Random) -> bytes:
    frame = bytearray(_good(rng))
    sizes = (0, 1, 3, 4, 5, 8, len(frame), 2**16, 2**24, 5 * 2**20 + 10_236, 5 * 2**20 + 10_237, 2**31, 2**32 - 1)
    at = rng.choice((0, 4))
    frame[at : at + 4] = rng.choice(sizes).to_bytes(4, "big")
    return bytes(frame)


def _long_repeats(rng: random.Random) -> bytes:
    """Thousands of ids in one ACK or REDELIVER."""
    ids = [pb.MessageIdData(ledgerId=rng.choice(_BIG), entryId=index) for index in range(rng.choice((10, 500)))]
    if rng.random() < 0.5:
        ack = pb.CommandAck(consumer_id=0, ack_type=pb.CommandAck.Individual, message_id=ids)
        return sized(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack).SerializeToString())
    redeliver = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=0, message_ids=ids)
    command = pb.BaseCommand(
        type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliver_unacknowledged_messages=redeliver
    )
    return sized(command.SerializeToString())


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_MUTATIONS: tuple[Callable[[random.Random], bytes], ...] = (
    _opening,
    _opening,
    _opening,
    _opening,
    _plausible_send,
    _plausible_send,
    _plausible_send,
    _good,
    _good,
    _good,
    _damaged_command,
    _damaged_command,
    _damaged_send,
    _damaged_send,
    _damaged_anywhere,
    _wrong_body,
    _random_command_bytes,
    _deeply_nested,
    _bad_text,
    _lying_sizes,
    _long_repeats,
)
