"""The messages of an entry as bits, and ids as acks have them on the wire. Pure; knows nothing of who acknowledges."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.client.chunked import Place
from anabranch.client.message import MessageId
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import U64_MASK, signed


def all_of(size: int) -> int:
    return (1 << (size or 1)) - 1


def bit_of(one: MessageId) -> int:
    return 1 << max(one.batch_index, 0)


def bits_of(words: Iterable[int]) -> int:
    return sum((word & U64_MASK) << 64 * index for index, word in enumerate(words))


def words_of(bits: int, size: int) -> list[int]:
    return [signed(bits >> shift & U64_MASK) for shift in range(0, size, 64)]


def wire_of(place: Place, lane: int) -> pb.MessageIdData:
    identity = pb.MessageIdData(ledgerId=place[0] & U64_MASK, entryId=place[1] & U64_MASK)
    if lane >= 0:
        identity.partition = lane
    return identity
