"""One task's way out to one topic: entries to the owners of its segments, in order, each of them once.

Knows lanes, receipts and what to do when a segment is sealed or a broker goes; rows become entries in `codec`.

An *effectively-once* outlet has a name that every attempt of the task shares, and row n of the task has sequence id
`first + n` whatever happens. When a lane opens, the broker says what that name has persisted there and in the segments
before it: rows at or below that are left out, whatever entries they were in. Entries carry a checksum of all that was
sent there, so that a later attempt can tell whether it brings the same rows (`anabranch.spark.sink.replay_check`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.client.encryption.data_key_rotation import new_data_key
from anabranch.client.encryption.entry_cipher import EntryCipher
from anabranch.client.encryption.options import Encryption
from anabranch.client.errors import ClientError, TimedOut, TopicTerminated
from anabranch.client.messages.compression import Compression, compressed
from anabranch.client.topic.topic_view import TopicView, with_partition_hash
from anabranch.model.errors import Error
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.routing import RoutingKind
from anabranch.model.segment import Segment
from anabranch.protocol import codec
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.logs import get_logger
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.spark.client.entry_fetcher import managed_fields
from anabranch.spark.sink import replay_check as replay
from anabranch.spark.sink.replay_check import Memory, NonDeterministicReplay
from anabranch.spark.sink.row_checksum import RowChecksum, read_note
from anabranch.spark.sink.segment_writer import Rows, SegmentWriter, Sent, frame_of, ring_of, stored_in

log = get_logger(__name__)

CLOSE_SECONDS = 5.0


class NotDeduplicating(Error):
    """Effectively-once needs a topic that keeps the last sequence id of each producer."""

    code = "not-deduplicating"


class OnReplay(StrEnum):
    """What to do when a batch that runs again brings other rows than are stored."""

    FAIL = "fail"
    WARN = "warn"  # log a warning and continue
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
    encryption: Encryption | None = None
    partition_hash: PartitionHash | None = None  # of regular topics; None: as the broker says


class TopicWriter:
    def __init__(
        self, cluster: ClusterClient, topic: str, name: str, fencing_epoch: int, options: OutletOptions
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._name = name
        self._fencing_epoch = fencing_epoch
        self._options = options
        self._news = threading.Condition()
        self._lanes: dict[int, SegmentWriter] = {}
        self._attempts = 0
        self._view: TopicView | None = None
        self._first: int | None = None  # sequence id of the task's first row
        self._memory = Memory(topic)
        self._cipher: EntryCipher | None = None
        if options.encryption is not None:
            self._cipher = EntryCipher()
            self._cipher.use(*cluster.call(partial(new_data_key, options.encryption, cluster.timeout_s)))
        self.rows_known = 0  # left out because an earlier attempt has persisted them

    def send(self, rows: Rows) -> None:
        """Entries are handed over in order; waits while the buffer is full. Receipts are waited for by `finish`."""
        if self._first is None:
            self._first = rows.first
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
                self._judge(None)
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
        lanes = [
            self._lane(view, segment) if (target == number).any() else None for number, segment in enumerate(active)
        ]
        if self._options.is_exact:
            self._leave_out_known(rows, view, target, lanes)
        if not (target >= 0).any():
            return
        tallies: list[list[RowChecksum | None]] = [[None if lane is None else lane.tally] for lane in lanes]

        def noted(number: int, picked: Sequence[int]) -> bytes:
            before = tallies[number][-1]
            after = None if before is None else before.with_rows(rows.first, picked, rows.values, rows.keys)
            tallies[number].append(after)
            return b"" if after is None else after.field()

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
            extra=noted,
            encrypted=None if self._cipher is None else self._cipher.encrypted,
        )
        for lane, batch, after in zip(lanes, entries, tallies, strict=True):
            for entry, tally in zip(batch, after[1:], strict=True):
                assert lane is not None
                self._hand_over(lane, Sent(entry, rows, tally))

    def _routed(self, rows: Rows, view: TopicView) -> Any:
        """Per row the number of its segment."""
        active, routing = view.layout.active, view.layout.routing
        if len(active) == 1:
            return np.zeros(len(rows), np.int32)
        is_modulo = routing.kind is RoutingKind.MOD_N
        borders = list(range(len(active))) if is_modulo else [one.hash_range.start for one in active]
        keys = pa.nulls(len(rows), pa.string()) if rows.keys is None else rows.keys
        return np.asarray(codec.route(keys, routing, borders, first=rows.first))

    def _leave_out_known(self, rows: Rows, view: TopicView, target: Any, lanes: Sequence[SegmentWriter | None]) -> None:
        """What this name has persisted in a lane's segment, or in one before it, is not sent again."""
        known = np.zeros(len(rows), bool)
        stored: dict[int, Any] = {}  # per segment that has some: which rows
        ring = None
        for number, lane in enumerate(lanes):
            if lane is None or (lane.last_sequence < rows.first and not lane.ancestors):
                continue
            if ring is None and lane.ancestors:
                ring = ring_of(rows, view.layout.routing.ring_hash)
            for segment, mine in stored_in(rows, target == number, ring, lane):
                stored[segment] = stored[segment] | mine if segment in stored else mine
                known |= mine
        if not known.any():
            self._judge(rows.first + len(rows) - 1)
            return
        if self._options.on_replay is not OnReplay.IGNORE:
            for segment, mine in stored.items():
                self._memory.bring(segment, rows.first, np.flatnonzero(mine & ~rows.done), rows.values, rows.keys)
            self._judge(rows.first + len(rows) - 1)
            self._read_back(rows, stored)
        with self._news:
            rows.done |= known
        target[known] = -1
        self.rows_known += int(known.sum())

    def _judge(self, upto: int | None) -> None:
        """Is what came up to this sequence id (None: all of it) what is stored?"""
        try:
            self._memory.judge(upto)
        except NonDeterministicReplay as error:
            self._complain(error)

    def _complain(self, error: NonDeterministicReplay) -> None:
        if self._options.on_replay is OnReplay.FAIL:
            raise error
        log.warning("replay differs", extra={"topic": self._topic, "producer": self._name, "reason": error.reason})

    def _read_back(self, rows: Rows, stored: Mapping[int, Any]) -> None:
        """Where the broker has no checksum, the rows themselves are compared."""
        for lane in list(self._lanes.values()):
            mine = stored.get(lane.segment.segment_id)
            if mine is None or lane.tally is not None:
                continue
            if lane.stored is None:
                lane.stored = replay.stored_rows(self._cluster, lane.backing, self._name)
            numbers = np.flatnonzero(mine & ~rows.done).tolist()
            try:
                replay.check(self._topic, lane.stored, rows.first, numbers, rows.keys, rows.values)
            except NonDeterministicReplay as error:
                self._complain(error)

    def _hand_over(self, lane: SegmentWriter, sent: Sent) -> None:
        limit = self._options.in_flight_bytes
        self._wait(lambda: lane.bytes < limit or lane.is_settled)
        self._mend(lane)
        with self._news:
            if lane.is_sealed:
                raise _Sealed
            lane.outstanding.append(sent)
            lane.bytes += sent.entry.size
            lane.tally = sent.tally
        self._write(lane, [sent])

    def _write(self, lane: SegmentWriter, some: Sequence[Sent]) -> None:
        connection = lane.connection
        assert connection is not None
        frames = [frame_of(lane.producer_id, one.entry) for one in some]

        async def say() -> None:
            for frame in frames:
                connection.write(*frame)

        self._cluster.submit(say)

    # -- segments that end

    def _layout(self) -> TopicView:
        """The layout to route by. A new one counts once everything under the old one has its outcome: a key's rows must
        not overtake each other."""
        found = with_partition_hash(self._cluster.layout(self._topic, creates=True), self._options.partition_hash)
        if self._view is not None and _routing_of(found) != _routing_of(self._view):
            ids = {one.segment_id for one in found.layout.active}
            ended = [lane for one, lane in self._lanes.items() if one not in ids]
            # Partitions that are added, or another hash, move keys between partitions that stay.
            self._settle(self._lanes.values() if found.is_synthetic else ended)
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

    def _lane(self, view: TopicView, segment: Segment) -> SegmentWriter:
        lane = self._lanes.get(segment.segment_id)
        if lane is None:
            lane = self._lanes[segment.segment_id] = SegmentWriter(view.backing(segment), segment, self._news)
            self._mend(lane)
            if lane.is_sealed:
                raise _Sealed
            if self._options.is_exact:
                self._remember(lane)
        return lane

    def _remember(self, lane: SegmentWriter) -> None:
        """What earlier attempts have stored there and in the segments before: what they say of it is kept, to be
        compared with what this one brings."""
        assert self._first is not None
        found = {lane.segment.segment_id: (lane.last_sequence, lane.note)}
        found |= {one.segment_id: (one.last_sequence_id, one.note) for one in lane.ancestors if one.ring_hash}
        for segment, (last, note) in found.items():
            stored = read_note(note)
            if last >= self._first and stored is not None and stored.first == self._first:
                if not self._memory.knows(segment):
                    self._memory.expect(segment, last, stored)
                if segment == lane.segment.segment_id:
                    lane.tally = stored
        if lane.last_sequence < self._first and self._cipher is None:  # a checksum would tell something of the rows
            lane.tally = RowChecksum(self._first)
        self._memory.own(lane.segment.segment_id)

    def _mend(self, lane: SegmentWriter) -> None:
        """A lane that is not attached (any more) is, and says once more what has no receipt."""
        tries, began = 0, self._cluster.clock.monotonic()
        while lane.failure is not None and not lane.is_sealed:
            failure = lane.failure
            trying_s = self._cluster.clock.monotonic() - began
            is_final = not failure.retryable and not self._cluster.doubts(failure, trying_s)
            if tries and (is_final or trying_s > self._options.send_timeout_s):
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

    async def _attach(self, lane: SegmentWriter) -> None:
        connection = await self._cluster.serving(lane.backing, fresh=True)
        lane.connection, lane.producer_id = connection, connection.new_id()
        connection.listen_producer(lane.producer_id, lane)
        self._attempts += 1
        fields = managed_fields()
        if connection.has_extensions and self._options.is_exact:
            fields["fencing_epoch"] = self._fencing_epoch
            fields["first_sequence_id"] = self._first
        try:
            answer = await connection.ask(
                BaseCommand.PRODUCER,
                self._cluster.timeout_s,
                topic=lane.backing,
                producer_id=lane.producer_id,
                producer_name=self._name,
                user_provided_producer_name=True,
                epoch=self._attempts,
                encrypted=True if self._cipher is not None else None,
                **fields,
            )
        except BaseException:
            connection.unlisten(lane.producer_id)
            raise
        lane.last_sequence, lane.ancestors = answer.last_sequence_id, tuple(answer.ancestors)
        lane.note = answer.last_note

    async def _leave(self, lane: SegmentWriter) -> None:
        connection = lane.connection
        if connection is None or not connection.is_usable:
            return
        try:
            await connection.ask(BaseCommand.CLOSE_PRODUCER, CLOSE_SECONDS, producer_id=lane.producer_id)
        except ClientError:
            pass  # the broker forgets the producer with its connection
        finally:
            connection.unlisten(lane.producer_id)

    def _wait(self, done: Callable[[], bool]) -> None:
        with self._news:
            if not self._news.wait_for(done, self._options.send_timeout_s):
                raise TimedOut(f"{self._topic}: no receipt within {self._options.send_timeout_s:g} s")


def _routing_of(view: TopicView) -> tuple[object, ...]:
    """Changes when keys may have another segment."""
    return view.layout.epoch, len(view.layout.active), view.layout.routing


class _Sealed(Exception):
    """A lane's segment takes nothing more: not an error, and never seen outside."""
