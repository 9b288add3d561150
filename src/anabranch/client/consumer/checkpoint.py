"""Checkpoints: the progress of a reader, as a value that an application stores.

A checkpoint of a run has one mark for every segment (partition) that the topic had at that time:

| mark          | the next run                                                       |
|---------------|--------------------------------------------------------------------|
| `FromStart`   | reads the segment from its beginning                               |
| `FromTime`    | begins with the first message published at that time or later      |
| `After`       | goes on behind that message                                        |
| `Done`        | does not read it: it is sealed, and everything was handed out      |

Bytes (big-endian; lengths and counts are int32): one byte kind. 1 earliest and 2 latest are one byte; 3 is a time, with
int64 milliseconds; 0 is a run: first what Pulsar's V5 clients write and read (count, then int64 segment and id of every
`After`; empty for several topics), then Anabranch's part, which begins with its version:

    byte version 1 | int64 created ms | count of topics × (topic | int64 incarnation | int64 epoch | count × mark)
    mark: int64 segment | byte 0 FromStart, 1 After + id, 2 Done, 3 FromTime + int64 ms,
          4 After + id + int64 ledger and int64 entry of `since`
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from anabranch.client.errors import BadOption
from anabranch.client.messages.message import BytesReader, MessageId, read_wire_id, sized, wire_id
from anabranch.model.names import TopicName
from anabranch.model.position import Position

VERSION = 1
UNKNOWN = -1
_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class FromStart:
    pass


@dataclass(frozen=True, slots=True)
class FromTime:
    at_ms: int


@dataclass(frozen=True, slots=True)
class After:
    """Continue after message `id`. `since`: a chunked message begins after this entry and ends after `id`, so reading
    starts there, and delivery after `id`. None: there is no such message."""

    id: MessageId
    since: Position | None = None


@dataclass(frozen=True, slots=True)
class Done:
    pass


Mark = FromStart | FromTime | After | Done


@dataclass(frozen=True, slots=True)
class TopicCut:
    """The marks of one topic by segment id, and their layout. `epoch` UNKNOWN: written by another client."""

    topic: str
    marks: Mapping[int, Mark]
    epoch: int = UNKNOWN
    incarnation: int = UNKNOWN


class Kind(Enum):
    RUN = 0
    EARLIEST = 1
    LATEST = 2
    TIME = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Start of a checkpoint consumer: `earliest()`, `latest()`, `at_time(…)` or `consumer.checkpoint()`."""

    kind: Kind
    cuts: tuple[TopicCut, ...] = ()
    at_ms: int = 0  # of TIME
    created_ms: int = field(default=0, compare=False)  # of RUN, for information

    @classmethod
    def earliest(cls) -> Checkpoint:
        """All messages that are stored."""
        return cls(Kind.EARLIEST)

    @classmethod
    def latest(cls) -> Checkpoint:
        """Messages published after the consumer was opened."""
        return cls(Kind.LATEST)

    @classmethod
    def at_time(cls, at: datetime | int) -> Checkpoint:
        """From the first message published at that time or later: a `datetime` with a time zone, or milliseconds."""
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise BadOption("Checkpoint.at_time takes a datetime with a time zone")
            at = int(at.timestamp() * 1000)
        if at < 0:
            raise BadOption("Checkpoint.at_time takes a time after 1970")
        return cls(Kind.TIME, at_ms=at)

    @classmethod
    def merge(cls, checkpoints: Iterable[Checkpoint]) -> Checkpoint:
        """Combine checkpoints of the members of a group: the farthest mark of every segment."""
        found: dict[tuple[str, int], TopicCut] = {}
        created = 0
        for one in checkpoints:
            if one.kind is not Kind.RUN:
                raise BadOption("only checkpoints of a run can be merged")
            created = max(created, one.created_ms)
            for cut in one.cuts:
                known = found.get((cut.topic, cut.incarnation))
                found[cut.topic, cut.incarnation] = cut if known is None else _merged(known, cut)
        if len({topic for topic, _ in found}) < len(found):
            raise BadOption("these checkpoints belong to different incarnations of a topic: it was created again")
        return cls(Kind.RUN, tuple(found.values()), created_ms=created)

    def cut_of(self, topic: str) -> TopicCut | None:
        """The marks of this topic. A checkpoint without a topic name has one topic only."""
        for cut in self.cuts:
            if not cut.topic and len(self.cuts) == 1:
                return cut
            # A regular topic that became a scalable one has its partitions as segments with the same numbers.
            if cut.topic == topic or (
                cut.topic and TopicName.parse(cut.topic).scalable == TopicName.parse(topic).scalable
            ):
                return cut
        return None

    def to_bytes(self) -> bytes:
        head = bytes([self.kind.value])
        if self.kind is Kind.TIME:
            return head + _LONG.pack(self.at_ms)
        if self.kind is not Kind.RUN:
            return head
        marks = self.cuts[0].marks if len(self.cuts) == 1 else {}
        shared = [_LONG.pack(segment) + _id(mark) for segment, mark in sorted(marks.items()) if isinstance(mark, After)]
        parts = [head, _INT.pack(len(shared)), *shared, bytes([VERSION]), _LONG.pack(self.created_ms)]
        parts.append(_INT.pack(len(self.cuts)))
        for cut in self.cuts:
            parts += [sized(cut.topic.encode()), _LONG.pack(cut.incarnation), _LONG.pack(cut.epoch)]
            parts.append(_INT.pack(len(cut.marks)))
            parts += [_LONG.pack(segment) + _mark(mark) for segment, mark in sorted(cut.marks.items())]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Checkpoint:
        """Raises BadOption for bytes that are not a checkpoint, or of a later version."""
        reader = BytesReader(data, "a checkpoint")
        try:
            kind = Kind(reader.byte())
        except ValueError as cause:
            raise BadOption("these bytes are not a checkpoint") from cause
        if kind is Kind.TIME:
            made = cls(kind, at_ms=reader.long())
        elif kind is Kind.RUN:
            made = _read_run(reader)
        else:
            made = cls(kind)
        reader.end()
        return made


def _merged(one: TopicCut, other: TopicCut) -> TopicCut:
    marks = dict(one.marks)
    for segment, mark in other.marks.items():
        known = marks.get(segment)
        marks[segment] = mark if known is None or reach(known) < reach(mark) else known
    return TopicCut(one.topic, marks, max(one.epoch, other.epoch), one.incarnation)


def reach(mark: Mark) -> tuple[int, tuple[int, ...]]:
    """Sort key for marks of one segment: the farther mark is greater."""
    match mark:
        case FromStart():
            return 0, ()
        case FromTime(at_ms):
            return 1, (at_ms,)
        case After(one):
            return 2, one.place
        case Done():
            return 3, ()


def _id(mark: After) -> bytes:
    return sized(wire_id(mark.id).SerializeToString())


def _mark(mark: Mark) -> bytes:
    match mark:
        case FromStart():
            return b"\x00"
        case After(_, since):
            if since is not None:
                return b"\x04" + _id(mark) + _LONG.pack(since.ledger) + _LONG.pack(since.entry)
            return b"\x01" + _id(mark)
        case Done():
            return b"\x02"
        case FromTime(at_ms):
            return b"\x03" + _LONG.pack(at_ms)


def _read_run(reader: BytesReader) -> Checkpoint:
    shared = {reader.long(): reader.sized() for _ in range(reader.count())}
    if not reader.is_more:  # written by another client, without topic and layout
        marks: dict[int, Mark] = {one: After(read_wire_id(data, "", one)) for one, data in shared.items()}
        return Checkpoint(Kind.RUN, (TopicCut("", marks),))
    version = reader.byte()
    if version != VERSION:
        raise BadOption(f"the checkpoint has version {version}, this client reads version {VERSION}")
    created = reader.long()
    cuts = []
    for _ in range(reader.count()):
        topic, incarnation, epoch = reader.text(), reader.long(), reader.long()
        marks = {}
        for _ in range(reader.count()):
            segment = reader.long()
            marks[segment] = _read_mark(reader, topic, segment)
        cuts.append(TopicCut(topic, marks, epoch, incarnation))
    return Checkpoint(Kind.RUN, tuple(cuts), created_ms=created)


def _read_mark(reader: BytesReader, topic: str, segment: int) -> Mark:
    match reader.byte():
        case 0:
            return FromStart()
        case 1:
            return After(read_wire_id(reader.sized(), topic, segment))
        case 2:
            return Done()
        case 3:
            return FromTime(reader.long())
        case 4:
            one = read_wire_id(reader.sized(), topic, segment)
            return After(one, Position(reader.long(), reader.long()))
        case other:
            raise BadOption(f"these bytes are not a checkpoint: unknown mark number {other}")
