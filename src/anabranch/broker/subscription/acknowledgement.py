"""What an acknowledgement settles: the cursor, the consumer that held the entry, the dispatcher that may wait for it.

Pure: no await, no clock, nothing is sent. Who may acknowledge what, and what is read next, is the subscription's.
"""

from __future__ import annotations

from anabranch.broker.subscription.consumer import Consumer, Pending
from anabranch.broker.subscription.dispatcher import Dispatcher
from anabranch.broker.subscription.dispatcher_key_shared import KeyedDispatcher
from anabranch.broker.subscription.dispatcher_single_active import SingleDispatcher
from anabranch.model.position import Position
from anabranch.storage.cursor.cursor import Cursor

UNKNOWN_SIZE = -1  # an entry that nobody here was given: the cursor counts again when asked

Ack = tuple[Position, tuple[int, ...], int]
"""Position, words of still unacknowledged indexes (may be empty), batch size when the client says it."""


def ack_entry(
    cursor: Cursor,
    dispatcher: Dispatcher | None,
    consumer: Consumer,
    position: Position,
    words: tuple[int, ...],
    batch_size: int,
) -> None:
    """One individual acknowledgement; it may come through another consumer than the one that was given the entry."""
    owner = consumer if position in consumer.pending else _holder(dispatcher, position)
    pending = owner.pending[position] if owner is not None else None
    if words:
        size = pending.total if pending is not None else batch_size or UNKNOWN_SIZE
        if not cursor.ack(position, size, words, batch_size):
            if owner is not None:
                left = _count(cursor.ack_set(position) or words)
                consumer.messages_acked += owner.settle_partly(position, left)
            return
    else:
        cursor.ack(position, pending.total if pending is not None else UNKNOWN_SIZE)
    if owner is not None and (settled := _settle(dispatcher, owner, position)) is not None:
        consumer.messages_acked += settled.messages


def skip_to(cursor: Cursor, dispatcher: Dispatcher | None, position: Position) -> None:
    """Everything up to here counts as acknowledged, also what consumers hold; they stay."""
    cursor.ack_cumulative(position)
    mark = cursor.mark_delete
    for consumer in dispatcher.consumers if dispatcher is not None else ():
        for held in [held for held in consumer.pending if held <= mark]:
            _settle(dispatcher, consumer, held)


def skip_removed(cursor: Cursor, dispatcher: SingleDispatcher, consumer: Consumer, horizon: Position) -> None:
    """Nobody acknowledges what compaction removed (up to `horizon`): it is passed when everything delivered around it
    is settled."""
    if consumer.lost_track:
        return
    upcoming = dispatcher.next_position
    first_held = min(next(iter(consumer.pending), upcoming), upcoming)
    upto = min(horizon, Position(first_held.ledger, first_held.entry - 1))
    if upto > cursor.mark_delete:
        cursor.ack_cumulative(upto)


def _holder(dispatcher: Dispatcher | None, position: Position) -> Consumer | None:
    """Who was given the entry."""
    if dispatcher is None:
        return None
    return next((other for other in dispatcher.consumers if position in other.pending), None)


def _settle(dispatcher: Dispatcher | None, owner: Consumer, position: Position) -> Pending | None:
    settled = owner.settle(position)
    if settled is not None and dispatcher is not None:
        dispatcher.settled(owner, position)
        if isinstance(dispatcher, KeyedDispatcher):
            dispatcher.released(owner, settled.slot)
    return settled


def _count(words: tuple[int, ...]) -> int:
    return sum((word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in words)
