"""One producer of a task on one segment: its connection, the entries without a receipt, and which rows the segment or
an ancestor already has.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.client.connection.connection import Connection
from anabranch.client.errors import ClientError, NotReady, TopicTerminated, refusal
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.routing import RingHash, Routing, RoutingKind, keyless_position
from anabranch.model.segment import Segment
from anabranch.protocol import codec
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_before
from anabranch.protocol.entry import Bytes
from anabranch.spark.sink import replay_check as replay
from anabranch.spark.sink.row_checksum import RowChecksum


@dataclass(slots=True, eq=False)
class Rows:
    """Some rows of a task as Arrow arrays: everything needed to route and encode them, also once more."""

    first: int  # sequence id of the first one
    values: Any
    keys: Any = None
    event_times: Any = None
    properties: Any = None
    done: Any = field(init=False)  # per row: it is persisted

    def __post_init__(self) -> None:
        self.done = np.zeros(len(self.values), bool)

    def __len__(self) -> int:
        return len(self.values)


@dataclass(slots=True, eq=False)
class Sent:
    """An entry without a receipt yet."""

    entry: codec.Packed
    rows: Rows
    tally: RowChecksum | None = None  # of the segment, with this entry


class SegmentWriter:
    """One producer on the wire. The loop's thread writes its state, the task's thread reads it, under one condition."""

    def __init__(self, backing: str, segment: Segment, news: threading.Condition) -> None:
        self.backing, self.segment = backing, segment
        self.connection: Connection | None = None
        self.producer_id = 0
        self.last_sequence = -1
        self.note = b""  # of the entry with that number
        self.tally: RowChecksum | None = None  # of what the task has sent there; None: not known, or of no interest
        self.ancestors: Sequence[pb.AncestorSequence] = ()
        self.outstanding: deque[Sent] = deque()
        self.bytes = 0
        self.failure: ClientError | None = NotReady("not attached yet")
        self.is_sealed = False
        self.stored: replay.Stored | None = None  # what an earlier attempt has persisted, once it was looked at
        self._news = news

    @property
    def is_settled(self) -> bool:
        return not self.outstanding or self.is_sealed or self.failure is not None

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        with self._news:
            if kind == BaseCommand.SEND_RECEIPT:
                if self.outstanding and self.outstanding[0].entry.first == body.sequence_id:
                    self.settled()
            elif kind == BaseCommand.SEND_ERROR:
                self._fail(refusal(body.error, body.message))
            elif kind == BaseCommand.SEGMENT_SEALED:
                self.is_sealed = True
            elif kind == BaseCommand.CLOSE_PRODUCER:
                self._fail(NotReady("the broker closed the producer"))
            self._news.notify_all()

    def settled(self) -> None:
        """The oldest entry is persisted."""
        sent = self.outstanding.popleft()
        sent.rows.done[np.asarray(sent.entry.rows)] = True
        self.bytes -= sent.entry.size

    def _fail(self, error: ClientError) -> None:
        if isinstance(error, TopicTerminated):
            self.is_sealed = True
        elif self.failure is None:
            self.failure = error

    def on_detached(self, error: ClientError) -> None:
        with self._news:
            self._fail(error)
            self._news.notify_all()


def frame_of(producer_id: int, entry: codec.Packed) -> tuple[bytes, bytes | bytearray]:
    """In two pieces: the body is not copied."""
    send = pb.CommandSend(producer_id=producer_id, sequence_id=entry.first, num_messages=len(entry.rows))
    if len(entry.rows) > 1:
        send.highest_sequence_id = entry.highest
    return frame_before(pb.BaseCommand(type=pb.BaseCommand.SEND, send=send), entry.head, len(entry.body)), entry.body


def stored_in(rows: Rows, mine: Any, ring: Any, lane: SegmentWriter) -> Iterator[tuple[int, Any]]:
    """Which of the lane's rows are stored already, and in which segment: a row is where it was sent first, so the
    oldest of the segments that could have it is the one."""
    sequence = rows.first + np.arange(len(rows), dtype=np.int64)
    left = mine
    for one in sorted(lane.ancestors, key=lambda one: one.segment_id):
        inside = (ring >= one.hash_start) & (ring <= one.hash_end) if one.ring_hash else _in_partition(rows, one, lane)
        found = left & inside & (sequence <= one.last_sequence_id)
        if found.any():
            yield one.segment_id, found
            left = left & ~found
    found = left & (sequence <= lane.last_sequence)
    if found.any():
        yield lane.segment.segment_id, found


def _in_partition(rows: Rows, one: pb.AncestorSequence, lane: SegmentWriter) -> Any:
    """Which rows were routed to an ancestor that was a partition of a regular topic. The range of it is all of the
    ring, because keys were routed modulo the number of partitions."""
    siblings = sorted(other.segment_id for other in lane.ancestors if not other.ring_hash)
    routing = Routing(RoutingKind.MOD_N, partition_hash=PartitionHash(one.partition_hash or PartitionHash.MURMUR3))
    keys = pa.nulls(len(rows), pa.string()) if rows.keys is None else rows.keys
    numbers = np.asarray(codec.route(keys, routing, range(len(siblings)), first=rows.first))
    return numbers == siblings.index(one.segment_id)


def ring_of(rows: Rows, ring_hash: RingHash) -> Any:
    """Ring positions: of the key, or of the sequence id where there is none."""
    count = len(rows)
    spread = np.fromiter((keyless_position(rows.first + i) for i in range(count)), np.int64, count)
    if rows.keys is None:
        return spread
    raw = np.asarray(codec.key_hashes(rows.keys)).astype(np.int64)
    ring = raw & 0xFFFF if ring_hash is RingHash.LOW16 else raw >> 16
    return np.where(np.asarray(rows.keys.is_valid()), ring, spread)
