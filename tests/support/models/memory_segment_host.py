"""Segments in memory: a complete model of the `SegmentHost` port for simulations and tests.

`Shelf` is the durable state: every segment with its entries, cursors and fencing token. `MemoryHost` implements the
port on it. `Shelf` can also publish, read and acknowledge, so that tests can follow messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from anabranch.broker.segment.reader_fence import ReaderFence
from anabranch.controller.segment_host import (
    Adopt,
    Adopted,
    Answer,
    ClearBacklog,
    CloseReader,
    Create,
    CreateCursor,
    CursorMissing,
    CursorSpec,
    CursorStats,
    Delete,
    DeleteCursor,
    DenyCursor,
    Done,
    Drained,
    Fence,
    FencingToken,
    GrantReader,
    Hold,
    HostCapabilities,
    HostEvent,
    Moved,
    OldClient,
    OtherIncarnation,
    Rates,
    Refilled,
    Release,
    Request,
    Seal,
    SealFacts,
    Seek,
    SegmentMissing,
    SegmentRef,
    SegmentSealed,
    SegmentStats,
    StaleRequest,
    StaleTerm,
    Start,
    Status,
)
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, Position

CAPABILITIES = HostCapabilities(
    "memory", has_drain_events=True, has_fencing=True, has_dedup_handover=True, tells_children=True
)
NEVER = FencingToken(-1, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    producer: str
    sequence_id: int
    publish_ms: int
    payload: bytes


@dataclass(slots=True)
class Cursor:
    next: int  # everything before this entry is acknowledged
    moved_by: set[str] = field(default_factory=set)  # operations that have moved it
    is_drained: bool = False  # as last reported
    rewind_count: int = 0  # how often a seek took it back in a drained segment
    fence: ReaderFence = field(default_factory=ReaderFence)


@dataclass(slots=True)
class StoredSegment:
    ref: SegmentRef
    created_by: str
    entries: list[Entry] = field(default_factory=list)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    sequence_ids: dict[str, int] = field(default_factory=dict)
    sealed: SealFacts | None = None
    children: tuple[SegmentRef, ...] = ()
    holds: dict[str, Position] = field(default_factory=dict)  # only stored: the model deletes no entries

    def position(self, index: int) -> Position:
        return Position(self.ref.segment_id, index) if index >= 0 else EARLIEST


class Shelf:
    """All segments of all topics, durable. Every change is applied whole or not at all."""

    def __init__(self) -> None:
        self.segments: dict[TopicName, StoredSegment] = {}
        self.regular: dict[TopicName, dict[str, bool]] = {}  # subscriptions of regular topics, and whether shared
        self.regular_entries: dict[TopicName, list[Entry]] = {}  # of regular topics
        self.old_clients: dict[TopicName, tuple[OldClient, ...]] = {}  # of regular topics; none attaches to a segment
        self._tokens: dict[TopicName, FencingToken] = {}  # kept when the segment is deleted: that is the fence
        self._listeners: list[Callable[[HostEvent], None]] = []
        self._closers: list[Callable[[SegmentRef, str, str], None]] = []

    def on_close(self, callback: Callable[[SegmentRef, str, str], None]) -> None:
        """Calls back for every reader (segment, subscription, member) to close; the model has no readers itself."""
        self._closers.append(callback)

    def listen(self, callback: Callable[[HostEvent], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    # requests ---------------------------------------------------------------------------------------------------------
    def apply(self, token: FencingToken, request: Request, now_ms: int) -> Answer:
        if isinstance(request, Adopt | Release):
            return self._apply_to_partition(token, request)
        found = self._admit(token, request)
        if isinstance(found, Done):
            return found
        match request:
            case Create() | Fence() | Seal() | Delete():
                return self._apply_to_segment(found, request, now_ms)
            case CloseReader() | GrantReader():
                return self._fence_readers(found, request)
            case _:
                return self._apply_to_cursor(found, request)

    def _apply_to_partition(self, token: FencingToken, request: Adopt | Release) -> Answer:
        """A partition of a regular topic (`regular`) becomes a segment, or is released."""
        ref = request.segment
        if isinstance(request, Adopt):
            self._admit(token, request)
            found = self.segments.get(ref.name)
            if found is None:
                found = self.segments[ref.name] = StoredSegment(ref, request.operation)
                found.entries = self.regular_entries.pop(ref.name, [])
            subscriptions = self.regular.get(ref.name, {})
            for name in subscriptions:
                self._add_cursor(found, CursorSpec(name, Start.EARLIEST))
            if request.force:
                self.old_clients.pop(ref.name, None)
            return Adopted(self.old_clients.get(ref.name, ()), tuple(sorted(subscriptions.items())))
        self._admit(token, request)
        found = self.segments.pop(ref.name, None)
        self._tokens.pop(ref.name, None)
        if found is not None:
            assert found.sealed is None, f"{ref} is released after it was sealed"
            self.regular_entries[ref.name] = found.entries
        return Done()

    def _admit(self, token: FencingToken, request: Request) -> StoredSegment | Done | None:
        """Checks token and incarnation. The segment, None if it does not exist, or Done if nothing is left to do."""
        ref = request.segment
        known = self._tokens.get(ref.name, NEVER)
        if token.term < known.term:
            raise StaleTerm(f"{ref}: term {token.term} is over, term {known.term} has sent requests")
        if token < known:
            raise StaleRequest(f"{ref}: request {token.number} comes after request {known.number}")
        self._tokens[ref.name] = token
        found = self.segments.get(ref.name)
        if found is not None and found.ref.incarnation != ref.incarnation:
            if isinstance(request, Delete | DeleteCursor):
                return Done()  # that incarnation no longer exists
            raise OtherIncarnation(f"{ref} belongs to incarnation {found.ref.incarnation}")
        return found

    def _apply_to_segment(
        self, found: StoredSegment | None, request: Create | Fence | Seal | Delete, now_ms: int
    ) -> Answer:
        ref = request.segment
        match request:
            case Create(operation, _, cursors):
                if found is None and ref.name in self.regular:
                    raise SegmentMissing(f"{ref} is a regular topic: only Adopt makes it a segment")
                if found is None:
                    found = self.segments[ref.name] = StoredSegment(ref, operation)
                for spec in cursors:
                    self._add_cursor(found, spec)
                return Done()
            case Fence():
                if found is None:
                    return Status(exists=False)
                drained = frozenset((name, one.rewind_count) for name, one in found.cursors.items() if one.is_drained)
                return Status(exists=True, sealed=found.sealed, cursors=frozenset(found.cursors), drained=drained)
            case Seal(operation, _, children):
                return self._seal(self._must(found, ref), operation, children, now_ms)
            case Delete():
                self.segments.pop(ref.name, None)
                return Done()
            case _:
                assert_never(request)

    def _apply_to_cursor(
        self,
        found: StoredSegment | None,
        request: CreateCursor | DenyCursor | DeleteCursor | Seek | ClearBacklog | Hold,
    ) -> Answer:
        ref = request.segment
        match request:
            case CreateCursor(_, _, spec):
                self._add_cursor(self._must(found, ref), spec)
                return Done()
            case DenyCursor():
                return Done()  # the model has no waiting clients
            case DeleteCursor(_, _, subscription):
                if found is not None:
                    found.cursors.pop(subscription, None)
                    found.holds.pop(subscription, None)
                return Done()
            case Seek(operation, _, subscription, publish_ms, generation):
                segment = self._must(found, ref)
                target = bisect_left(segment.entries, publish_ms, key=lambda entry: entry.publish_ms)
                cursor = self._cursor(segment, subscription)
                if cursor.fence.raise_to(generation):
                    for tell in tuple(self._closers):
                        tell(ref, subscription, "")
                self._move(segment, subscription, operation, target)
                return Moved(cursor.is_drained, cursor.rewind_count)
            case ClearBacklog(operation, _, subscription):
                segment = self._must(found, ref)
                self._move(segment, subscription, operation, len(segment.entries))
                return Done()
            case Hold(_, _, subscription, position):
                holds = self._must(found, ref).holds
                if position is None:
                    holds.pop(subscription, None)
                else:
                    holds[subscription] = position
                return Done()
            case _:
                assert_never(request)

    def _fence_readers(self, found: StoredSegment | None, request: CloseReader | GrantReader) -> Answer:
        ref = request.segment
        match request:
            case CloseReader(_, _, subscription, consumer, generation):
                if found is not None and subscription in found.cursors:
                    found.cursors[subscription].fence.raise_to(generation)
                for tell in tuple(self._closers):
                    tell(ref, subscription, consumer)
                return Done()
            case GrantReader(_, _, subscription, consumer, generation):
                if found is not None and subscription in found.cursors:
                    found.cursors[subscription].fence.raise_to(generation, consumer)
                return Done()
            case _:
                assert_never(request)

    def _must(self, found: StoredSegment | None, ref: SegmentRef) -> StoredSegment:
        if found is None:
            raise SegmentMissing(f"{ref} does not exist")
        return found

    def _add_cursor(self, segment: StoredSegment, spec: CursorSpec) -> None:
        if spec.subscription not in segment.cursors:
            at = len(segment.entries) if spec.start is Start.LATEST else 0
            segment.cursors[spec.subscription] = Cursor(at)
            self._tell_drained(segment, spec.subscription)

    def _seal(self, segment: StoredSegment, operation: str, children: tuple[SegmentRef, ...], now_ms: int) -> SealFacts:
        if segment.sealed is None:
            segment.sealed = SealFacts(
                segment.position(len(segment.entries) - 1),
                now_ms,
                operation,
                tuple(sorted(segment.sequence_ids.items())),
            )
            segment.children = children
            for subscription in segment.cursors:
                self._tell_drained(segment, subscription)
        return segment.sealed

    def _move(self, segment: StoredSegment, subscription: str, operation: str, target: int) -> None:
        cursor = self._cursor(segment, subscription)
        if operation not in cursor.moved_by:
            cursor.moved_by.add(operation)
            cursor.next = target
            self._tell_drained(segment, subscription)

    def _cursor(self, segment: StoredSegment, subscription: str) -> Cursor:
        try:
            return segment.cursors[subscription]
        except KeyError:
            raise CursorMissing(f"{segment.ref} has no cursor {subscription}") from None

    def _tell_drained(self, segment: StoredSegment, subscription: str) -> None:
        cursor = segment.cursors[subscription]
        is_drained = segment.sealed is not None and cursor.next == len(segment.entries)
        if is_drained == cursor.is_drained:
            return
        cursor.is_drained = is_drained
        cursor.rewind_count += not is_drained
        event = (Drained if is_drained else Refilled)(segment.ref, subscription, cursor.rewind_count)
        for tell in tuple(self._listeners):
            tell(event)

    def stats(self, ref: SegmentRef) -> SegmentStats | None:
        segment = self.segments.get(ref.name)
        if segment is None or segment.ref.incarnation != ref.incarnation:
            return None
        return SegmentStats(
            Rates(),
            Rates(),
            producers=0,
            messages=len(segment.entries),
            bytes=sum(len(entry.payload) for entry in segment.entries),
            subscriptions={
                name: CursorStats(len(segment.entries) - one.next, 0, segment.position(one.next - 1))
                for name, one in segment.cursors.items()
            },
        )

    # messages ---------------------------------------------------------------------------------------------------------
    def publish(self, name: TopicName, producer: str, sequence_id: int, payload: bytes, now_ms: int) -> Position:
        """Deduplicated: what this producer has sent before is confirmed with EARLIEST. Raises SegmentSealed."""
        segment = self.segments.get(name)
        if segment is None:
            raise SegmentMissing(f"{name} does not exist")
        if sequence_id <= segment.sequence_ids.get(producer, -1):
            return EARLIEST
        if segment.sealed is not None:
            raise SegmentSealed(f"{segment.ref} is sealed")
        segment.sequence_ids[producer] = sequence_id
        segment.entries.append(Entry(producer, sequence_id, now_ms, payload))
        return segment.position(len(segment.entries) - 1)

    def children_of(self, name: TopicName) -> tuple[SegmentRef, ...]:
        """The children that a producer of a sealed segment gets."""
        segment = self.segments.get(name)
        return segment.children if segment is not None else ()

    def unread(self, name: TopicName, subscription: str) -> list[tuple[Position, Entry]]:
        segment = self._must(self.segments.get(name), SegmentRef(name, 0, -1))
        start = self._cursor(segment, subscription).next
        return [(segment.position(i), segment.entries[i]) for i in range(start, len(segment.entries))]

    def acknowledge(self, name: TopicName, subscription: str, position: Position) -> None:
        """Cumulative."""
        segment = self.segments.get(name)
        if segment is None:
            return
        cursor = self._cursor(segment, subscription)
        cursor.next = max(cursor.next, position.entry + 1)
        self._tell_drained(segment, subscription)


class MemoryHost:
    """The port on a shelf, which several hosts may share."""

    def __init__(self, shelf: Shelf, now_ms: Callable[[], int]) -> None:
        self._shelf = shelf
        self._now_ms = now_ms

    @property
    def capabilities(self) -> HostCapabilities:
        return CAPABILITIES

    async def ask(self, token: FencingToken, request: Request) -> Answer:
        return self._shelf.apply(token, request, self._now_ms())

    async def measure(self, segments: Sequence[SegmentRef]) -> tuple[SegmentStats | None, ...]:
        """Nothing is measured over time here: rates are 0."""
        return tuple(self._shelf.stats(one) for one in segments)

    def listen(self, callback: Callable[[HostEvent], None]) -> Callable[[], None]:
        return self._shelf.listen(callback)
