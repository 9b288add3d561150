"""The open batch of a segment lane, and the entry that it becomes.

Messages are kept as columns, so that adding one costs a few appends and no object. Records are made only where single
messages are needed: when a split or merge moves them, or when they fail.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, overload

from anabranch.client.messages.compression import Compression, packed
from anabranch.client.messages.outgoing import Entry, EntryFormat, OutgoingMessage, described, head
from anabranch.protocol.codec import core
from anabranch.protocol.codec.column import pairs
from anabranch.protocol.entry import entry_head
from anabranch.protocol.keyhash import murmur3_32


class OpenBatch(Sequence[OutgoingMessage]):
    """Begins with a record, whose publish time and deadline apply to all messages. Never empty."""

    __slots__ = (
        "_given", "_made", "deadline", "highest", "keys", "orders", "publish_time_ms", "sequence_ids", "size_bytes",
        "tickets", "values",
    )  # fmt: skip

    def __init__(self, first: OutgoingMessage) -> None:
        self.publish_time_ms = first.publish_time_ms
        self.deadline = first.deadline
        self.values: list[bytes | None] = []  # None: a null value
        self.keys: list[str | bytes | None] = []
        self.sequence_ids: list[int] = []
        self.orders: list[int] = []
        self.tickets: list[Any] = []
        self.size_bytes = 0
        self.highest = -1  # the sequence id of the last one
        self._given: dict[int, OutgoingMessage] = {}  # row -> the record that was added
        self._made: list[OutgoingMessage] | None = None
        self.add(first)

    @classmethod
    def of(cls, records: Sequence[OutgoingMessage]) -> OpenBatch:
        made = cls(records[0])
        for record in records[1:]:
            made.add(record)
        return made

    def add(self, record: OutgoingMessage) -> None:
        """Add any record. Iteration yields this same object."""
        self._given[len(self.values)] = record
        self.join(record.value, record.key, record.sequence_id, record.order, record.ticket, record.size_bytes)

    def join(
        self, value: bytes | None, key: str | bytes | None, sequence_id: int, order: int, ticket: Any, size_bytes: int
    ) -> None:
        """Add a message that has only a value and a key."""
        self.values.append(value)
        self.keys.append(key)
        self.sequence_ids.append(sequence_id)
        self.orders.append(order)
        self.tickets.append(ticket)
        self.size_bytes += size_bytes
        self.highest = sequence_id

    def part(self, rows: Sequence[int]) -> OpenBatch:
        """These rows, ascending, as a batch of their own."""
        made = OpenBatch.__new__(OpenBatch)
        made.publish_time_ms, made.deadline = self.publish_time_ms, self.deadline
        if len(rows) == 1:
            (row,) = rows
            made.values, made.keys, made.tickets = [self.values[row]], [self.keys[row]], [self.tickets[row]]
            made.sequence_ids, made.orders = [self.sequence_ids[row]], [self.orders[row]]
        else:
            pick = itemgetter(*rows)
            made.values, made.keys, made.tickets = (
                list(pick(self.values)),
                list(pick(self.keys)),
                list(pick(self.tickets)),
            )
            made.sequence_ids, made.orders = list(pick(self.sequence_ids)), list(pick(self.orders))
        made.size_bytes, made.highest, made._made = 0, made.sequence_ids[-1], None
        made._given = {0: self._given[rows[0]] if rows[0] in self._given else self._record(rows[0])}
        if len(self._given) > 1:
            made._given |= {at: self._given[row] for at, row in enumerate(rows) if row in self._given}
        return made

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[OutgoingMessage]:
        return iter(self._records())

    @overload
    def __getitem__(self, index: int) -> OutgoingMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[OutgoingMessage]: ...
    def __getitem__(self, index: int | slice) -> OutgoingMessage | list[OutgoingMessage]:
        if index == 0:  # for its `order`; no other record is made
            return self._given[0]
        return self._records()[index]

    def _records(self) -> list[OutgoingMessage]:
        """Made once, because callers change the records."""
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
        """The messages in batch layout, packed by the codec."""
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


def sealed(
    records: Sequence[OutgoingMessage],
    style: EntryFormat,
    stamp: tuple[int, int] | None = None,
    *,
    is_part: bool = False,
) -> Entry:
    """The entry with these messages, in this order; one message alone is not in batch layout. `stamp`: the lowest and
    highest position of its messages on the bucket ring. `is_part`: ids of other entries lie between those in it."""
    batch = records if isinstance(records, OpenBatch) else OpenBatch.of(records)
    first = batch[0]
    body: bytes | bytearray
    if len(batch) == 1:
        of, body = described(first, style), first.value or b""
    else:
        of, body = head(first, style), batch.body()
        of.num_messages_in_batch = len(batch)
        of.highest_sequence_id = batch.highest
    first_id = batch.highest if is_part else first.sequence_id
    if stamp is not None:
        of.sequence_id = first_id
        of.entry_hash_min, of.entry_hash_max = stamp
    of.uncompressed_size = len(body)
    if style.compression is not Compression.NONE:
        kind, body = packed(bytes(body), style.compression)
        of.compression = kind.number
    if style.cipher is not None:
        body = style.cipher.encrypted(of, body)
    return Entry(batch, entry_head(of, body), body, first_id, batch.highest, batch.deadline)
