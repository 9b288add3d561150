"""Many messages of one call: rows that are encoded together, sent in few entries, and have one outcome. Never awaits.

A `BulkEntry` has the rows of one call that are in one entry. A lane uses it as the entry's records. Single records are
made only when a split or merge moves them to other entries, or when they fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from anabranch.client.config import Batching
from anabranch.client.errors import ClientError, MessageTooLarge
from anabranch.client.messages.compression import Compression, packed
from anabranch.client.messages.message import MessageId
from anabranch.client.messages.outgoing import Entry, EntryFormat, OutgoingMessage, check
from anabranch.client.producer.producer_effects import SegmentLane
from anabranch.client.producer.segment_router import SegmentRouter
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec import BadColumn, Packed, route, write
from anabranch.protocol.codec.column import Column, is_arrow, numbers, rows_of
from anabranch.protocol.keyhash import murmur3_32

SAMPLE_ROWS = 1000


class Sent(Sequence[MessageId]):
    """The message ids of a `send_batch` call, row by row; made on first access."""

    __slots__ = ("_entries", "_ids", "_rows", "_topic")

    def __init__(self, topic: str, rows: int) -> None:
        self._topic = topic
        self._rows = rows
        self._entries: list[tuple[Sequence[int], int, int, int]] = []  # rows, ledger, position, lane
        self._ids: list[MessageId | None] | None = None

    def add(self, rows: Sequence[int], ledger: int, position: int, lane: int) -> None:
        self._entries.append((rows, ledger, position, lane))

    def put(self, row: int, one: MessageId) -> None:
        if self._ids is None:
            self._ids = [None] * self._rows
        self._ids[row] = one

    def _made(self) -> list[MessageId | None]:
        ids: list[MessageId | None] = [None] * self._rows if self._ids is None else self._ids
        for rows, ledger, position, lane in self._entries:
            size = len(rows) if len(rows) > 1 and position >= 0 else 0
            for index, row in enumerate(rows):
                ids[row] = MessageId(self._topic, ledger, position, index if size else -1, size, lane)
        self._entries, self._ids = [], ids
        return ids

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> list[MessageId]: ...
    def __getitem__(self, index: int | slice) -> MessageId | list[MessageId]:
        found: Any = self._made()[index]
        return found  # type: ignore[no-any-return]  # every row has an id when the call returns


class BulkPart(NamedTuple):
    """The entries of one call for one lane."""

    track: SegmentLane
    entries: list[Entry]
    size_bytes: int


class Bulk:
    """One call: its columns, and how many of its rows have no outcome yet. `settled` is called once, with the ids or
    with the first error; other rows may be stored then."""

    def __init__(
        self,
        values: Column,
        keys: Column | None,
        properties: Column | None,
        event_times: Column | None,
        topic: str,
        settled: Callable[[Sent | ClientError], None],
    ) -> None:
        self.values = values
        self.keys = keys
        self.properties = properties
        self.event_times = event_times
        self.rows = len(values)
        if keys is not None and len(keys) != self.rows:
            raise BadColumn(f"{len(keys)} keys for {self.rows} values")
        if values.null_count if is_arrow(values) else not all(values) and None in values:
            _check_tombstones(values, keys)
        self.sent = Sent(topic, self.rows)
        self._left = self.rows
        self._error: ClientError | None = None
        self._settled = settled
        self._listed: tuple[list[Any], list[Any] | None, list[Any] | None, Any] | None = None

    def estimated_bytes(self) -> int:
        """Estimated bytes on the wire, for the memory limit."""
        try:
            return sum(_bytes_of(one) for one in (self.values, self.keys) if one is not None) + 16 * self.rows
        except TypeError as cause:
            raise BadColumn("values or keys contain an item that has no length") from cause

    def parts(
        self,
        router: SegmentRouter,
        style: EntryFormat,
        batching: Batching,
        first: int,
        order: int,
        publish_time: int,
        deadline: float,
    ) -> list[BulkPart] | None:
        """The entries per lane, rows numbered from `first` on; None: rows must be sent one by one. Raises when a row
        can never be sent."""
        tracks, segments = router.tracks, None
        if any(one.lane.division is not None and not one.lane.division.keeps_batches_whole for one in tracks):
            return None
        if len(tracks) > 1:
            keys = [None] * self.rows if self.keys is None else self.keys
            segments = route(keys, router.routing, router.starts, first=first)
        parts = []
        made = self._written(style, batching, publish_time, first, segments, len(tracks))
        for track, entries in zip(tracks, made, strict=True):
            if not entries:
                continue
            if track.lane.dead is not None:
                raise track.lane.dead
            largest = max(one.size for one in entries)
            if largest > track.lane.message_bytes_max:
                if style.chunk_bytes is None and style.compression is Compression.NONE:
                    self._check_sizes(track.lane.message_bytes_max)
                return None
            bulk_entries = [BulkEntry(self, one, first, order, publish_time, deadline) for one in entries]
            ready = [one.entry(whole) for one, whole in zip(bulk_entries, entries, strict=True)]
            parts.append(BulkPart(track, ready, sum(one.size_bytes for one in bulk_entries)))
        return parts

    def _check_sizes(self, message_bytes_max: int) -> None:
        """Raises if a row is too large, so that the call fails as a whole. Compressed rows are checked one by one."""
        largest = max(map(len, filter(None, self._lists()[0])))
        if largest > message_bytes_max:
            raise MessageTooLarge(largest, message_bytes_max)

    def _written(
        self,
        style: EntryFormat,
        batching: Batching,
        publish_time: int,
        first: int,
        segments: Sequence[int] | None,
        segment_count: int,
    ) -> list[list[Packed]]:
        extra = b""
        if style.schema_version:
            extra = pb.MessageMetadata(schema_version=style.schema_version).SerializePartialToString()

        def shrunk(body: bytes | bytearray) -> tuple[int, bytes]:
            kind, smaller = packed(bytes(body), style.compression)
            return kind.number, smaller

        return write(
            self.values,
            self.keys,
            producer_name=style.producer_name,
            publish_time=publish_time,
            first=first,
            event_times=self.event_times,
            properties=self.properties,
            segments=segments,
            segment_count=segment_count,
            messages_max=batching.max_messages,
            bytes_max=batching.max_bytes,
            compressed=None if style.compression is Compression.NONE else shrunk,
            extra=extra,
            encrypted=None if style.cipher is None else style.cipher.encrypted,
        )

    def record(self, row: int, first: int, order: int, publish_time: int, deadline: float) -> OutgoingMessage:
        """The row as a single message. `first` and `order` are those of row 0."""
        values, keys, properties, times = self._lists()
        value, key = values[row], None if keys is None else keys[row]
        pairs = None if properties is None else properties[row]
        pairs = dict(pairs) if pairs else None
        check(key, pairs, None)
        return OutgoingMessage(
            first + row,
            value,
            key,
            pairs,
            0 if times is None else times[row],
            publish_time,
            0,
            deadline,
            Ticket(self, row),
            hash=-1 if key is None else murmur3_32(key),
            order=order + row,
        )

    def _lists(self) -> tuple[list[Any], list[Any] | None, list[Any] | None, Any]:
        if self._listed is None:
            properties = self.properties
            if properties is not None and is_arrow(properties):
                properties = properties.to_pylist()
            self._listed = (
                rows_of(self.values, "values"),
                None if self.keys is None else rows_of(self.keys, "keys"),
                properties,
                numbers(self.event_times, self.rows, "event_times"),
            )
        return self._listed

    # -- outcomes

    def stored(self, rows: Sequence[int], ledger: int, position: int, lane: int) -> None:
        self.sent.add(rows, ledger, position, lane)
        self._less(len(rows))

    def stored_one(self, row: int, one: MessageId) -> None:
        self.sent.put(row, one)
        self._less(1)

    def failed_one(self, error: ClientError) -> None:
        self._error = self._error or error
        self._less(1)

    def _less(self, rows: int) -> None:
        self._left -= rows
        assert self._left >= 0
        if not self._left:
            self.settle()

    def settle(self) -> None:
        self._settled(self.sent if self._error is None else self._error)


class Ticket:
    """Receives the outcome of a row that is sent as a single message; used like a future."""

    __slots__ = ("_bulk", "_is_done", "_row")

    def __init__(self, bulk: Bulk, row: int) -> None:
        self._bulk = bulk
        self._row = row
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, one: MessageId) -> None:
        self._is_done = True
        self._bulk.stored_one(self._row, one)

    def set_exception(self, error: ClientError) -> None:
        self._is_done = True
        self._bulk.failed_one(error)


class BulkEntry(Sequence[OutgoingMessage]):
    """The records of one entry, made when more than one is accessed."""

    __slots__ = ("_bulk", "_first", "_made", "_order", "_rows", "deadline", "highest", "publish_time_ms", "size_bytes")

    def __init__(self, bulk: Bulk, made: Packed, first: int, order: int, publish_time: int, deadline: float) -> None:
        self._bulk = bulk
        self._rows = made.rows
        self._first = first
        self._order = order
        self.publish_time_ms = publish_time
        self.deadline = deadline
        self._made: list[OutgoingMessage] | None = None
        self.highest = made.highest
        self.size_bytes = made.size

    def entry(self, made: Packed) -> Entry:
        return Entry(self, made.head, made.body, made.first, made.highest, self.deadline)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[OutgoingMessage]:
        return iter(self._records())

    @overload
    def __getitem__(self, index: int) -> OutgoingMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[OutgoingMessage]: ...
    def __getitem__(self, index: int | slice) -> OutgoingMessage | list[OutgoingMessage]:
        if self._made is None and isinstance(index, int):  # for its order or sequence id
            return self._record(self._rows[index])
        return self._records()[index]

    def _record(self, row: int) -> OutgoingMessage:
        return self._bulk.record(row, self._first, self._order, self.publish_time_ms, self.deadline)

    def _records(self) -> list[OutgoingMessage]:
        if self._made is None:
            self._made = [self._record(row) for row in self._rows]
            # Together they release the bytes that the entry reserved.
            share, rest = divmod(self.size_bytes, len(self._made))
            for record in self._made:
                record.size_bytes = share
            self._made[0].size_bytes += rest
        return self._made

    def stored(self, lane: int, ledger: int, position: int) -> None:
        self._bulk.stored(self._rows, ledger, position, lane)


def _check_tombstones(values: Column, keys: Column | None) -> None:
    """A missing value deletes its key, so it needs one."""
    listed = [None] * len(values) if keys is None else rows_of(keys, "keys")
    for row, (value, key) in enumerate(zip(rows_of(values, "values"), listed, strict=True)):
        if value is None and key is None:
            raise BadColumn(f"row {row} has neither value nor key; a missing value deletes its key")


def _bytes_of(column: Column) -> int:
    """Estimated from a sample for long lists. Only for waiting; the bytes that are reserved are exact."""
    if is_arrow(column):
        return int(column.nbytes)
    some = column if len(column) < 2 * SAMPLE_ROWS else column[:: len(column) // SAMPLE_ROWS]
    return sum(map(len, filter(None, some))) * len(column) // max(1, len(some))
