"""Interface of the dispatchers, and what they share.

A dispatcher is a state machine: consumers join and leave, entries are offered, and it returns what to read next. It
never awaits, reads a clock or touches the log; the subscription around it does.

    subscription                       dispatcher
    ------------                       ----------
    wants()                    ->      ReadForward(start) | ReadThese(positions) | None
    (reads, cached or not)
    offer(want, entries)       ->      delivered to consumers, or buffered until they are ready
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.subscription.consumer import Consumer
from anabranch.model.position import Position
from anabranch.storage.topic.topic_log import StoredEntry


@dataclass(frozen=True, slots=True)
class ReadForward:
    start: Position


@dataclass(frozen=True, slots=True)
class ReadThese:
    """Single entries that were read before and must be delivered (again)."""

    positions: tuple[Position, ...]


Want = ReadForward | ReadThese


class Acks(Protocol):
    """The part of a cursor that dispatchers use."""

    def is_acked(self, p: Position) -> bool: ...

    def ack_set(self, p: Position) -> tuple[int, ...] | None: ...

    def first_unacked(self) -> Position: ...

    def is_untouched_from(self, p: Position) -> bool:
        """Whether nothing at or after `p` is acknowledged, not even partly. False is always safe."""


class Dispatcher(Protocol):
    consumers: list[Consumer]
    read_position: Position
    generation: int  # raised by a rewind: entries read before it must not be offered

    def join(self, consumer: Consumer) -> None: ...

    def leave(self, consumer: Consumer) -> None: ...

    def wants(self) -> Want | None: ...

    def offer(self, want: Want, entries: Sequence[StoredEntry]) -> None: ...

    def give_back(self, want: Want) -> None:
        """The read failed: want it again later."""

    def drain(self) -> None:
        """Deliver buffered entries, as far as consumers are ready."""

    def rewind(self) -> None:
        """Discard all delivery state; start again at the first unacknowledged entry."""

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        """Redeliver these entries of the consumer (None: all of them)."""

    def settled(self, consumer: Consumer, position: Position) -> None:
        """The entry was completely acknowledged through this consumer."""


def after(position: Position) -> Position:
    """The next position. A read continues with the next ledger if there is no such entry."""
    return Position(position.ledger, position.entry + 1)


UNLIMITED = 1 << 62


def room_left(unacked_max: int, consumers: Iterable[Consumer]) -> int:
    """Messages that a subscription may still deliver before too many are unacknowledged. Sums over all consumers, so
    call it once per step and count down, not once per entry."""
    if unacked_max <= 0:
        return UNLIMITED
    return unacked_max - sum(consumer.unacked_messages for consumer in consumers)


class EntryBuffer:
    """Entries that were read and not delivered yet. Bounded by one read: nothing is read while it is not empty."""

    __slots__ = ("at", "entries")

    def __init__(self) -> None:
        self.entries: list[StoredEntry] = []
        self.at = 0  # index of the next entry

    def __bool__(self) -> bool:
        return self.at < len(self.entries)

    def __len__(self) -> int:
        return len(self.entries) - self.at

    def extend(self, entries: Iterable[StoredEntry]) -> None:
        self.entries.extend(entries)

    @property
    def head(self) -> StoredEntry:
        return self.entries[self.at]

    def pop(self) -> StoredEntry:
        entry = self.entries[self.at]
        self.drop(1)
        return entry

    def drop(self, count: int) -> None:
        """Remove the first `count` entries."""
        self.at += count
        if self.at >= len(self.entries):
            self.clear()

    def clear(self) -> None:
        self.entries.clear()
        self.at = 0
