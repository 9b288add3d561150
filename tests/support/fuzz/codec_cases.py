"""Inputs for the two implementations of the codec, and their comparison.

Used by the property test and by the fuzz under AddressSanitizer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from anabranch.model.errors import Error
from anabranch.model.routing import MOD_N, RANGE_HIGH16, RANGE_LOW16
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec import Body, core, key_hashes, route, write

Outcome = tuple[str, Any]


def outcome(call: Callable[..., Any], *arguments: Any) -> Outcome:
    """The outcome: all bytes of the result, or the kind of error."""
    try:
        return "made", plain(call(*arguments))
    except Error as error:
        return "raised", type(error)


def plain(found: Any) -> Any:
    """Buffers as bytes, recursively, so that two results can be compared."""
    if is_dataclass(found):
        return tuple(plain(getattr(found, one.name)) for one in fields(found))
    if isinstance(found, list | tuple):
        return tuple(plain(one) for one in found)
    if isinstance(found, bytes | bytearray | memoryview) or hasattr(found, "tobytes"):
        return bytes(memoryview(found).cast("B"))
    return found


def listed(loops: core.Loops, bodies: Sequence[Body]) -> Any:
    """All forms of the rows of a body."""
    found = []
    for data, messages in bodies:
        rows = loops.opened(data, messages)
        indexes, *rest = rows.listing()
        found.append((rows.count, list(indexes), *rest, rows.values(), rows.keys(), rows.columns()))
    return found


class Cases:
    """Random bodies, valid and damaged."""

    def __init__(self, seed: int, *, is_tame: bool = False) -> None:
        self.random = random.Random(seed)
        self._is_tame = is_tame

    def bodies(self) -> list[Body]:
        made = [self.body() for _ in range(self.random.randrange(3))]
        return [self.damaged(one) if self.random.random() < 0.6 else one for one in made]

    def body(self) -> Body:
        count = self.random.choice((0, 1, 2, 3, 9, 17))
        return Body(b"".join(self.record(index) for index in range(count)), count)

    def record(self, index: int) -> bytes:
        chance = self.random
        value = chance.randbytes(chance.choice((0, 1, 100, 300)))
        single = pb.SingleMessageMetadata(payload_size=len(value))
        if chance.random() < 0.7:
            single.partition_key = chance.choice(("", "key", "kéy", "a" * 200, "AQI="))
        if chance.random() < 0.2:
            single.partition_key_b64_encoded = chance.random() < 0.7
        if chance.random() < 0.7:
            single.sequence_id = chance.choice((index, 0, 2**63, 2**64 - 1))
        if chance.random() < 0.3:
            single.event_time = chance.choice((0, 5, 2**40, 2**64 - 1))
        for field in ("compacted_out", "null_value", "null_partition_key"):
            if chance.random() < 0.1:
                setattr(single, field, chance.random() < 0.7)
        for _ in range(chance.choice((0, 0, 0, 1, 3))):
            single.properties.add(key=chance.choice(("", "name", "ñ")), value=chance.choice(("", "text", "ü" * 70)))
        described = single.SerializeToString() + self.strange()
        return len(described).to_bytes(4, "big") + described + value

    def usual(self) -> Body:
        """As clients write it without properties, null values and binary keys."""
        chance = self.random
        count = chance.choice((1, 2, 9, 20))
        has = [chance.choice((0.0, 0.5, 1.0, 1.0)) for _ in range(3)]
        made = []
        for _ in range(count):
            value = chance.randbytes(chance.choice((0, 1, 127, 128, 300, 0x3FFF, 0x4000)))
            if chance.random() < 0.1:
                value = (
                    chance.choice((b"\0\0\0\2\x18\0", b"\0\0\0\5\x12\1k\x18\0", b"\0" * 9)) * 3
                )  # looks like records
            single = pb.SingleMessageMetadata(payload_size=len(value))
            if chance.random() < has[0]:
                single.partition_key = chance.choice(("", "key", "kéy", "€", "a" * 127))
            if chance.random() < has[1]:
                single.event_time = chance.choice((0, 127, 128, 2**41, 2**56 - 1))
            if chance.random() < has[2]:
                single.sequence_id = chance.choice((0, 127, 128, 2**14, 2**21, 2**28, 2**55, 2**56 - 1))
            described = single.SerializeToString()
            made.append(len(described).to_bytes(4, "big") + described + value)
        return Body(b"".join(made), count)

    def strange(self) -> bytes:
        """Unknown fields, known ones with another wire type, incomplete pairs, groups, long numbers."""
        if self._is_tame or self.random.random() < 0.7:
            return b""
        return self.random.choice(
            (
                b"\xa8\x06\x05", b"\x15\0\0\0\0", b"\x11\0\0\0\0\0\0\0\0", b"\x1a\x02ab", b"\x0a\x03\x0a\x01a",
                b"\x0a\x00", b"\x0b\x08\x01\x0c", b"\x0b\x13\x14\x0c", b"\x0b\x13\x0c\x14", b"\x0c", b"\x08\x01",
                b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
                b"\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x12\x02\xff\xfe", b"\x12\x03\xed\xa0\x80",
                b"\x12\x04\xf4\x90\x80\x80", b"\x12\x02\xc0\x80", b"\x12\xff\xff\xff\xff\x0f", b"\0\0", b"\x07",
                b"\x80\x80\x80\x80\x80\x01", b"\xf8\xff\xff\xff\x0f\x01", b"\xf8\xff\xff\xff\x7f\x01",
                b"\x12\x83\x80\x00abc", b"\x20\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02",
            )
        )  # fmt: skip

    def damaged(self, body: Body) -> Body:
        chance = self.random
        data, count = bytearray(body.data), body.messages
        for _ in range(chance.choice((1, 1, 2, 5))):
            kind = chance.randrange(5)
            if kind == 0 and data:
                data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            elif kind == 1 and data:
                del data[chance.randrange(len(data)) :]
            elif kind == 2:
                place = chance.randrange(len(data) + 1)
                data[place:place] = chance.randbytes(chance.choice((1, 2, 9)))
            elif kind == 3:
                count = chance.choice((-1, 0, count - 1, count + 1, 2**31 - 1))
            elif data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return Body(bytes(data), count)

    def rows(self) -> tuple[list[Any], list[Any] | None, dict[str, Any]]:
        """Values, keys, and the other columns of `write`; sometimes of the wrong type."""
        chance = self.random
        count = chance.choice((0, 1, 2, 7, 40))
        wrong = [None] if chance.random() < 0.9 else [7, "text", "\ud800", 1.5]
        values = [chance.choice([b"", b"x", b"y" * 130, b"z" * 20_000, *wrong]) for _ in range(count)]
        keys: list[Any] | None = None
        if chance.random() < 0.8:
            keys = [chance.choice(["", "k", "kéy", b"", b"\xff", b"ab", b"abc", *wrong]) for _ in range(count)]
        options: dict[str, Any] = {
            "messages_max": chance.choice((1, 3, 1000)),
            "bytes_max": chance.choice((1, 150, 100_000)),
            "first": chance.choice((0, 5, 2**40)),
        }
        if chance.random() < 0.4:
            options["event_times"] = [chance.choice((None, 0, 5, 2**41)) for _ in range(count)]
        if chance.random() < 0.4:
            options["properties"] = [
                chance.choice((None, {}, {"a": "b"}, {"": "", "é": "ü" * 70})) for _ in range(count)
            ]
        if chance.random() < 0.3:
            options["sequence_ids"] = sorted(chance.randrange(2**62) for _ in range(count))
        if chance.random() < 0.6:
            options["segments"] = [chance.choice((0, 1, 2, -1)) for _ in range(count)]
            options["segment_count"] = chance.choice((3, 3, 4, 2))
        return values, keys, options


def borders(chance: random.Random) -> Sequence[int]:
    return [0, *sorted(chance.sample(range(1, 0x10000), chance.randrange(6)))]


def written(loops: core.Loops, values: list[Any], keys: list[Any] | None, options: dict[str, Any]) -> Any:
    """Result of `write` with this implementation."""
    before, core.loops = core.loops, loops
    try:
        made = write(values, keys, producer_name="p", publish_time=7, **options)
    finally:
        core.loops = before
    return [[(one.head, one.body, one.first, one.highest, list(one.rows)) for one in entries] for entries in made]


def routed(loops: core.Loops, keys: list[Any], starts: Sequence[int], first: int) -> Any:
    """Segments by every routing, and the hashes."""
    before, core.loops = core.loops, loops
    try:
        found = [route(keys, how, starts, first=first) for how in (MOD_N, RANGE_LOW16, RANGE_HIGH16)]
        return [*found, key_hashes(keys)]
    finally:
        core.loops = before
