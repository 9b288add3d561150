"""Messages larger than an entry: cut into chunks, and assembled again. State machines without I/O.

Each chunk is an entry with the uuid of its message, its number and the count. A message is compressed before it is cut.
The chunks of one message keep their order; entries of other producers may lie between them. On arrival:

| chunk                                | what happens                                                            |
|--------------------------------------|-------------------------------------------------------------------------|
| the next one of its message          | kept; the last one completes the message                                |
| number 0 of a message that has begun | starts it again: the producer resent it from the start                  |
| one that is already there            | its place is kept, its bytes are not: a resend after a lost receipt     |
| a later one of a complete message    | a resent chunk: acknowledged                                            |
| any other                            | the message is broken and will never be complete here                   |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from anabranch.client.encryption.entry_cipher import TAG_BYTES, EntryCipher
from anabranch.client.errors import MessageTooLarge
from anabranch.client.messages.compression import UNPACKED_BYTES_MAX, Compression, packed
from anabranch.client.messages.outgoing import Entry, EntryFormat, OutgoingMessage, described
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes, entry_head
from anabranch.protocol.frames import FRAME_OVERHEAD_MAX

HEAD_BYTES = 64  # reserved for fields that only chunks have, and the checksum
COMMAND_BYTES = 512  # reserved for the command of a frame, to the broker and to consumers
COMPLETE_MAX = 1000
Place = tuple[int, int]


# ----------------------------------------------------------------------------------------------------------- cutting


def entries_of(record: OutgoingMessage, entry_format: EntryFormat, message_bytes_max: int) -> list[Entry]:
    """Entries of a message that is too large for one entry uncompressed: one entry if compression is enough, otherwise
    chunks. Raises MessageTooLarge if chunking is off or the message exceeds the limit for assembly."""
    of = described(record, entry_format)
    whole = record.value or b""
    of.uncompressed_size = len(whole)
    kind, body = (
        packed(whole, entry_format.compression) if entry_format.compression is not Compression.NONE else (None, whole)
    )
    if kind is not None:
        of.compression = kind.number
    cipher = entry_format.cipher
    overhead = 0 if cipher is None else cipher.overhead_bytes
    if len(body) <= (
        body_bytes_max := _body_bytes_max(
            of.ByteSize() + overhead, message_bytes_max - TAG_BYTES * (cipher is not None)
        )
    ):
        if cipher is not None:
            body = cipher.encrypted(of, body)
        head = entry_head(of, body)
        return [Entry((record,), head, body, record.sequence_id, record.sequence_id, record.deadline)]
    bytes_left = message_bytes_max - of.ByteSize() - HEAD_BYTES - overhead
    if entry_format.chunk_bytes is None or bytes_left < 1:
        raise MessageTooLarge(len(body), body_bytes_max)
    if len(whole) > UNPACKED_BYTES_MAX:
        raise MessageTooLarge(len(whole), UNPACKED_BYTES_MAX)
    return _chunks(record, of, body, min(bytes_left, entry_format.chunk_bytes), cipher)


def _body_bytes_max(metadata_bytes: int, message_bytes_max: int) -> int:
    """As Pulsar counts: the limit is for the body. Metadata and commands have their own room in a frame; only metadata
    that does not fit there takes room of the body."""
    room = FRAME_OVERHEAD_MAX - COMMAND_BYTES - HEAD_BYTES
    return max(0, message_bytes_max - max(0, metadata_bytes - room))


def _chunks(
    record: OutgoingMessage, of: pb.MessageMetadata, body: bytes, chunk_bytes: int, cipher: EntryCipher | None
) -> list[Entry]:
    sequence = record.sequence_id
    of.uuid = f"{of.producer_name}-{sequence}"
    of.total_chunk_msg_size = len(body)
    cuts = range(0, len(body), chunk_bytes)
    of.num_chunks_from_msg = len(cuts)
    view = memoryview(body)
    made: list[Entry] = []
    for number, start in enumerate(cuts):
        of.chunk_id = number
        records = (record,) if number == len(cuts) - 1 else ()
        part: Bytes = view[start : start + chunk_bytes]
        if cipher is not None:  # each chunk alone, as Pulsar's clients do
            part = cipher.encrypted(of, part)
        made.append(Entry(records, entry_head(of, part), part, sequence, sequence, record.deadline, is_chunk=True))
    return made


# --------------------------------------------------------------------------------------------------- putting together


def is_chunk(of: pb.MessageMetadata) -> bool:
    """A message with a single chunk is treated as an ordinary one."""
    return of.num_chunks_from_msg > 1


@dataclass(frozen=True, slots=True)
class CompleteMessage:
    """A complete message: the places of its chunks in order, and its body, still compressed. `before` is the last entry
    that was received before its first chunk."""

    places: Sequence[Place]
    body: bytes
    before: Place | None


@dataclass(frozen=True, slots=True)
class IncompleteMessage:
    """A message that was given up because chunks are missing."""

    places: Sequence[Place]
    tries: int


class _State(Enum):
    COLLECTING = "collecting"
    BROKEN = "broken"  # chunks are missing: it will never be complete
    DISPLACED = "displaced"  # dropped for newer messages; may be complete after a redelivery


@dataclass(slots=True)
class _Pending:
    began: float
    before: Place | None  # the last entry that was received before its first chunk
    state: _State = _State.COLLECTING
    parts: list[bytes] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    size: int = 0
    tries: int = 0  # how often its chunks were delivered before


class Beginning(NamedTuple):
    """First entry of an incomplete message, and the entry before it, if one was received."""

    place: Place
    before: Place | None


def floor_of(wanted: Place, beginnings: Iterable[Beginning]) -> Place | None:
    """The highest place up to `wanted` that a cumulative ack may reach before these; None if there is none."""
    for begun in beginnings:
        if begun.place <= wanted:
            if begun.before is None:
                return None
            wanted = min(wanted, begun.before)
    return wanted


class ChunkAssembly:
    """Incomplete chunked messages of one lane. Times are passed with the calls."""

    def __init__(self, *, pending_max: int = 100, bytes_max: int = UNPACKED_BYTES_MAX, expire_s: float = 60.0) -> None:
        self._pending_max = pending_max
        self._bytes_max = bytes_max
        self._expire_s = expire_s
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._complete: OrderedDict[str, None] = OrderedDict()  # recently completed
        self._bytes = 0
        self.last_seen: Place | None = None  # the newest entry received, chunk or not

    def __len__(self) -> int:
        return len(self._pending)

    def is_resent_chunk(self, of: pb.MessageMetadata) -> bool:
        """True for a later chunk of a completed message: the producer resent it because its receipt was lost."""
        return of.chunk_id > 0 and of.uuid in self._complete and of.uuid not in self._pending

    def add(
        self, of: pb.MessageMetadata, data: Bytes, place: Place, now: float, tries: int = 0
    ) -> CompleteMessage | None:
        """Add a chunk. Returns the message if this chunk completes it. `tries`: earlier deliveries of the chunk."""
        before, self.last_seen = self.last_seen, place
        pending = self._pending.get(of.uuid)
        if pending is None or of.chunk_id == 0:
            pending = self._begun(of, before, now)
        pending.places.append(place)
        pending.tries = max(pending.tries, tries)
        if of.chunk_id < len(pending.parts) or pending.state is not _State.COLLECTING:
            return None
        is_last = of.chunk_id == of.num_chunks_from_msg - 1
        size = pending.size + len(data)
        is_misfit = size != of.total_chunk_msg_size if is_last else size > of.total_chunk_msg_size
        if of.chunk_id != len(pending.parts) or is_misfit or size > self._bytes_max:
            self._drop(pending, _State.BROKEN)
            return None
        pending.parts.append(bytes(data))
        pending.size = size
        self._bytes += len(data)
        if is_last:
            self._forget(of.uuid)
            self._complete[of.uuid] = None
            if len(self._complete) > COMPLETE_MAX:
                self._complete.popitem(last=False)
            return CompleteMessage(pending.places, b"".join(pending.parts), pending.before)
        self._bound()
        return None

    def expired(self, now: float) -> list[IncompleteMessage]:
        """Remove and return messages that stayed incomplete for too long. Displaced ones are kept."""
        late = [
            (uuid, pending)
            for uuid, pending in self._pending.items()
            if pending.state is not _State.DISPLACED and pending.began + self._expire_s <= now
        ]
        for uuid, _ in late:
            self._forget(uuid)
        return [IncompleteMessage(pending.places, pending.tries) for _, pending in late]

    def abandoned(self) -> list[IncompleteMessage]:
        """Remove and return all incomplete messages, because no more chunks will come. Displaced ones are kept."""
        return self.expired(float("inf"))

    @property
    def beginnings(self) -> list[Beginning]:
        """Of the incomplete messages."""
        return [Beginning(pending.places[0], pending.before) for pending in self._pending.values()]

    def clear(self) -> None:
        """Detached: the broker redelivers everything that was not acknowledged."""
        self._complete.clear()
        self._pending.clear()
        self._bytes = 0
        self.last_seen = None

    def floor(self, wanted: Place) -> Place | None:
        """The highest place up to `wanted` that a cumulative ack may reach without covering the first chunk of an
        incomplete message; None if there is none."""
        return floor_of(wanted, self.beginnings)

    def _begun(self, of: pb.MessageMetadata, before: Place | None, now: float) -> _Pending:
        earlier = self._pending.get(of.uuid)
        if earlier is not None:
            self._forget(of.uuid)
            made = _Pending(now, earlier.before, places=earlier.places)
        else:
            made = _Pending(now, before)
        self._pending[of.uuid] = made
        return made

    def _bound(self) -> None:
        """Enforce the limits on messages and bytes by dropping the oldest, never the newest."""
        collecting = [one for one in self._pending.values() if one.state is _State.COLLECTING]
        left = len(collecting)
        for pending in collecting[:-1]:
            if left <= self._pending_max and self._bytes <= self._bytes_max:
                return
            self._drop(pending, _State.DISPLACED)
            left -= 1

    def _drop(self, pending: _Pending, state: _State) -> None:
        self._bytes -= pending.size
        pending.parts, pending.size, pending.state = [], 0, state

    def _forget(self, uuid: str) -> None:
        self._bytes -= self._pending.pop(uuid).size
