"""Messages in chunks as one intake has them: some are being put together, some are complete and not done with. Knows
places and the `ChunkAssembly`; nothing of permits, acks and connections.

Why the second kind is remembered: an application acknowledges a message, which is all of its entries; and a cumulative
ack must stop before a message that begins before it and ends after it. That holds after a reconnect as well: what had
begun before it begins again when the broker sends it again, and must be left there to be sent.
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

__all__ = ["ChunkTracker", "CompleteMessage", "IncompleteMessage", "Place", "is_chunk"]

Place = tuple[int, int]


class ChunkTracker:
    def __init__(self, *, is_shared: bool) -> None:
        """`is_shared`: others take from the same subscription and may have what is missing here."""
        self._is_shared = is_shared
        self._assembly = ChunkAssembly()
        self._complete: dict[Place, CompleteMessage] = {}  # by their last chunk
        self._awaited: list[Beginning] = []  # of messages that had begun when we were detached: they come again
        self._end: Place | None = None  # nothing comes after this entry

    def __bool__(self) -> bool:
        return bool(self._assembly or self._complete or self._awaited)

    @property
    def has_begun(self) -> bool:
        """Are there messages that are not complete? They may grow old."""
        return bool(self._assembly)

    @property
    def has_complete(self) -> bool:
        return bool(self._complete)

    # -- what the broker sends

    def is_resent_chunk(self, of: pb.MessageMetadata) -> bool:
        return self._assembly.is_resent_chunk(of)

    def add(
        self, of: pb.MessageMetadata, data: memoryview, place: Place, now: float, tries: int
    ) -> CompleteMessage | None:
        """A chunk; the message when this completes it."""
        return self._assembly.add(of, data, place, now, tries)

    def keep(self, whole: CompleteMessage) -> None:
        """It goes to the application: its places are remembered until it is `done`."""
        self._complete[whole.places[-1]] = CompleteMessage(whole.places, b"", whole.before)

    def on_entry(self, place: Place) -> bool:
        """The newest entry, chunk or not. True: acks may go further, because a beginning that was awaited is not sent
        again (entries come in order, and this one is behind it)."""
        self._assembly.last_seen = place
        if not self._awaited:
            return False
        awaited, self._awaited = self._awaited, [begun for begun in self._awaited if begun.place > place]
        return any(begun.place < place for begun in awaited)

    def ends_at(self, last: Place) -> None:
        self._end = last

    def late(self, now: float) -> Sequence[IncompleteMessage]:
        """Messages that nobody will complete here: they stayed incomplete for too long, or their segment has ended."""
        return self._assembly.abandoned() if self.is_at_end else self._assembly.expired(now)

    @property
    def is_at_end(self) -> bool:
        seen = self._assembly.last_seen
        return not self._is_shared and self._end is not None and seen is not None and seen >= self._end

    # -- what the application does

    def done(self, place: Place) -> Sequence[Place]:
        """The entries of the message whose last one this is, acknowledged or given back; it is forgotten. One that is
        not in chunks is its own and only one."""
        whole = self._complete.pop(place, None)
        return (place,) if whole is None else whole.places

    def done_up_to(self, place: Place) -> set[Place]:
        """Everything up to here is acknowledged: the entries of what ends later, which must stay."""
        for last in [last for last in self._complete if last <= place]:
            del self._complete[last]
        return {part for whole in self._complete.values() for part in whole.places}

    def safe_floor(self, place: Place) -> Place | None:
        """The last entry up to this place before which no message in chunks begins that ends after it. Whoever goes on
        there misses none. None: not even the first entry that was seen."""
        safe = self._assembly.floor(place)
        if safe is not None:
            safe = floor_of(safe, self._awaited)
        for last, whole in self._complete.items():
            if safe is not None and whole.places[0] <= place < last:
                safe = None if whole.before is None else min(safe, whole.before)
        return safe

    def clear(self) -> None:
        """Detached: the broker sends again whatever is not acknowledged."""
        if not self._is_shared:  # where nothing is acknowledged cumulatively
            self._awaited += self._assembly.beginnings
        self._assembly.clear()
