"""Chunked messages of one segment consumer: incomplete ones, and complete ones that are not acknowledged yet.

Complete messages are remembered for two reasons. An ack of a chunked message acknowledges all its entries. And a
cumulative ack must stop before a message that begins before it and ends after it. The second holds after a reconnect
too: the broker sends an incomplete message again, and its first chunks must not be acknowledged until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.client.messages.chunking import (
    Beginning,
    ChunkAssembly,
    CompleteMessage,
    IncompleteMessage,
    floor_of,
    is_chunk,
)
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes

__all__ = ["ChunkTracker", "CompleteMessage", "IncompleteMessage", "Place", "is_chunk"]

Place = tuple[int, int]


class ChunkTracker:
    def __init__(self, *, is_shared: bool) -> None:
        """`is_shared`: other consumers share the subscription and may have the missing chunks."""
        self._is_shared = is_shared
        self._assembly = ChunkAssembly()
        self._complete: dict[Place, CompleteMessage] = {}  # by their last chunk
        self._awaited: list[Beginning] = []  # incomplete when detached; they are redelivered
        self._end: Place | None = None  # nothing comes after this entry

    def __bool__(self) -> bool:
        return bool(self._assembly or self._complete or self._awaited)

    @property
    def has_begun(self) -> bool:
        """There are incomplete messages, which may expire."""
        return bool(self._assembly)

    @property
    def has_complete(self) -> bool:
        return bool(self._complete)

    # -- deliveries

    def is_resent_chunk(self, of: pb.MessageMetadata) -> bool:
        return self._assembly.is_resent_chunk(of)

    def add(self, of: pb.MessageMetadata, data: Bytes, place: Place, now: float, tries: int) -> CompleteMessage | None:
        """Add a chunk. Returns the message if this chunk completes it."""
        return self._assembly.add(of, data, place, now, tries)

    def keep(self, whole: CompleteMessage) -> None:
        """The message is delivered: its places are remembered until it is `done`."""
        self._complete[whole.places[-1]] = CompleteMessage(whole.places, b"", whole.before)

    def on_entry(self, place: Place) -> bool:
        """An entry was received, chunk or not. Returns True if acks may advance, because an awaited first chunk is not
        redelivered: entries arrive in order, and this one is later."""
        self._assembly.last_seen = place
        if not self._awaited:
            return False
        awaited, self._awaited = self._awaited, [begun for begun in self._awaited if begun.place > place]
        return any(begun.place < place for begun in awaited)

    def ends_at(self, last: Place) -> None:
        self._end = last

    def late(self, now: float) -> Sequence[IncompleteMessage]:
        """Messages that are given up: they stayed incomplete for too long, or their segment has ended."""
        return self._assembly.abandoned() if self.is_at_end else self._assembly.expired(now)

    @property
    def is_at_end(self) -> bool:
        seen = self._assembly.last_seen
        return not self._is_shared and self._end is not None and seen is not None and seen >= self._end

    # -- acks

    def done(self, place: Place) -> Sequence[Place]:
        """Forget a message that was acknowledged or returned, and return the places of all its entries. `place` is its
        last entry; an ordinary message has only this one."""
        whole = self._complete.pop(place, None)
        return (place,) if whole is None else whole.places

    def done_up_to(self, place: Place) -> set[Place]:
        """Everything up to `place` is acknowledged. Returns the entries of messages that end later and must stay."""
        for last in [last for last in self._complete if last <= place]:
            del self._complete[last]
        return {part for whole in self._complete.values() for part in whole.places}

    def safe_floor(self, place: Place) -> Place | None:
        """The last entry up to `place` such that no chunked message begins before or at it and ends after it. A reader
        that continues there misses no chunk. None if there is no such entry."""
        safe = self._assembly.floor(place)
        if safe is not None:
            safe = floor_of(safe, self._awaited)
        for last, whole in self._complete.items():
            if safe is not None and whole.places[0] <= place < last:
                safe = None if whole.before is None else min(safe, whole.before)
        return safe

    def clear(self) -> None:
        """Detached: the broker redelivers everything that is not acknowledged."""
        if not self._is_shared:  # shared subscriptions have no cumulative acks
            self._awaited += self._assembly.beginnings
        self._assembly.clear()
