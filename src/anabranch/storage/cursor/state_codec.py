"""Bytes of the state log: records of cursors and named blobs. Pure functions.

One entry of the state ledger holds one or more records, each `kind u8, length varint, body`. Integers are varints,
signed ones zigzag. A snapshot is the records between SNAPSHOT and COMMIT; without the COMMIT a reader ignores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.storage.cursor.ack_bitmap import CHUNK_BYTES
from anabranch.storage.cursor.ack_state import AckSnapshot, LedgerAcks

FORMAT = 1


class BadStateRecord(Error):
    """A state record that this version cannot read."""

    code = "bad-state-record"


@dataclass(frozen=True, slots=True)
class CursorSaved:
    """A complete cursor, written at its creation and in snapshots."""

    name: str
    properties: Mapping[str, str]
    acks: AckSnapshot
    consumed_messages: int  # -1: must be recounted


@dataclass(frozen=True, slots=True)
class CursorDelta:
    """Changes since the last record of this cursor."""

    name: str
    mark_delete: Position
    consumed_messages: int
    was_reset: bool = False  # a seek: earlier acknowledgements do not count
    acked: tuple[tuple[int, int, int], ...] = ()  # (ledger, first entry, count), above the mark-delete position
    partial: tuple[tuple[int, int, int], ...] = ()  # (ledger, entry, mask of unacknowledged messages)


@dataclass(frozen=True, slots=True)
class CursorProperties:
    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CursorDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class BlobSaved:
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class SnapshotBegins:
    """Earlier records no longer count, provided that the commit follows."""


@dataclass(frozen=True, slots=True)
class SnapshotCommitted:
    pass


StateRecord = (
    CursorSaved | CursorDelta | CursorProperties | CursorDeleted | BlobSaved | SnapshotBegins | SnapshotCommitted
)


def encode(records: Iterable[StateRecord]) -> bytes:
    out = bytearray((FORMAT,))
    for record in records:
        kind, body = _body(record)
        out.append(kind)
        _put_bytes(out, body)
    return bytes(out)


def decode(data: bytes | memoryview | bytearray) -> list[StateRecord]:
    reader = _Reader(bytes(data))
    version = reader.byte()
    if version != FORMAT:
        raise BadStateRecord(f"state record of format {version}, this version reads {FORMAT}")
    records: list[StateRecord] = []
    while not reader.at_end:
        kind = reader.byte()
        records.append(_record(kind, _Reader(reader.blob())))
    return records


def _body(record: StateRecord) -> tuple[int, bytearray]:
    out = bytearray()
    match record:
        case CursorSaved():
            _put_text(out, record.name)
            _put_properties(out, record.properties)
            _put_signed(out, record.consumed_messages)
            _put_acks(out, record.acks)
            return 1, out
        case CursorDelta():
            _put_text(out, record.name)
            out.append(1 if record.was_reset else 0)
            _put_position(out, record.mark_delete)
            _put_signed(out, record.consumed_messages)
            _put_triples(out, record.acked)
            _put_number(out, len(record.partial))
            for ledger, entry, mask in record.partial:
                _put_number(out, ledger)
                _put_number(out, entry)
                _put_mask(out, mask)
            return 2, out
        case CursorProperties():
            _put_text(out, record.name)
            _put_properties(out, record.properties)
            return 3, out
        case CursorDeleted():
            _put_text(out, record.name)
            return 4, out
        case BlobSaved():
            _put_text(out, record.key)
            _put_bytes(out, record.value)
            return 5, out
        case SnapshotBegins():
            return 6, out
        case SnapshotCommitted():
            return 7, out


def _record(kind: int, body: _Reader) -> StateRecord:
    match kind:
        case 1:
            name, properties, consumed = body.text(), body.properties(), body.signed()
            return CursorSaved(name, properties, body.acks(), consumed)
        case 2:
            name, was_reset, mark_delete, consumed = body.text(), body.byte() == 1, body.position(), body.signed()
            acked = body.triples()
            partial = tuple((body.number(), body.number(), body.mask()) for _ in range(body.number()))
            return CursorDelta(name, mark_delete, consumed, was_reset, acked, partial)
        case 3:
            return CursorProperties(body.text(), body.properties())
        case 4:
            return CursorDeleted(body.text())
        case 5:
            return BlobSaved(body.text(), body.blob())
        case 6:
            return SnapshotBegins()
        case 7:
            return SnapshotCommitted()
        case _:
            raise BadStateRecord(f"unknown state record kind {kind}")


def _put_number(out: bytearray, value: int) -> None:
    assert value >= 0, "varints are not negative"
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_signed(out: bytearray, value: int) -> None:
    _put_number(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _put_bytes(out: bytearray, value: bytes | bytearray) -> None:
    _put_number(out, len(value))
    out += value


def _put_text(out: bytearray, value: str) -> None:
    _put_bytes(out, value.encode("utf-8", "surrogatepass"))


def _put_properties(out: bytearray, properties: Mapping[str, str]) -> None:
    _put_number(out, len(properties))
    for key, value in properties.items():
        _put_text(out, key)
        _put_text(out, value)


def _put_position(out: bytearray, p: Position) -> None:
    _put_signed(out, p.ledger)
    _put_signed(out, p.entry)


def _put_mask(out: bytearray, mask: int) -> None:
    _put_bytes(out, mask.to_bytes((mask.bit_length() + 7) // 8, "little"))


def _put_triples(out: bytearray, triples: tuple[tuple[int, int, int], ...]) -> None:
    """Ascending (ledger, first, count) as differences, so that neighbouring runs take two or three bytes."""
    _put_number(out, len(triples))
    ledger_before = entry_before = 0
    for ledger, first, count in triples:
        _put_number(out, ledger - ledger_before)
        if ledger != ledger_before:
            entry_before = 0
        _put_number(out, first - entry_before)
        _put_number(out, count)
        ledger_before, entry_before = ledger, first + count


def _put_acks(out: bytearray, acks: AckSnapshot) -> None:
    _put_position(out, acks.mark_delete)
    _put_number(out, len(acks.ledgers))
    for saved in acks.ledgers:
        _put_number(out, saved.ledger)
        _put_number(out, len(saved.full))
        for first, count in saved.full:
            _put_number(out, first)
            _put_number(out, count)
        _put_number(out, len(saved.chunks))
        for index, raw in saved.chunks:
            short = raw.lstrip(b"\0")
            _put_number(out, index)
            _put_number(out, len(raw) - len(short))
            _put_bytes(out, short.rstrip(b"\0"))
        _put_number(out, len(saved.partial))
        for entry, mask in saved.partial:
            _put_number(out, entry)
            _put_mask(out, mask)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        if self.at_end:
            raise BadStateRecord("state record is truncated")
        self._at += 1
        return self._data[self._at - 1]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def signed(self) -> int:
        value = self.number()
        return -((value + 1) >> 1) if value & 1 else value >> 1

    def blob(self) -> bytes:
        size = self.number()
        if self._at + size > len(self._data):
            raise BadStateRecord("state record is truncated")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        try:
            return self.blob().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise BadStateRecord(f"name in a state record is not valid text: {error}") from error

    def properties(self) -> dict[str, str]:
        return {self.text(): self.text() for _ in range(self.number())}

    def position(self) -> Position:
        return Position(self.signed(), self.signed())

    def mask(self) -> int:
        return int.from_bytes(self.blob(), "little")

    def triples(self) -> tuple[tuple[int, int, int], ...]:
        triples = []
        ledger = entry = 0
        for _ in range(self.number()):
            step = self.number()
            if step:
                ledger, entry = ledger + step, 0
            first = entry + self.number()
            count = self.number()
            triples.append((ledger, first, count))
            entry = first + count
        return tuple(triples)

    def acks(self) -> AckSnapshot:
        mark_delete = self.position()
        return AckSnapshot(mark_delete, tuple(self._ledger() for _ in range(self.number())))

    def _ledger(self) -> LedgerAcks:
        ledger = self.number()
        full = tuple((self.number(), self.number()) for _ in range(self.number()))
        chunks = tuple(self._chunk() for _ in range(self.number()))
        partial = tuple((self.number(), self.mask()) for _ in range(self.number()))
        return LedgerAcks(ledger, full, chunks, partial)

    def _chunk(self) -> tuple[int, bytes]:
        index, skipped, raw = self.number(), self.number(), self.blob()
        if skipped + len(raw) > CHUNK_BYTES:
            raise BadStateRecord("chunk of acknowledgements is too long")
        return index, b"\0" * skipped + raw + b"\0" * (CHUNK_BYTES - skipped - len(raw))
