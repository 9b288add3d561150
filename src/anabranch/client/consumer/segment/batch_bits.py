"""Messages of an entry as bits, and message ids as acks carry them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from anabranch.client.consumer.segment.chunk_tracker import Place
from anabranch.client.messages.message import MessageId, Origin
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


def ack_of(place: Place, lane: int, left: int, size: int) -> pb.MessageIdData:
    """The ack of an entry; `left`: messages of its batch that are not acknowledged."""
    identity = wire_of(place, lane)
    if left:
        identity.ack_set.extend(words_of(left, size))
        identity.batch_size = size
    return identity


def nack_of(place: Place, lane: int, bits: int, size: int) -> pb.MessageIdData:
    """The nack of messages of an entry, for brokers with `anabranch_message_nacks`. Others take the whole entry."""
    return ack_of(place, lane, bits if size else 0, size)  # both list messages that remain unacknowledged


def whole_entry(one: pb.MessageIdData) -> pb.MessageIdData:
    """The same id without messages of the batch."""
    return wire_of((signed(one.ledgerId), signed(one.entryId)), one.partition)


def covered(floor: tuple[int, int, int] | None, place: Place, size: int) -> int:
    """Messages of this entry that a cumulative ack up to `floor` (ledger, entry, index; -1: all of it) covers."""
    if floor is None or place > floor[:2]:
        return 0
    if place < floor[:2] or floor[2] < 0:
        return all_of(size)
    return all_of(size) & ((2 << floor[2]) - 1)


def runs_of(acks: Sequence[tuple[Origin | MessageId, int]]) -> Iterator[tuple[Origin | MessageId, int, int]]:
    """Acks of single messages as runs of one entry: the entry, the first batch index and the one after the last."""
    run, first = acks[0]
    following = first
    for at, index in acks:
        if at is run and index == following:
            following += 1
            continue
        yield run, first, following
        run, first, following = at, index, index + 1
    yield run, first, following
