"""A producer's state against a model of the brokers: segments that store and deduplicate, connections that lose both
directions, producers that are opened with the knowledge of that moment, seals, and layouts in any order.

The oracle is what the segments stored: read in ancestor order, every key must have its messages in send order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.client.config import Batching
from anabranch.client.errors import ClientError
from anabranch.client.messages.outgoing import Entry, OutgoingMessage
from anabranch.client.producer.ancestry import Ancestor, Ancestry
from anabranch.client.producer.producer_effects import (
    AskLayout,
    CloseRequest,
    Drop,
    On,
    Open,
    ProducerEffect,
    Reopen,
    SegmentLane,
)
from anabranch.client.producer.producer_state import ProducerState
from anabranch.client.producer.segment_producer_state import (
    Arm,
    Effect,
    Failed,
    Reconnect,
    SegmentProducerState,
    Stored,
    Transmit,
)
from anabranch.client.topic.topic_view import Plan, TopicView
from anabranch.model.entry_buckets import EVERY, EntryBuckets
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.replacement import Replacement, plan_merge, plan_split, replaced, reserved
from anabranch.model.routing import RingHash, key_hash
from anabranch.model.segment import Seal, Segment
from anabranch.protocol.entry import metadata, split_batch

TOPIC = TopicName.parse("topic://public/default/x")
RING = RingHash.LOW16
KEYS = [f"key-{n}" for n in range(12)]
HASHES = {key: key_hash(key) for key in KEYS}
MAX_BYTES = 5 << 20


@dataclass
class SegmentStore:
    """The stored messages of one segment."""

    segment: Segment
    log: list[str] = field(default_factory=list)
    last_sequence: int = -1
    children: tuple[Segment, ...] | None = None  # not None: sealed

    def store(self, entry: Entry) -> None:
        if self.segment.entry_bucket_splits:
            of, buckets = metadata(entry.data), EntryBuckets(self.segment.entry_bucket_splits)
            positions = [RING.bucket_position(one.hash) if one.hash >= 0 else 0 for one in entry.records]
            assert (of.entry_hash_min, of.entry_hash_max) == (min(positions), max(positions))
            assert buckets.of_stamp(min(positions), max(positions)) != EVERY, "messages of several buckets in one entry"
        if entry.highest > self.last_sequence:
            self.log += [one.data.decode() for one in split_batch(entry.data)]
            self.last_sequence = entry.highest


@dataclass
class Line:
    """One producer on one connection; a cut loses the commands of both directions."""

    to_broker: deque[Entry | str] = field(default_factory=deque)
    to_client: deque[tuple[object, ...]] = field(default_factory=deque)
    is_producer: bool = False  # the broker has it
    is_closed: bool = False


class ProducerWorld:
    def __init__(
        self, *, segments: int = 1, batch: int = 1, is_ours: bool = True, buckets: int = 1, window: int = 1 << 20
    ) -> None:
        """`buckets`: entry buckets of the first segments together. `window`: bytes in flight per lane."""
        self.is_ours = is_ours  # the brokers support the protocol extensions
        self.layout = Layout.initial(segments, now_ms=0, bucket_budget=buckets)
        self.epochs: list[Layout] = [self.layout]
        self.store = {one.segment_id: SegmentStore(one) for one in self.layout.active}
        self.plan: Replacement | None = None
        batching = Batching(max_messages=batch, max_delay=60)
        self.state = ProducerState(lambda: SegmentProducerState("p", batching, in_flight_bytes_max=window))
        self.lines: dict[SegmentLane, Line] = {}
        self.sent: list[str] = []
        self.stored: list[str] = []
        self.failures: list[ClientError] = []
        self.wants_layout = False
        self.shown = 0  # epochs only grow for a client
        self.next_order = 0
        self.show()

    # -- the application

    def send(self, key: str | None, sequence_id: int | None = None) -> None:
        order = self.next_order
        self.next_order += 1
        text = f"{key or '-'} {order}"
        self.sent.append(text)
        hashed = -1 if key is None else HASHES[key]
        record = OutgoingMessage(
            order if sequence_id is None else sequence_id, text.encode(), key, hash=hashed, order=order
        )
        track, effects = self.state.append(record)
        if track is not None:
            self.perform([On(track, effects)])

    def flush(self) -> None:
        self.perform(self.state.flush())

    # -- the topic

    def begin(self, plan: Replacement) -> None:
        """PLAN and CREATE."""
        self.plan = plan
        self.layout = reserved(self.layout, plan)
        for child in plan.children:
            self.store[child.segment_id] = SegmentStore(child)

    def split(self, segment_id: int, ways: int = 2) -> None:
        self.begin(plan_split(self.layout, segment_id, ways=ways, now_ms=1, limits=NO_LIMITS))

    def merge(self, *segment_ids: int) -> None:
        self.begin(plan_merge(self.layout, segment_ids, now_ms=1, limits=NO_LIMITS))

    def seal(self, segment_id: int) -> None:
        stored = self.store[segment_id]
        if stored.children is not None:
            return
        assert self.plan is not None
        stored.children = self.plan.children
        for track, line in self.lines.items():
            if track.segment.segment_id == segment_id and line.is_producer:
                line.is_producer = False
                if self.is_ours:
                    line.to_client.append(("sealed", stored.last_sequence))

    def commit(self) -> None:
        assert self.plan is not None
        for parent in self.plan.parent_ids:
            self.seal(parent)
        seals = {one: Seal(2, Position(1, len(self.store[one].log))) for one in self.plan.parent_ids}
        self.layout = replaced(self.layout, self.plan, seals)
        self.epochs.append(self.layout)
        self.plan = None

    def change(self) -> None:
        self.commit()
        self.show()

    def show(self, epoch: int | None = None, *, plan: bool = False) -> None:
        """A layout push arrives, of this epoch or the newest; one older than the last is ignored."""
        layout = self.epochs[-1 if epoch is None else epoch]
        if layout.epoch < self.shown:
            return
        self.shown = layout.epoch
        self.wants_layout = False
        shown_plan = None
        if plan and self.plan is not None and layout is self.epochs[-1]:
            shown_plan = Plan("op", self.plan.parent_ids, self.plan.children, {})
        self.perform(self.state.viewed(TopicView(TOPIC, layout, plan=shown_plan)))

    # -- connections

    def ask(self, track: SegmentLane) -> None:
        """PRODUCER reaches the broker, which answers with its current knowledge."""
        if track not in self.lines or self.lines[track].is_producer or self.lines[track].to_client:
            return
        line = self.lines[track] = Line()
        self.state.opening(track)
        stored = self.store[track.segment.segment_id]
        if stored.children is not None:
            line.to_client.append(("terminated",))
            return
        line.is_producer = True
        line.to_client.append(("opened", self.ancestry(stored.segment) if self.is_ours else None))

    def ancestry(self, segment: Segment) -> Ancestry:
        older = [
            one
            for i, one in self.store.items()
            if i < segment.segment_id and one.segment.hash_range.overlaps(segment.hash_range)
        ]
        return Ancestry(
            Ancestor(one.segment.segment_id, one.segment.hash_range, one.last_sequence, RingHash.LOW16) for one in older
        )

    def cut(self, track: SegmentLane) -> None:
        if track in self.lines:
            self.lines[track] = Line()
            self.perform(self.state.lost(track))

    def serve(self, track: SegmentLane, count: int = 1) -> None:
        """The broker reads commands of the client."""
        line = self.lines.get(track)
        while line is not None and line.to_broker and count > 0:
            count -= 1
            one = line.to_broker.popleft()
            stored = self.store[track.segment.segment_id]
            if isinstance(one, str):
                line.is_producer = False
                line.to_client.append(("closed",))
            elif stored.children is None and line.is_producer:
                stored.store(one)
                line.to_client.append(("receipt", one.first, len(stored.log)))
            elif not self.is_ours:
                line.to_client.append(("refused",))

    def receive(self, track: SegmentLane, count: int = 1) -> None:
        """The client reads commands of the broker."""
        while (line := self.lines.get(track)) is not None and line.to_client and count > 0:
            count -= 1
            match line.to_client.popleft():
                case ("opened", ancestry):
                    assert ancestry is None or isinstance(ancestry, Ancestry)
                    self.perform(self.state.opened(track, MAX_BYTES, None, ancestry))
                case ("receipt", int(sequence), int(position)):
                    self.perform([On(track, track.lane.receipt(sequence, 1, position))])
                    self.perform(self.state.settled(track))
                case ("refused",):
                    self.perform(self.state.refused(track))
                case ("terminated",):
                    self.perform(self.state.terminated(track))
                case ("sealed", int(last)):
                    children = self.store[track.segment.segment_id].children
                    assert children is not None
                    self.perform(self.state.sealed(track, children, last))
                case ("closed",):
                    self.lines[track] = Line()
                    self.perform(self.state.close_confirmed(track))
                case other:
                    raise AssertionError(other)

    # -- effects

    def perform(self, effects: Iterable[ProducerEffect]) -> None:
        for effect in effects:
            match effect:
                case On(track, done):
                    self._on(track, done)
                case Open(track):
                    self.lines[track] = Line()
                case Reopen(track):
                    self.lines[track] = Line()
                case CloseRequest(track):
                    if (line := self.lines.get(track)) is not None and not line.is_closed:
                        line.is_closed = True
                        line.to_broker.append("close")
                case Drop(track):
                    self.lines.pop(track, None)
                case AskLayout():
                    self.wants_layout = True

    def _on(self, track: SegmentLane, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Transmit(entry):
                    line = self.lines[track]
                    assert track.is_attached and not line.is_closed, "entry sent after CLOSE_PRODUCER"
                    self.check_barrier(track, entry)
                    line.to_broker.append(entry)
                case Stored(records, _, _):
                    self.stored += [(record.value or b"").decode() for record in records]
                case Failed(_, error):
                    self.failures.append(error)
                case Arm():
                    pass
                case Reconnect(reason):
                    raise AssertionError(reason)

    def check_barrier(self, track: SegmentLane, entry: Entry) -> None:
        """No message of a key is sent while an older one waits in another lane."""
        for other in self.state.tracks:
            if other is not track:
                for record in entry.records:
                    assert not any(
                        record.hash == one.hash and record.hash >= 0 and one.order < record.order
                        for waiting in (*other.lane._in_flight, *other.lane._waiting)
                        for one in waiting.records
                    ), f"{record.value!r} overtakes"

    # -- the end

    def settle(self) -> None:
        """Run without faults until every message has its outcome."""
        if self.plan is not None:
            self.commit()
        self.show()
        self.flush()
        for _ in range(200):
            if self.state.oldest() == float("inf") and not self.state.is_changing:
                return
            if self.wants_layout:
                self.show()
            for track in list(self.lines):
                self.ask(track)
                self.serve(track, 1000)
                self.receive(track, 1000)
            self.flush()
        raise AssertionError("messages have no outcome after 200 rounds")

    def check(self, *, is_exact: bool | None = None) -> None:
        """In ancestor order every key reads as it was sent; every message has one outcome."""
        assert self.failures == []
        assert sorted(self.stored) == sorted(self.sent), "every record has one outcome"
        read: list[str] = []
        for segment_id in sorted(self.store):  # children have higher ids than their parents
            read += self.store[segment_id].log
        exact = self.is_ours if is_exact is None else is_exact
        for key in (*KEYS, "-"):
            sent = [text for text in self.sent if text.split()[0] == key]
            found = [text for text in read if text.split()[0] == key]
            if key == "-":
                found.sort(key=lambda text: int(text.split()[1]))
            first_seen = list(dict.fromkeys(found))
            assert first_seen == sent, f"{key}: {found}"
            if exact:
                assert found == sent, f"{key}: duplicates in {found}"
