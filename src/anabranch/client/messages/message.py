"""Messages and message ids as applications see them, and the bytes form of ids.

An id orders messages of one lane only: one partition, or one segment of a scalable topic. There is no order across
lanes. The bytes are those of Pulsar's V5 clients, big-endian; texts and ids are preceded by their length (int32):

    int64 segment | id | int32 n, n × (int64 segment, id) | topic | int32 n, n × (topic, int32 n, n × (int64, id))

where id is a serialised MessageIdData. The two lists are the positions that a cumulative ack of this id covers besides
its own, in its topic and in others; -1 means "none". Everything after the first id may be missing. `from_bytes` also
reads a bare MessageIdData, as stock clients write it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from anabranch.client.encryption.decryptor import EncryptionContext
from anabranch.client.errors import BadOption
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import U64_MASK, signed

REGULAR = "persistent://"
SHOWN_BYTES = 32  # of a body in `repr`, because messages are logged by accident
_NO_SEGMENT = -1
_SEGMENT_MAX = 1 << 56  # so that the first byte distinguishes a V5 id from a bare one
_COUNT_MAX = 1 << 20
_UNREAD: Any = object()
_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")


@dataclass(slots=True, unsafe_hash=True)  # not frozen: creation would cost four times as much per message
class MessageId:
    """Position of a message. `batch_index` is -1 for a message that is not in a batch. `lane` is the partition (-1 for
    a topic without partitions) or the segment. `covers`: positions in other lanes that a cumulative ack covers."""

    topic: str
    ledger: int
    entry: int
    batch_index: int = -1
    batch_size: int = 0
    lane: int = -1
    covers: tuple[MessageId, ...] = field(default=(), compare=False, repr=False)

    def to_bytes(self) -> bytes:
        near = [one for one in self.covers if one.topic == self.topic]
        far: dict[str, list[MessageId]] = {}
        for one in self.covers:
            if one.topic != self.topic:
                far.setdefault(one.topic, []).append(one)
        parts = [_LONG.pack(_segment_of(self)), sized(wire_id(self).SerializeToString()), _vector(near)]
        parts += [sized(self.topic.encode()), _INT.pack(len(far) or -1)]
        parts += [sized(topic.encode()) + _vector(ones) for topic, ones in far.items()]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> MessageId:
        """Raises BadOption for bytes that neither `to_bytes` nor another client writes."""
        if data[:1] == b"\x08":  # the first field of a MessageIdData; no V5 id begins like this
            return _plain(data, "", _NO_SEGMENT)
        reader = BytesReader(data, "a message id")
        segment, first = reader.long(), reader.sized()
        if not _NO_SEGMENT <= segment < _SEGMENT_MAX:
            raise BadOption(f"these bytes are not a message id: invalid segment number {segment}")
        near = _read_vector(reader) if reader.is_more else []
        topic = reader.text() if reader.is_more else ""
        covers = [_plain(one, topic, lane) for lane, one in near]
        for _ in range(reader.count() if reader.is_more else 0):
            other = reader.text()
            covers += [_plain(one, other, lane) for lane, one in _read_vector(reader)]
        reader.end()
        bare = _plain(first, topic, segment)
        return cls(topic, bare.ledger, bare.entry, bare.batch_index, bare.batch_size, bare.lane, tuple(covers))

    @property
    def place(self) -> tuple[int, int, int]:
        """Position within its lane, comparable."""
        return self.ledger, self.entry, self.batch_index

    def _places(self, other: object) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
        if not isinstance(other, MessageId) or (self.topic, self.lane) != (other.topic, other.lane):
            return None
        return self.place, other.place

    def __lt__(self, other: object) -> bool:
        places = self._places(other)
        return NotImplemented if places is None else places[0] < places[1]

    def __le__(self, other: object) -> bool:
        places = self._places(other)
        return NotImplemented if places is None else places[0] <= places[1]

    def __str__(self) -> str:
        index = "" if self.batch_index < 0 else f":{self.batch_index}"
        return f"{self.ledger}:{self.entry}{index}"


class Origin:
    """What all messages of one entry share: position and metadata of the entry."""

    __slots__ = (
        "batch_size", "encryption", "entry", "lane", "ledger", "producer_name", "publish_time", "redelivery_count",
        "schema_version", "seek_number", "topic", "where",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        ledger: int,
        entry: int,
        batch_size: int = 0,
        lane: int = -1,
        publish_time: int = 0,
        producer_name: str = "",
        redelivery_count: int = 0,
        schema_version: bytes = b"",
    ) -> None:
        self.topic = topic
        self.ledger = ledger
        self.entry = entry
        self.batch_size = batch_size  # 0: a single message
        self.lane = lane
        self.publish_time = publish_time
        self.producer_name = producer_name
        self.redelivery_count = redelivery_count
        self.schema_version = schema_version
        self.seek_number = 0  # of its segment consumer when it arrived
        self.encryption: EncryptionContext | None = None  # set if it could not be decrypted
        self.where = (topic, lane)


class _Null(bytes):
    """The type of `NULL`."""

    __slots__ = ()


NULL = _Null()
"""The body of a message without a value: empty, and recognised by its identity, so that messages need no flag."""


class Message:
    """One received message. Times are milliseconds since 1970; `event_time` is None if the producer set none. `data` is
    the body as it was sent, `value` the body decoded by the consumer's schema; None for a tombstone."""

    __slots__ = (
        "_id", "_value", "batch_index", "data", "decoder", "delivery", "event_time", "key", "origin", "properties",
        "sequence_id",
    )  # fmt: skip

    def __init__(  # written out for speed
        self,
        origin: Origin,
        batch_index: int,
        data: bytes,
        key: str | bytes | None,
        properties: Mapping[str, str],
        event_time: int | None,
        sequence_id: int,
    ) -> None:
        self.origin = origin
        self.batch_index = batch_index  # -1: not in a batch
        self.data = data
        self.key = key
        self.properties = properties
        self.event_time = event_time
        self.sequence_id = sequence_id
        self.delivery = -1  # running number within its stream consumer
        self.decoder: Callable[[bytes], Any] | None = None  # None: the body is the value
        self._value: Any = _UNREAD
        self._id: MessageId | None = None

    def __repr__(self) -> str:
        size = len(self.data)
        start = "None" if self.data is NULL else repr(self.data[:SHOWN_BYTES])
        if size > SHOWN_BYTES:
            start += f"… ({size} bytes)"
        return f"Message(topic={self.topic!r}, id={self.id}, key={self.key!r}, data={start})"

    @property
    def id(self) -> MessageId:
        """Created at the first access; acknowledging the message does not need it."""
        if self._id is None:
            at = self.origin
            self._id = MessageId(at.topic, at.ledger, at.entry, self.batch_index, at.batch_size, at.lane)
        return self._id

    @property
    def topic(self) -> str:
        return self.origin.topic

    @property
    def publish_time(self) -> int:
        return self.origin.publish_time

    @property
    def encryption(self) -> EncryptionContext | None:
        """Set if the message could not be decrypted and the consumer has `on_failure="deliver"`; `data` is the
        ciphertext then."""
        return self.origin.encryption

    @property
    def producer_name(self) -> str:
        return self.origin.producer_name

    @property
    def redelivery_count(self) -> int:
        """How often this message was nacked or timed out. Brokers without nacks of single messages count its batch."""
        return self.origin.redelivery_count

    @property
    def schema_version(self) -> bytes:
        """Version of the producer's schema; empty if it had none."""
        return self.origin.schema_version

    @property
    def is_tombstone(self) -> bool:
        """True if the message has no value: `value` is None and `data` is empty. Compaction removes its key."""
        return self.data is NULL

    @property
    def value(self) -> Any:
        """The body, decoded at the first access; raises SchemaMismatch if it cannot be. Without a schema: bytes. None
        for a tombstone."""
        if self.data is NULL:
            return None
        if self.decoder is None:
            return self.data
        if self._value is _UNREAD:
            self._value = self.decoder(self.data)
        return self._value


# bytes ----------------------------------------------------------------------------------------------------------------
def wire_id(one: MessageId) -> pb.MessageIdData:
    """In the form of Pulsar's clients, with partition and batch index."""
    made = pb.MessageIdData(ledgerId=one.ledger & U64_MASK, entryId=one.entry & U64_MASK)
    if one.lane >= 0 and _is_regular(one.topic):
        made.partition = one.lane
    if one.batch_index >= 0:
        made.batch_index, made.batch_size = one.batch_index, one.batch_size
    return made


def read_wire_id(data: bytes, topic: str, segment: int) -> MessageId:
    """Inverse of `wire_id`; the lane follows from topic and segment."""
    return _plain(data, topic, segment)


def sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _is_regular(topic: str) -> bool:
    return not topic or topic.startswith(REGULAR)


def _segment_of(one: MessageId) -> int:
    return max(one.lane, 0)


def _vector(ones: Iterable[MessageId]) -> bytes:
    parts = [_LONG.pack(_segment_of(one)) + sized(wire_id(one).SerializeToString()) for one in ones]
    return _INT.pack(len(parts)) + b"".join(parts)


def _plain(data: bytes, topic: str, segment: int) -> MessageId:
    try:
        read = pb.MessageIdData.FromString(data)
    except DecodeError as cause:
        raise BadOption("these bytes are not a message id") from cause
    lane = read.partition if _is_regular(topic) else segment
    size = read.batch_size if read.batch_index >= 0 else 0
    return MessageId(topic, signed(read.ledgerId), signed(read.entryId), read.batch_index, size, lane)


def _read_vector(reader: BytesReader) -> list[tuple[int, bytes]]:
    return [(reader.long(), reader.sized()) for _ in range(reader.count())]


class BytesReader:
    """Reads length-prefixed fields; raises BadOption for malformed bytes."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what, self._at = bytes(data), what, 0

    @property
    def is_more(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if size < 0 or len(part) != size:
            raise BadOption(f"these bytes are not {self._what}: they end too early")
        self._at += size
        return part

    def byte(self) -> int:
        return self.take(1)[0]

    def long(self) -> int:
        return int(_LONG.unpack(self.take(8))[0])

    def int32(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def count(self) -> int:
        """Length of a list; -1 (absent) is read as 0."""
        found = max(self.int32(), 0)
        if found > _COUNT_MAX:
            raise BadOption(f"these bytes are not {self._what}: a list of {found}")
        return found

    def sized(self) -> bytes:
        return self.take(max(self.int32(), 0))

    def text(self) -> str:
        try:
            return self.sized().decode()
        except UnicodeDecodeError as cause:
            raise BadOption(f"these bytes are not {self._what}") from cause

    def end(self) -> None:
        if self.is_more:
            raise BadOption(f"these bytes are not {self._what}: {len(self._data) - self._at} too many")
