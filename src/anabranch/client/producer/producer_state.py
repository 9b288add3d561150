"""All segment lanes of one producer, and how they follow the changes of segments. Never awaits, reads no clock.

Every active segment has a lane. When a segment is sealed, or will be, its lane retires. Messages that no broker has
received move to the lanes of the successors at once. Sent messages stay until their outcome is known, and until then
all lanes with an overlapping hash range are held. This is the barrier: no message of a key is sent to a child while an
overlapping parent has unresolved sends of that key. Messages that the parent did not store follow in their order.

| event on a segment                             | sent messages without a receipt                                   |
|------------------------------------------------|-------------------------------------------------------------------|
| SEGMENT_SEALED                                 | are not stored: move to the children                              |
| SEND_ERROR "terminated", or sealed by a layout | the producer is closed; those without a receipt by then move to   |
|                                                | the children                                                      |
| PRODUCER refused as "terminated"               | unknown: move to the children, whose brokers report what their    |
|                                                | ancestors have stored of this producer (`ancestry.Ancestry`)      |

While no successor is known, messages stay in their lane until their deadlines, and the layout is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from anabranch.client.errors import ClientError
from anabranch.client.messages.outgoing import OutgoingMessage
from anabranch.client.producer.ancestry import Ancestor, Ancestry, successors
from anabranch.client.producer.bucket_entries import Division
from anabranch.client.producer.late_receipts import LateReceipt
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
from anabranch.client.producer.segment_producer_state import (
    Credits,
    Effect,
    Failed,
    SegmentProducerState,
    Stored,
    no_receipt,
)
from anabranch.client.producer.segment_router import SegmentRouter
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.entry_buckets import EntryBuckets
from anabranch.model.hashrange import FULL
from anabranch.model.layout import Layout
from anabranch.model.segment import Segment
from anabranch.protocol.keyhash import murmur3_32


class ProducerState:
    def __init__(self, make_lane: Callable[[], SegmentProducerState], *, keeps_batches_whole: bool = False) -> None:
        """`keeps_batches_whole`: see `bucket_entries`."""
        self._make_lane = make_lane
        self._keeps_batches_whole = keeps_batches_whole
        self._view: TopicView | None = None
        self._layout: Layout | None = None  # the view's, with the seals that it does not contain yet
        self._next_view: TopicView | None = None  # waits until every lane is empty, because it routes keys differently
        self._parked: list[OutgoingMessage] = []  # sent while `_next_view` waits
        self._sealed_children: dict[int, tuple[Segment, ...]] = {}  # sealed segments and their children
        self._finals: dict[int, Ancestor] = {}  # what sealed segments have stored of this producer
        self._tracks: dict[int, SegmentLane] = {}  # of active segments
        self._planned: dict[int, SegmentLane] = {}
        self._retired: list[SegmentLane] = []
        self._router = SegmentRouter()
        self._gone: ClientError | None = None  # set while the topic does not exist

    # -- queries

    @property
    def tracks(self) -> list[SegmentLane]:
        return [*self._retired, *self._tracks.values(), *self._planned.values()]

    @property
    def active(self) -> Iterable[SegmentLane]:
        return self._tracks.values()

    @property
    def is_ready(self) -> bool:
        """True when every active segment was attached at least once."""
        return bool(self._tracks) and all(track.was_attached for track in self._tracks.values())

    @property
    def trouble(self) -> ClientError | None:
        """Why a lane with messages was detached last, where that is known."""
        waiting = [track.lane.trouble for track in self.tracks if not track.lane.is_idle]
        return next((one for one in waiting if one is not None), None)

    @property
    def is_changing(self) -> bool:
        """True while outcomes on one lane affect others; `settled` must be called after each outcome then."""
        return bool(self._retired) or self._next_view is not None

    def oldest(self) -> float:
        """`order` of the oldest record without an outcome; infinite when there is none."""
        parked = self._parked[0].order if self._parked else float("inf")
        return min([parked, *(track.lane.oldest() for track in self.tracks)])

    def next_deadline(self) -> float:
        parked = self._parked[0].deadline if self._parked else float("inf")
        return min([parked, *(track.lane.next_deadline() for track in self.tracks)])

    # -- called by the application

    def append(self, record: OutgoingMessage) -> tuple[SegmentLane | None, Sequence[Effect]]:
        """The lane and its effects; no lane while the record waits for a new layout. Raises, without any change, when
        the record can never be sent."""
        if self._gone is not None:
            raise self._gone
        if self._next_view is not None:
            self._parked.append(record)
            return None, ()
        track = self._router.route(record)
        ancestry = track.ancestry
        if ancestry is not None and record.sequence_id <= ancestry.highest and ancestry.has(record):
            return track, (Stored((record,), -1, -1),)
        return track, track.lane.append(record)

    def track_of(self, key: str | bytes | None, sequence_id: int) -> SegmentLane | None:
        """The lane of a new message; None when it may be stored already, must wait or fails: use `append` then."""
        if self._next_view is not None or self._gone is not None:
            return None
        tracks = self._router.tracks
        track = tracks[0] if len(tracks) == 1 else self._router.track_of(key, _hash(key), sequence_id)
        ancestry = track.ancestry
        return track if ancestry is None or sequence_id > ancestry.highest else None

    def router(self, first: int) -> SegmentRouter | None:
        """Routes rows, numbered from `first` on, all at once; None while each needs `append`, because the lanes are
        changing or some rows may be stored already."""
        known = (track.ancestry.highest for track in self._router.tracks if track.ancestry is not None)
        if self._next_view is not None or self._gone is not None or first <= max(known, default=-1):
            return None
        return self._router

    def flush(self) -> list[ProducerEffect]:
        return [On(track, effects) for track in self.tracks if (effects := track.lane.flush())]

    # -- layouts

    def viewed(self, view: TopicView) -> list[ProducerEffect]:
        known = self._view
        if known is not None and view.generation != known.generation:
            return self._begun_anew(view)
        if known is not None and known.is_synthetic and self._tracks and view.reroutes(known):
            # More partitions, or another hash: keys change their lane, so the old lanes must be empty first.
            self._next_view = view
            return [*self.flush(), *self._turn()]
        parked, self._parked, self._next_view = self._parked, [], None
        self._view = view
        return self._converge(parked)

    def _turn(self) -> list[ProducerEffect]:
        if self._next_view is None or not all(track.lane.is_idle for track in self.tracks):
            return []
        self._view, self._next_view = self._next_view, None
        parked, self._parked = self._parked, []
        return self._converge(parked)

    def _begun_anew(self, view: TopicView) -> list[ProducerEffect]:
        """The topic was created again: messages without an outcome go to the new topic."""
        effects: list[ProducerEffect] = [Drop(track) for track in self.tracks]
        moved = [record for track in self.tracks for record in track.lane.take_all()] + self._parked
        self._tracks, self._planned, self._retired = {}, {}, []
        self._parked, self._next_view, self._sealed_children, self._finals = [], None, {}, {}
        self._view = view
        return effects + self._converge(moved)

    def _converge(self, moved: Sequence[OutgoingMessage] = ()) -> list[ProducerEffect]:
        """Open and retire lanes as the layout requires, and move messages to the right lanes."""
        view = self._view
        assert view is not None
        layout = self._layout = successors(view.layout, self._sealed_children)
        sealed = self._sealed_children.items()
        self._sealed_children = {one: children for one, children in sealed if _is_ahead(view.layout, one)}
        self._finals = {one: last for one, last in self._finals.items() if one in layout}
        wanted = {one.segment_id: one for one in layout.active}
        effects: list[ProducerEffect] = []
        records = list(moved)
        for track in [track for one, track in self._tracks.items() if one not in wanted]:
            del self._tracks[track.segment.segment_id]
            self._retired.append(track)
        for segment_id, segment in wanted.items():
            if segment_id in self._tracks:
                continue
            planned = segment_id in self._planned
            track = self._planned.pop(segment_id) if planned else self._track(segment, effects)
            self._tracks[segment_id] = track
        self._prepare(view, wanted, effects)
        tracks = tuple(self._tracks[one.segment_id] for one in layout.active)
        self._router = SegmentRouter(tracks, layout.routing, tuple(one.hash_range.start for one in layout.active))
        for track in list(self._retired):
            records += self._empty(track, effects)
        self._hold()
        self._distribute(records, effects)
        self._release(effects)
        effects += self._turn()
        if any(track.is_sealed for track in self._tracks.values()):
            effects.append(AskLayout())
        return effects

    def _track(self, segment: Segment, effects: list[ProducerEffect]) -> SegmentLane:
        is_modulo = segment.legacy_topic_name is not None
        lane = self._make_lane()
        if segment.entry_bucket_splits and not is_modulo:
            assert self._layout is not None
            buckets, ring_hash = EntryBuckets(segment.entry_bucket_splits), self._layout.routing.ring_hash
            lane.division = Division(segment.segment_id, buckets, ring_hash, self._keeps_batches_whole)
        track = SegmentLane(segment, lane, FULL if is_modulo else segment.hash_range)
        effects.append(Open(track))
        return track

    def _prepare(self, view: TopicView, wanted: dict[int, Segment], effects: list[ProducerEffect]) -> None:
        """Open lanes to planned children in advance; drop those of an aborted plan."""
        plan = {} if view.plan is None else {one.segment_id: one for one in view.plan.children}
        for segment_id, segment in plan.items():
            if segment_id not in wanted and segment_id not in self._planned and segment_id not in view.layout:
                self._planned[segment_id] = self._track(segment, effects)
        given_up = [one for one in self._planned if one not in plan]
        effects += [Drop(self._planned.pop(one)) for one in given_up]

    # -- moving messages

    def _empty(self, track: SegmentLane, effects: list[ProducerEffect]) -> list[OutgoingMessage]:
        """The messages of a retired lane that may move."""
        lane = track.lane
        if not track.is_attached and not track.is_sealed and self._is_sealed(track):
            track.is_sealed, track.is_doubtful = True, track.was_attached
        taken = lane.take_all() if track.is_sealed else lane.take_unsent()
        for record in taken if track.is_doubtful else ():
            record.is_doubtful = True
        if lane.is_idle:
            self._retired.remove(track)
            effects.append(Drop(track))
        else:
            effects += self._request_close(track)
        return taken

    def _request_close(self, track: SegmentLane) -> list[ProducerEffect]:
        if not track.is_attached or track.is_closing:
            return []
        track.is_closing = True
        track.lane.hold()
        return [CloseRequest(track)]

    def _is_sealed(self, track: SegmentLane) -> bool:
        """True when the layout itself says so. A segment whose seal is only planned may still be written to."""
        assert self._view is not None
        layout = self._view.layout
        return track.segment.segment_id not in layout or not layout[track.segment.segment_id].is_active

    def _distribute(self, records: list[OutgoingMessage], effects: list[ProducerEffect]) -> None:
        groups: dict[SegmentLane, list[OutgoingMessage]] = {}
        for record in records:
            track = self._router.route(record)
            groups.setdefault(track, []).append(record)
            track.is_stale |= record.is_doubtful
        for track, group in groups.items():
            if track.is_stale and track.is_attached and track.ancestry is not None:  # may be older than the seal
                self._detach(track)
                effects.append(Reopen(track))
            if done := track.lane.put(group):
                effects.append(On(track, done))

    def _hold(self) -> None:
        """Hold every lane that overlaps a retired lane with messages."""
        for track in self._tracks.values():
            if self._is_blocked(track):
                track.lane.hold()

    def _release(self, effects: list[ProducerEffect]) -> None:
        free = [track for track in self._tracks.values() if track.lane.is_held and not self._is_blocked(track)]
        effects += [On(track, done) for track in free if (done := track.lane.release())]

    def _is_blocked(self, track: SegmentLane) -> bool:
        if track.is_closing or track in self._retired:
            return track.is_closing
        return any(one.hash_range.overlaps(track.hash_range) for one in self._retired)

    # -- events of a lane

    def opening(self, track: SegmentLane) -> None:
        """PRODUCER is sent now: the ancestry in its answer is not older than this call."""
        track.is_stale = False

    def opened(
        self,
        track: SegmentLane,
        message_bytes_max: int,
        credits: Credits | None = None,
        ancestry: Ancestry | None = None,
    ) -> list[ProducerEffect]:
        if track not in self.tracks:
            return []
        track.was_attached = True
        if ancestry is not None and track.is_stale:
            return [Reopen(track)]
        if ancestry is not None:
            ancestry = self._informed(track, ancestry)
        track.ancestry, track.is_attached = ancestry, True
        effects: list[ProducerEffect] = []
        if ancestry is not None and (known := track.lane.drop_stored(ancestry.has)):
            effects.append(On(track, known))
        track.lane.is_held = self._is_blocked(track)
        if done := track.lane.opened(message_bytes_max, credits):
            effects.append(On(track, done))
        return effects + self.settled(track)

    def lost(self, track: SegmentLane) -> list[ProducerEffect]:
        """The connection or the producer of the lane is lost."""
        self._detach(track)
        if track not in self._retired:
            return []
        return self._converge()

    def _detach(self, track: SegmentLane) -> None:
        track.is_attached = track.is_closing = False
        track.lane.lost()

    def settled(self, track: SegmentLane) -> list[ProducerEffect]:
        """Messages of the lane received an outcome."""
        if self._next_view is not None:
            return self._turn()
        if track in self._retired and track.lane.is_idle:
            self._retired.remove(track)
            effects: list[ProducerEffect] = [Drop(track)]
            self._release(effects)
            return effects
        return []

    def sealed(self, track: SegmentLane, children: Iterable[Segment], last_sequence_id: int) -> list[ProducerEffect]:
        """SEGMENT_SEALED: messages above `last_sequence_id` are not stored."""
        stored = track.lane.settle(last_sequence_id)
        effects: list[ProducerEffect] = [On(track, stored)] if stored else []
        self._sealed_children[track.segment.segment_id] = tuple(children)
        self._remember(track, last_sequence_id)
        return effects + self._ended(track)

    def _remember(self, track: SegmentLane, last_sequence_id: int) -> None:
        """Lanes to the children may have read their ancestry before the parent was final."""
        if self._router.is_modulo:
            return
        one, ring_hash = track.segment, self._router.routing.ring_hash
        self._finals[one.segment_id] = Ancestor(one.segment_id, one.hash_range, last_sequence_id, ring_hash)
        for planned in self._planned.values():
            if planned.ancestry is not None:
                planned.ancestry = self._informed(planned, planned.ancestry)

    def _informed(self, track: SegmentLane, ancestry: Ancestry) -> Ancestry:
        overlapping = [one for one in self._finals.values() if one.hash_range.overlaps(track.hash_range)]
        return ancestry.knowing(one for one in overlapping if one.segment_id < track.segment.segment_id)

    def close_confirmed(self, track: SegmentLane) -> list[ProducerEffect]:
        """The broker closed the producer, and has answered every entry that it received before."""
        track.is_doubtful |= track.ancestry is not None  # the brokers of the children know what is stored
        return self._ended(track)

    def terminated(self, track: SegmentLane) -> list[ProducerEffect]:
        """PRODUCER was refused: the segment is sealed or deleted, and messages sent before may be stored."""
        track.is_doubtful |= track.was_attached
        return self._ended(track)

    def missing(self, track: SegmentLane) -> list[ProducerEffect]:
        """The segment does not exist: recreated, deleted, or not created yet. The layout shows which."""
        return self.terminated(track) if track in self._retired else [AskLayout()]

    def refused(self, track: SegmentLane) -> list[ProducerEffect]:
        """A SEND was refused because the segment is sealed. Receipts of others arrive before the close is confirmed."""
        return self._request_close(track) if track in self.tracks else []

    def late_receipts(
        self, track: SegmentLane, late: Sequence[LateReceipt]
    ) -> tuple[list[ProducerEffect], list[OutgoingMessage]]:
        """Receipts of a closed producer. Messages that were not sent again are stored; the second value has those that
        were."""
        effects: list[ProducerEffect] = []
        moved: dict[int, OutgoingMessage] = {}
        for one in late:
            if done := track.lane.late_receipt(one.entry.first, one.ledger, one.position):
                effects.append(On(track, done))
            else:
                moved |= {record.order: record for record in one.entry.records}
        for other in self.tracks if moved else ():
            if done := other.lane.withdraw(moved):
                effects.append(On(other, done))
                for record in [record for each in done if isinstance(each, Stored) for record in each.records]:
                    moved.pop(record.order, None)
        return effects, list(moved.values())

    def _ended(self, track: SegmentLane) -> list[ProducerEffect]:
        if track not in self.tracks:
            return []
        track.is_sealed = True
        self._detach(track)
        return self._converge()

    def failed(self, track: SegmentLane, error: ClientError) -> list[ProducerEffect]:
        """The lane can never be attached, because of missing rights or wrong options."""
        self._detach(track)
        effects: list[ProducerEffect] = []
        if done := track.lane.fail(error):
            effects.append(On(track, done))
        return effects + self.settled(track)

    # -- a deleted topic

    def gone(self, error: ClientError) -> list[ProducerEffect]:
        """The topic was deleted: fails every message, because what is stored of it is deleted, too, and every `append`
        until it exists again. A lane that is attached belongs to a topic that was created again."""
        self._gone = error
        effects: list[ProducerEffect] = []
        for track in self.tracks:
            if not track.is_attached and (done := track.lane.abandon(error)):
                effects += [On(track, done), *self.settled(track)]
        if self._parked and self._router.tracks:
            parked, self._parked = self._parked, []
            effects.append(On(self._router.tracks[0], (Failed(parked, error),)))
        return effects

    def returned(self) -> None:
        """The topic exists again."""
        self._gone = None

    # -- deadlines and close

    def expire(self, now: float) -> list[ProducerEffect]:
        effects: list[ProducerEffect] = []
        for track in self.tracks:
            if done := track.lane.expire(now):
                effects.append(On(track, done))
                effects += self.settled(track)
        late = [record for record in self._parked if record.deadline <= now]
        if late:
            self._parked = self._parked[len(late) :]
            error = no_receipt("the message was not sent", self.trouble)
            effects.append(On(self._router.tracks[0], (Failed(late, error),)))
        return effects

    def close(self, error: ClientError) -> list[ProducerEffect]:
        """Fails all messages, in the order of each lane, and every later `append`."""
        parked, self._parked, self._next_view = self._parked, [], None
        effects: list[ProducerEffect] = [On(one, done) for one in self.tracks if (done := one.lane.fail(error))]
        if parked:
            effects.append(On(self._router.tracks[0], (Failed(parked, error),)))
        return effects


def _hash(key: str | bytes | None) -> int:
    return -1 if key is None else murmur3_32(key)


def _is_ahead(layout: Layout, segment_id: int) -> bool:
    """True when the layout does not contain the seal of this segment yet; it may still contain only its parent."""
    if segment_id in layout:
        return layout[segment_id].is_active
    return segment_id >= layout.next_segment_id
