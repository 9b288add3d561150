"""One task's way out to one topic: entries to the owners of its segments, in order, each of them once.

Knows lanes, receipts and what to do when a segment is sealed or a broker goes; rows become entries in `codec`.

An *effectively-once* outlet has a name that every attempt of the task shares, and row n of the task has sequence id
`first + n` whatever happens. When a lane opens, the broker says what that name has persisted there and in the segments
before it: rows at or below that are left out, whatever entries they were in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch import codec
from anabranch.client.compression import Compression, compressed
from anabranch.client.connection import Connection
from anabranch.client.errors import ClientError, NotReady, TimedOut, TopicTerminated, refusal
from anabranch.client.topic_view import TopicView
from anabranch.model.errors import Error
from anabranch.model.routing import RingHash, RoutingKind, keyless_position
from anabranch.model.segment import Segment
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_with_payload
from anabranch.spark import replay
from anabranch.spark.cluster import Cluster

FAREWELL_SECONDS = 5.0


class NotDeduplicating(Error):
    """Effectively-once needs a topic that keeps the last sequence id of each producer."""

    code = "not-deduplicating"


class OnReplay(StrEnum):
    """What to do when a batch that runs again brings other rows than are stored."""

    FAIL = "fail"
    WARN = "warn"  # say so in the log, and go on
    IGNORE = "ignore"  # nothing is compared


@dataclass(frozen=True, slots=True)
class OutletOptions:
    entry_rows: int = 1_000
    entry_bytes: int = 128 * 1024
    in_flight_bytes: int = 16 << 20
    compression: Compression = Compression.NONE
    send_timeout_s: float = 60.0
    is_exact: bool = True
    on_replay: OnReplay = OnReplay.FAIL


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


class Lane:
    """One producer on the wire. Told on the loop's thread, looked at on the task's, both under one condition."""

    def __init__(self, backing: str, segment: Segment, news: threading.Condition) -> None:
        self.backing, self.segment = backing, segment
        self.connection: Connection | None = None
        self.producer_id = 0
        self.last_sequence = -1
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

    def heard(self, kind: int, body: Any, payload: bytes) -> None:
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

    def detached(self, error: ClientError) -> None:
        with self._news:
            self._fail(error)
            self._news.notify_all()


class Outlet:
    def __init__(self, cluster: Cluster, topic: str, name: str, fencing_epoch: int, options: OutletOptions) -> None:
        self._cluster = cluster
        self._topic = topic
        self._name = name
        self._fencing_epoch = fencing_epoch
        self._options = options
        self._news = threading.Condition()
        self._lanes: dict[int, Lane] = {}
        self._attempts = 0
        self._view: TopicView | None = None
        self.rows_known = 0  # left out because an earlier attempt has persisted them

    def send(self, rows: Rows) -> None:
        """Entries are handed over in order; waits for room. Receipts are waited for by `finish`."""
        queue = [rows]
        while queue:
            try:
                self._send(queue[0])
                queue.pop(0)
            except _Sealed:
                queue = self._rerouted(queue)

    def finish(self) -> None:
        """Returns when every row is persisted."""
        while True:
            self._settle(self._lanes.values())
            if not any(lane.outstanding for lane in self._lanes.values()):
                return
            for rows in self._rerouted([]):
                self.send(rows)

    def close(self) -> None:
        """Producers leave; what has no receipt is given up."""
        leaving = [self._cluster.submit(partial(self._leave, lane)) for lane in self._lanes.values()]
        self._lanes.clear()
        for one in leaving:
            one.result(self._cluster.timeout_s)

    # -- sending

    def _send(self, rows: Rows) -> None:
        view = self._layout()
        active = view.layout.active
        target = np.where(rows.done, -1, self._routed(rows, view)).astype(np.int32)
        lanes: list[Lane | None] = []
        for number, segment in enumerate(active):
            lane = self._lane(view, segment) if (target == number).any() else None
            if lane is not None and self._options.is_exact:
                self._leave_out_known(rows, view, target, number, lane)
            lanes.append(lane)
        if not (target >= 0).any():
            return
        kind = self._options.compression
        entries = codec.write(
            rows.values,
            rows.keys,
            producer_name=self._name,
            publish_time=self._cluster.now_ms(),
            first=rows.first,
            event_times=rows.event_times,
            properties=rows.properties,
            segments=target.data,
            segment_count=len(active),
            messages_max=self._options.entry_rows,
            bytes_max=self._options.entry_bytes,
            compressed=None
            if kind is Compression.NONE
            else lambda body: (int(kind.number), compressed(bytes(body), kind=kind)),
        )
        for lane, batch in zip(lanes, entries, strict=True):
            for entry in batch:
                assert lane is not None
                self._hand_over(lane, Sent(entry, rows))

    def _routed(self, rows: Rows, view: TopicView) -> Any:
        """Per row the number of its segment."""
        active, routing = view.layout.active, view.layout.routing
        if len(active) == 1:
            return np.zeros(len(rows), np.int32)
        is_modulo = routing.kind is RoutingKind.MOD_N
        borders = list(range(len(active))) if is_modulo else [one.hash_range.start for one in active]
        keys = pa.nulls(len(rows), pa.string()) if rows.keys is None else rows.keys
        return np.asarray(codec.route(keys, routing, borders, first=rows.first))

    def _leave_out_known(self, rows: Rows, view: TopicView, target: Any, number: int, lane: Lane) -> None:
        """What this name has persisted in the lane's segment, or in one before it, is not sent again."""
        mine = target == number
        sequence = rows.first + np.arange(len(rows), dtype=np.int64)
        known = mine & (sequence <= lane.last_sequence)
        if lane.ancestors:
            ring = _ring(rows, view.layout.routing.ring_hash)
            for one in lane.ancestors:
                # An ancestor that was routed modulo its siblings says nothing by its range: parts of it are here.
                inside = (ring >= one.hash_start) & (ring <= one.hash_end) if one.ring_hash else mine
                known |= mine & inside & (sequence <= one.last_sequence_id)
        if known.any() and self._options.on_replay is not OnReplay.IGNORE:
            if lane.stored is None:
                lane.stored = replay.stored_rows(self._cluster, lane.backing, self._name)
            numbers = np.flatnonzero(known & ~rows.done).tolist()
            replay.check(self._topic, lane.stored, rows.first, numbers, rows.keys, rows.values)
        with self._news:
            rows.done |= known
        target[known] = -1
        self.rows_known += int(known.sum())

    def _hand_over(self, lane: Lane, sent: Sent) -> None:
        limit = self._options.in_flight_bytes
        self._wait(lambda: lane.bytes < limit or lane.is_settled)
        self._mend(lane)
        with self._news:
            if lane.is_sealed:
                raise _Sealed
            lane.outstanding.append(sent)
            lane.bytes += sent.entry.size
        self._write(lane, [sent])

    def _write(self, lane: Lane, some: Sequence[Sent]) -> None:
        connection = lane.connection
        assert connection is not None
        frames = [_frame(lane.producer_id, one.entry) for one in some]

        async def say() -> None:
            for frame in frames:
                connection.write(frame)

        self._cluster.submit(say)

    # -- segments that end

    def _layout(self) -> TopicView:
        """The layout to route by. A new one counts once everything under the old one has its outcome: a key's rows must
        not overtake each other."""
        found = self._cluster.layout(self._topic)
        if self._view is not None and found.layout.epoch != self._view.layout.epoch:
            ids = {one.segment_id for one in found.layout.active}
            ended = [lane for one, lane in self._lanes.items() if one not in ids]
            self._settle(ended)
            if any(lane.outstanding for lane in ended):
                raise _Sealed
            for lane in ended:
                del self._lanes[lane.segment.segment_id]
                self._cluster.submit(partial(self._leave, lane))
        self._view = found
        return found

    def _rerouted(self, queue: Sequence[Rows]) -> list[Rows]:
        """Rows that sealed segments did not take, and those of the queue, in order; the layout is the next one."""
        self._settle(self._lanes.values())
        sealed = [lane for lane in self._lanes.values() if lane.is_sealed]
        found = {id(rows): rows for rows in queue}
        for lane in sealed:
            found |= {id(sent.rows): sent.rows for sent in lane.outstanding}
            del self._lanes[lane.segment.segment_id]
        self._view = self._cluster.layout_without(self._topic, {lane.segment.segment_id for lane in sealed})
        return sorted(found.values(), key=lambda rows: rows.first)

    def _settle(self, lanes: Any) -> None:
        """Until each of these lanes has all its receipts, or is sealed."""
        for lane in list(lanes):
            while lane.outstanding and not lane.is_sealed:
                self._wait(partial(getattr, lane, "is_settled"))
                self._mend(lane)

    # -- producers on the wire

    def _lane(self, view: TopicView, segment: Segment) -> Lane:
        lane = self._lanes.get(segment.segment_id)
        if lane is None:
            lane = self._lanes[segment.segment_id] = Lane(view.backing(segment), segment, self._news)
            self._mend(lane)
            if lane.is_sealed:
                raise _Sealed
        return lane

    def _mend(self, lane: Lane) -> None:
        """A lane that is not attached (any more) is, and says once more what has no receipt."""
        tries, began = 0, self._cluster.clock.monotonic()
        while lane.failure is not None and not lane.is_sealed:
            failure = lane.failure
            is_late = self._cluster.clock.monotonic() - began > self._options.send_timeout_s
            if tries and (is_late or not failure.retryable):
                raise failure
            if tries:
                self._cluster.pause(min(0.05 * 2 ** (tries - 1), 1.0))
            tries += 1
            lane.failure = None
            try:
                self._cluster.call(partial(self._attach, lane))
            except TopicTerminated:
                lane.is_sealed = True
                return
            except ClientError as error:
                lane.failure = error
                continue
            with self._news:
                if self._options.is_exact:
                    while lane.outstanding and lane.outstanding[0].entry.highest <= lane.last_sequence:
                        lane.settled()
                again = list(lane.outstanding)
            self._write(lane, again)

    async def _attach(self, lane: Lane) -> None:
        connection = await self._cluster.serving(lane.backing, fresh=True)
        lane.connection, lane.producer_id = connection, connection.new_id()
        connection.listen_producer(lane.producer_id, lane)
        self._attempts += 1
        fields: dict[str, Any] = {}
        if connection.has_extensions and self._options.is_exact:
            fields["fencing_epoch"] = self._fencing_epoch
        try:
            answer = await connection.ask(
                BaseCommand.PRODUCER,
                self._cluster.timeout_s,
                topic=lane.backing,
                producer_id=lane.producer_id,
                producer_name=self._name,
                user_provided_producer_name=True,
                epoch=self._attempts,
                **fields,
            )
        except BaseException:
            connection.unlisten(lane.producer_id)
            raise
        lane.last_sequence, lane.ancestors = answer.last_sequence_id, tuple(answer.ancestors)

    async def _leave(self, lane: Lane) -> None:
        connection = lane.connection
        if connection is None or not connection.is_usable:
            return
        try:
            await connection.ask(BaseCommand.CLOSE_PRODUCER, FAREWELL_SECONDS, producer_id=lane.producer_id)
        except ClientError:
            pass  # the broker forgets the producer with its connection
        finally:
            connection.unlisten(lane.producer_id)

    def _wait(self, done: Callable[[], bool]) -> None:
        with self._news:
            if not self._news.wait_for(done, self._options.send_timeout_s):
                raise TimedOut(f"{self._topic}: no receipt within {self._options.send_timeout_s:g} s")


class _Sealed(Exception):
    """A lane's segment takes nothing more: not an error, and never seen outside."""


def _frame(producer_id: int, entry: codec.Packed) -> bytes:
    send = pb.CommandSend(producer_id=producer_id, sequence_id=entry.first, num_messages=len(entry.rows))
    if len(entry.rows) > 1:
        send.highest_sequence_id = entry.highest
    return frame_with_payload(pb.BaseCommand(type=pb.BaseCommand.SEND, send=send), entry.data)


def _ring(rows: Rows, ring_hash: RingHash) -> Any:
    """Ring positions: of the key, or of the sequence id where there is none."""
    count = len(rows)
    spread = np.fromiter((keyless_position(rows.first + i) for i in range(count)), np.int64, count)
    if rows.keys is None:
        return spread
    raw = np.asarray(codec.key_hashes(rows.keys)).astype(np.int64)
    ring = raw & 0xFFFF if ring_hash is RingHash.LOW16 else raw >> 16
    return np.where(np.asarray(rows.keys.is_valid()), ring, spread)
