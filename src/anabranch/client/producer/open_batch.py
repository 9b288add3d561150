"""The open batch of a lane, and the entry it becomes. Knows the bytes of a batch; no connections, no time.

Messages are kept as columns: one more of them is a few appends and no object. Whoever must look at them one by one (a
split or merge moves them, they fail) finds records all the same: they are made then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from anabranch.client.messages.compression import Compression, packed
from anabranch.client.messages.outgoing import Entry, EntryFormat, OutgoingMessage, described, head
from anabranch.protocol.codec import core
from anabranch.protocol.codec.column import pairs
from anabranch.protocol.entry import entry_head
from anabranch.protocol.keyhash import murmur3_32


class OpenBatch(Sequence[OutgoingMessage]):
    """Begins with a record, whose times count for all that join it; at least one message is in it, always."""

    __slots__ = (
        "_given", "_made", "deadline", "highest", "keys", "orders", "publish_time_ms", "sequence_ids", "size_bytes",
        "tickets", "values",
    )  # fmt: skip

    def __init__(self, first: OutgoingMessage) -> None:
        self.publish_time_ms = first.publish_time_ms
        self.deadline = first.deadline
        self.values: list[bytes] = []
        self.keys: list[str | bytes | None] = []
        self.sequence_ids: list[int] = []
        self.orders: list[int] = []
        self.tickets: list[Any] = []
        self.size_bytes = 0
        self.highest = -1  # the sequence id of the last one
        self._given: dict[int, OutgoingMessage] = {}  # came as records
        self._made: list[OutgoingMessage] | None = None
        self.add(first)

    @classmethod
    def of(cls, records: Sequence[OutgoingMessage]) -> OpenBatch:
        made = cls(records[0])
        for record in records[1:]:
            made.add(record)
        return made

    def add(self, record: OutgoingMessage) -> None:
        """Any record; it is this one that comes out again."""
        self._given[len(self.values)] = record
        self.join(record.value, record.key, record.sequence_id, record.order, record.ticket, record.size_bytes)

    def join(
        self, value: bytes, key: str | bytes | None, sequence_id: int, order: int, ticket: Any, size_bytes: int
    ) -> None:
        """A message that has nothing else to say of itself."""
        self.values.append(value)
        self.keys.append(key)
        self.sequence_ids.append(sequence_id)
        self.orders.append(order)
        self.tickets.append(ticket)
        self.size_bytes += size_bytes
        self.highest = sequence_id

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[OutgoingMessage]:
        return iter(self._records())

    @overload
    def __getitem__(self, index: int) -> OutgoingMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[OutgoingMessage]: ...
    def __getitem__(self, index: int | slice) -> OutgoingMessage | list[OutgoingMessage]:
        if index == 0:  # asked for its order
            return self._given[0]
        return self._records()[index]

    def _records(self) -> list[OutgoingMessage]:
        """Made once: whoever has one of them may have written on it."""
        if self._made is None or len(self._made) != len(self.values):
            known = self._given
            self._made = [known[row] if row in known else self._record(row) for row in range(len(self.values))]
            self._given = dict(enumerate(self._made))
        return self._made

    def _record(self, row: int) -> OutgoingMessage:
        key = self.keys[row]
        return OutgoingMessage(
            self.sequence_ids[row],
            self.values[row],
            key,
            None,
            0,
            self.publish_time_ms,
            0,
            self.deadline,
            self.tickets[row],
            hash=-1 if key is None else murmur3_32(key),
            order=self.orders[row],
        )

    def body(self) -> bytes | bytearray:
        """In batch layout, by the codec: once per message, so it counts."""
        loops, rows = core.loops, len(self.values)
        times: array[int] | None = None
        properties: list[Mapping[str, str] | None] | None = None
        for row, record in self._given.items():
            if record.event_time_ms:
                times = array("q", bytes(8 * rows)) if times is None else times
                times[row] = record.event_time_ms
            if record.properties:
                properties = [None] * rows if properties is None else properties
                properties[row] = record.properties
        ((body, *_),) = loops.pack(
            self.values,
            self.keys,
            None,
            times,
            None if properties is None else pairs(properties, rows, loops.given),
            0,
            array("q", self.sequence_ids),
            None,
            0,
            rows,
            core.UNLIMITED,
            core.UNLIMITED,
        )
        return body


def sealed(records: Sequence[OutgoingMessage], style: EntryFormat) -> Entry:
    """The entry with these messages, in this order; one message alone is not in batch layout."""
    draft = records if isinstance(records, OpenBatch) else OpenBatch.of(records)
    first = draft[0]
    body: bytes | bytearray
    if len(draft) == 1:
        of, body = described(first, style), first.value
    else:
        of, body = head(first, style), draft.body()
        of.num_messages_in_batch = len(draft)
        of.highest_sequence_id = draft.highest
    of.uncompressed_size = len(body)
    if style.compression is not Compression.NONE:
        kind, body = packed(bytes(body), style.compression)
        of.compression = kind.number
    return Entry(draft, entry_head(of, body), body, first.sequence_id, draft.highest, draft.deadline)
