"""An entry whose messages are not all at one consumer, because some of them were nacked. Pure.

Every unacknowledged message of the entry is either held by exactly one consumer or waits for delivery. Bits stand for
messages, bit i for batch index i.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

H = TypeVar("H", bound=Hashable)


class Share(NamedTuple, Generic[H]):
    """What changed at one holder."""

    holder: H
    left: int  # messages that it still holds
    gone: int  # messages that were acknowledged


class DividedEntry(Generic[H]):
    __slots__ = ("held", "size", "waiting")

    def __init__(self, size: int, *, waiting: int = 0) -> None:
        self.size = size
        self.held: dict[H, int] = {}
        self.waiting = waiting

    def deliver(self, holder: H, bits: int) -> None:
        assert not bits & ~self.waiting
        self.waiting &= ~bits
        self.held[holder] = self.held.get(holder, 0) | bits

    def give_back(self, holder: H, bits: int | None = None) -> int:
        """Messages of the holder wait again (None: all that it holds). Returns which ones."""
        mine = self.held.pop(holder, 0)
        returned = mine if bits is None else mine & bits
        if mine & ~returned:
            self.held[holder] = mine & ~returned
        self.waiting |= returned
        return returned

    def acknowledge(self, unacked: int) -> list[Share[H]]:
        """Only these messages are still unacknowledged. Returns what changed at holders."""
        self.waiting &= unacked
        changed: list[Share[H]] = []
        for holder, bits in list(self.held.items()):
            if gone := bits & ~unacked:
                changed.append(Share(holder, (bits & unacked).bit_count(), gone.bit_count()))
                if bits & unacked:
                    self.held[holder] = bits & unacked
                else:
                    del self.held[holder]
        return changed
