"""Effect of an acknowledgement on the cursor, on the consumer that received the entry, and on the dispatcher.

Pure: no await, no clock, nothing is sent. The subscription decides who may acknowledge, and reads what comes next.
"""

from __future__ import annotations

from anabranch.broker.subscription.consumer import Consumer, Pending
from anabranch.broker.subscription.dispatcher import Dispatcher
from anabranch.broker.subscription.dispatcher_key_shared import KeyedDispatcher
from anabranch.broker.subscription.dispatcher_shared import SharedDispatcher
from anabranch.broker.subscription.dispatcher_single_active import SingleDispatcher
from anabranch.model.position import Position
from anabranch.storage.cursor.ack_state import words_of
from anabranch.storage.cursor.cursor import Cursor

UNKNOWN_SIZE = -1  # the entry was not delivered by this broker: the cursor counts again on demand

Ack = tuple[Position, tuple[int, ...], int]
"""Position, ack set of the unacknowledged batch indexes (may be empty), batch size if the client sends it."""


def ack_entry(
    cursor: Cursor,
    dispatcher: Dispatcher | None,
    consumer: Consumer,
    position: Position,
    words: tuple[int, ...],
    batch_size: int,
) -> None:
    """One individual acknowledgement. It may come from another consumer than the one that received the entry."""
    if isinstance(dispatcher, SharedDispatcher) and (divided := dispatcher.divided(position)) is not None:
        if not words and not consumer.spec.nacks_messages and (held := divided.held.get(consumer)):
            # The client acknowledges all that it received, and other consumers hold the rest.
            words, batch_size = words_of((1 << divided.size) - 1 & ~held), divided.size
        cursor.ack(position, divided.size, words or None, batch_size)
        consumer.messages_acked += dispatcher.acknowledged_part(position, divided)
        return
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
    elif dispatcher is not None:
        dispatcher.settled(consumer, position)  # it waited for redelivery


def skip_to(cursor: Cursor, dispatcher: Dispatcher | None, position: Position) -> None:
    """Acknowledge everything up to `position`, also entries pending at consumers. Consumers stay attached."""
    cursor.ack_cumulative(position)
    mark = cursor.mark_delete
    for consumer in dispatcher.consumers if dispatcher is not None else ():
        for passed in [one for one in consumer.pending if one <= mark]:
            _settle(dispatcher, consumer, passed)


def skip_removed(cursor: Cursor, dispatcher: SingleDispatcher, consumer: Consumer, horizon: Position) -> None:
    """Acknowledge entries that compaction removed (up to `horizon`), because no consumer does. They are skipped when
    every delivered entry before them is acknowledged."""
    if consumer.lost_track:
        return
    upcoming = dispatcher.next_position
    first_pending = min(next(iter(consumer.pending), upcoming), upcoming)
    upto = min(horizon, Position(first_pending.ledger, first_pending.entry - 1))
    if upto > cursor.mark_delete:
        cursor.ack_cumulative(upto)


def _holder(dispatcher: Dispatcher | None, position: Position) -> Consumer | None:
    """The consumer that the entry was delivered to."""
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
