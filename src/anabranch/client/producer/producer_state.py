"""All lanes of one producer, and how they follow the topic when its segments change. Never awaits, reads no clock.

Every active segment has a lane. A segment that is sealed, or about to be, retires its lane: what no broker has seen yet
goes to the lanes of its successors at once, what was sent stays until its outcome is known, and so long the lanes that
have keys of it are held. That is the barrier: nothing of a key goes to a child while an overlapping parent has
unresolved sends of it. What the parent turned out not to have follows in the order in which it was sent.

| what is heard of a segment                       | what was sent and has no receipt                                |
|--------------------------------------------------|-----------------------------------------------------------------|
| SEGMENT_SEALED                                   | is not stored there: to the children                            |
| SEND_ERROR "terminated", or the layout says so   | the producer is closed there; without a receipt by then: to the |
|                                                  | children                                                        |
| PRODUCER refused as "terminated"                 | nobody knows: to the children, whose owners say what their      |
|                                                  | ancestors have of this producer (`lineage.Ancestry`)            |

No successor known yet: everything stays where it is, bounded by its deadlines, and the layout is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from anabranch.client.errors import ClientError, TimedOut
from anabranch.client.messages.outgoing import OutgoingMessage
from anabranch.client.producer.ancestry import Ancestor, Ancestry, successors
from anabranch.client.producer.credits import Credits
from anabranch.client.producer.late_receipts import Late
from anabranch.client.producer.producer_effects import (
    AskLayout,
    CloseRequest,
    Drop,
    LanesEffect,
    On,
    Open,
    Reopen,
    SegmentLane,
)
from anabranch.client.producer.segment_producer_state import Effect, Failed, SegmentProducerState, Stored
from anabranch.client.producer.segment_router import SegmentRouter
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.hashrange import FULL
from anabranch.model.layout import Layout
from anabranch.model.segment import Segment
from anabranch.protocol.keyhash import murmur3_32


class ProducerState:
    def __init__(self, make_lane: Callable[[], SegmentProducerState]) -> None:
        self._make_lane = make_lane
        self._view: TopicView | None = None
        self._layout: Layout | None = None  # the view's, or what we know to come next
        self._next_view: TopicView | None = None  # waits until every lane is empty: it routes otherwise
        self._parked: list[OutgoingMessage] = []  # sent since
        self._heard: dict[int, tuple[Segment, ...]] = {}  # sealed segments and their children
        self._finals: dict[int, Ancestor] = {}  # what sealed segments have of this producer
        self._tracks: dict[int, SegmentLane] = {}  # of active segments
        self._planned: dict[int, SegmentLane] = {}
        self._retired: list[SegmentLane] = []
        self._ring = SegmentRouter()

    # -- looking

    @property
    def tracks(self) -> list[SegmentLane]:
        return [*self._retired, *self._tracks.values(), *self._planned.values()]

    @property
    def active(self) -> Iterable[SegmentLane]:
        return self._tracks.values()

    @property
    def is_ready(self) -> bool:
        """Has every active segment had its producer?"""
        return bool(self._tracks) and all(track.was_attached for track in self._tracks.values())

    @property
    def is_changing(self) -> bool:
        """Does an outcome on one lane matter to others? Then `settled` must hear of it."""
        return bool(self._retired) or self._next_view is not None

    def oldest(self) -> float:
        """`order` of the oldest record without an outcome; infinite when there is none."""
        parked = self._parked[0].order if self._parked else float("inf")
        return min([parked, *(track.lane.oldest() for track in self.tracks)])

    def next_deadline(self) -> float:
        parked = self._parked[0].deadline if self._parked else float("inf")
        return min([parked, *(track.lane.next_deadline() for track in self.tracks)])

    # -- what the application does

    def append(self, record: OutgoingMessage) -> tuple[SegmentLane | None, Sequence[Effect]]:
        """The lane and what it wants done; no lane: it waits for the lanes to come. Raises, and takes nothing, when
        the record can never be sent."""
        if self._next_view is not None:
            self._parked.append(record)
            return None, ()
        track = self._ring.route(record)
        ancestry = track.ancestry
        if ancestry is not None and record.sequence_id <= ancestry.highest and ancestry.has(record):
            return track, (Stored((record,), -1, -1),)
        return track, track.lane.append(record)

    def track_of(self, key: str | bytes | None, sequence_id: int) -> SegmentLane | None:
        """Where a new message goes that needs no second look; None: it does, by `append`."""
        if self._next_view is not None:
            return None
        tracks = self._ring.tracks
        track = tracks[0] if len(tracks) == 1 else self._ring.track_of(_hash(key), sequence_id)
        ancestry = track.ancestry
        return track if ancestry is None or sequence_id > ancestry.highest else None

    def ring(self, first: int) -> SegmentRouter | None:
        """For rows that are routed all at once, numbered from `first` on; None while each must be looked at on its own:
        the lanes are changing, or some of the rows may be stored already."""
        known = (track.ancestry.highest for track in self._ring.tracks if track.ancestry is not None)
        if self._next_view is not None or first <= max(known, default=-1):
            return None
        return self._ring

    def flush(self) -> list[LanesEffect]:
        return [On(track, effects) for track in self.tracks if (effects := track.lane.flush())]

    # -- what is heard of the topic

    def viewed(self, view: TopicView) -> list[LanesEffect]:
        known = self._view
        if known is not None and view.generation != known.generation:
            return self._begun_anew(view)
        if known is not None and known.is_synthetic and view.is_synthetic and self._tracks:
            # More partitions: keys change their lane, so the old lanes are emptied first.
            self._next_view = view
            return [*self.flush(), *self._turn()]
        parked, self._parked, self._next_view = self._parked, [], None
        self._view = view
        return self._converge(parked)

    def _turn(self) -> list[LanesEffect]:
        if self._next_view is None or not all(track.lane.is_idle for track in self.tracks):
            return []
        self._view, self._next_view = self._next_view, None
        parked, self._parked = self._parked, []
        return self._converge(parked)

    def _begun_anew(self, view: TopicView) -> list[LanesEffect]:
        """The topic is another one: what has no outcome is for the new one."""
        effects: list[LanesEffect] = [Drop(track) for track in self.tracks]
        moved = [record for track in self.tracks for record in track.lane.take_all()] + self._parked
        self._tracks, self._planned, self._retired = {}, {}, []
        self._parked, self._next_view, self._heard, self._finals = [], None, {}, {}
        self._view = view
        return effects + self._converge(moved)

    def _converge(self, moved: Sequence[OutgoingMessage] = ()) -> list[LanesEffect]:
        """Lanes as the layout wants them; what was in others is put into the right ones."""
        view = self._view
        assert view is not None
        layout = self._layout = successors(view.layout, self._heard)
        self._heard = {one: children for one, children in self._heard.items() if _is_ahead(view.layout, one)}
        self._finals = {one: last for one, last in self._finals.items() if one in layout}
        wanted = {one.segment_id: one for one in layout.active}
        effects: list[LanesEffect] = []
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
        self._ring = SegmentRouter(tracks, layout.routing, tuple(one.hash_range.start for one in layout.active))
        for track in list(self._retired):
            records += self._empty(track, effects)
        self._hold()
        self._distribute(records, effects)
        self._release(effects)
        effects += self._turn()
        if any(track.is_sealed for track in self._tracks.values()):
            effects.append(AskLayout())
        return effects

    def _track(self, segment: Segment, effects: list[LanesEffect]) -> SegmentLane:
        is_modulo = segment.legacy_topic_name is not None
        track = SegmentLane(segment, self._make_lane(), FULL if is_modulo else segment.hash_range)
        effects.append(Open(track))
        return track

    def _prepare(self, view: TopicView, wanted: dict[int, Segment], effects: list[LanesEffect]) -> None:
        """Lanes to planned children are opened in advance; a plan that was given up takes them with it."""
        plan = {} if view.plan is None else {one.segment_id: one for one in view.plan.children}
        for segment_id, segment in plan.items():
            if segment_id not in wanted and segment_id not in self._planned and segment_id not in view.layout:
                self._planned[segment_id] = self._track(segment, effects)
        given_up = [one for one in self._planned if one not in plan]
        effects += [Drop(self._planned.pop(one)) for one in given_up]

    # -- handing over

    def _empty(self, track: SegmentLane, effects: list[LanesEffect]) -> list[OutgoingMessage]:
        """Take out of a retired lane what may go."""
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
            effects += self._say_farewell(track)
        return taken

    def _say_farewell(self, track: SegmentLane) -> list[LanesEffect]:
        if not track.is_attached or track.is_closing:
            return []
        track.is_closing = True
        track.lane.hold()
        return [CloseRequest(track)]

    def _is_sealed(self, track: SegmentLane) -> bool:
        """Says the layout itself that it is final? (What is merely going to be may still be written to.)"""
        assert self._view is not None
        layout = self._view.layout
        return track.segment.segment_id not in layout or not layout[track.segment.segment_id].is_active

    def _distribute(self, records: list[OutgoingMessage], effects: list[LanesEffect]) -> None:
        groups: dict[SegmentLane, list[OutgoingMessage]] = {}
        for record in records:
            track = self._ring.route(record)
            groups.setdefault(track, []).append(record)
            track.is_stale |= record.is_doubtful
        for track, group in groups.items():
            if track.is_stale and track.is_attached and track.ancestry is not None:  # it may be older than the seal
                self._detach(track)
                effects.append(Reopen(track))
            if done := track.lane.put(group):
                effects.append(On(track, done))

    def _hold(self) -> None:
        """A lane waits as long as a retired one with keys of it has something in it."""
        for track in self._tracks.values():
            if self._is_blocked(track):
                track.lane.hold()

    def _release(self, effects: list[LanesEffect]) -> None:
        free = [track for track in self._tracks.values() if track.lane.is_held and not self._is_blocked(track)]
        effects += [On(track, done) for track in free if (done := track.lane.release())]

    def _is_blocked(self, track: SegmentLane) -> bool:
        if track.is_closing or track in self._retired:
            return track.is_closing
        return any(one.hash_range.overlaps(track.hash_range) for one in self._retired)

    # -- what is heard on a lane

    def opening(self, track: SegmentLane) -> None:
        """A producer is being opened: what it is told of its ancestors is as new as this moment."""
        track.is_stale = False

    def opened(
        self,
        track: SegmentLane,
        message_bytes_max: int,
        credits: Credits | None = None,
        ancestry: Ancestry | None = None,
    ) -> list[LanesEffect]:
        if track not in self.tracks:
            return []
        track.was_attached = True
        if ancestry is not None and track.is_stale:
            return [Reopen(track)]
        if ancestry is not None:
            ancestry = self._informed(track, ancestry)
        track.ancestry, track.is_attached = ancestry, True
        effects: list[LanesEffect] = []
        if ancestry is not None and (known := track.lane.drop_stored(ancestry.has)):
            effects.append(On(track, known))
        track.lane.is_held = self._is_blocked(track)
        if done := track.lane.opened(message_bytes_max, credits):
            effects.append(On(track, done))
        return effects + self.settled(track)

    def lost(self, track: SegmentLane) -> list[LanesEffect]:
        """Its connection is over."""
        self._detach(track)
        if track not in self._retired:
            return []
        return self._converge()

    def _detach(self, track: SegmentLane) -> None:
        track.is_attached = track.is_closing = False
        track.lane.lost()

    def settled(self, track: SegmentLane) -> list[LanesEffect]:
        """A lane has less in it than before."""
        if self._next_view is not None:
            return self._turn()
        if track in self._retired and track.lane.is_idle:
            self._retired.remove(track)
            effects: list[LanesEffect] = [Drop(track)]
            self._release(effects)
            return effects
        return []

    def sealed(self, track: SegmentLane, children: Iterable[Segment], last_sequence_id: int) -> list[LanesEffect]:
        """SEGMENT_SEALED: what has no receipt is not stored, unless the broker says so here."""
        stored = track.lane.settle(last_sequence_id)
        effects: list[LanesEffect] = [On(track, stored)] if stored else []
        self._heard[track.segment.segment_id] = tuple(children)
        self._remember(track, last_sequence_id)
        return effects + self._ended(track)

    def _remember(self, track: SegmentLane, last_sequence_id: int) -> None:
        """Lanes to the children may have been opened, or may be opening, when their parent was not final yet."""
        if self._ring.is_modulo:
            return
        one, ring_hash = track.segment, self._ring.routing.ring_hash
        self._finals[one.segment_id] = Ancestor(one.segment_id, one.hash_range, last_sequence_id, ring_hash)
        for planned in self._planned.values():
            if planned.ancestry is not None:
                planned.ancestry = self._informed(planned, planned.ancestry)

    def _informed(self, track: SegmentLane, ancestry: Ancestry) -> Ancestry:
        overlapping = [one for one in self._finals.values() if one.hash_range.overlaps(track.hash_range)]
        return ancestry.knowing(one for one in overlapping if one.segment_id < track.segment.segment_id)

    def farewell_said(self, track: SegmentLane) -> list[LanesEffect]:
        """The broker has answered all it had received before it closed the producer."""
        track.is_doubtful |= track.ancestry is not None  # then its children's owners know it best
        return self._ended(track)

    def terminated(self, track: SegmentLane) -> list[LanesEffect]:
        """A producer was refused: the segment is sealed or gone, and what was sent there before may be stored."""
        track.is_doubtful |= track.was_attached
        return self._ended(track)

    def missing(self, track: SegmentLane) -> list[LanesEffect]:
        """No such segment: made anew, gone for good, or not there yet. The layout knows."""
        return self.terminated(track) if track in self._retired else [AskLayout()]

    def refused(self, track: SegmentLane) -> list[LanesEffect]:
        """A SEND was refused because the segment is sealed. Others may still be answered: the farewell waits for it."""
        return self._say_farewell(track) if track in self.tracks else []

    def heard_late(self, track: SegmentLane, late: Sequence[Late]) -> tuple[list[LanesEffect], list[OutgoingMessage]]:
        """Receipts of a producer that is closed. What is still here, or waits to be sent elsewhere, is stored; with it
        come those that were sent again already."""
        effects: list[LanesEffect] = []
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

    def _ended(self, track: SegmentLane) -> list[LanesEffect]:
        if track not in self.tracks:
            return []
        track.is_sealed = True
        self._detach(track)
        return self._converge()

    def failed(self, track: SegmentLane, error: ClientError) -> list[LanesEffect]:
        """It can never be attached: an error of the application's options or rights."""
        self._detach(track)
        effects: list[LanesEffect] = []
        if done := track.lane.fail(error):
            effects.append(On(track, done))
        return effects + self.settled(track)

    # -- time and the end

    def expire(self, now: float) -> list[LanesEffect]:
        effects: list[LanesEffect] = []
        for track in self.tracks:
            if done := track.lane.expire(now):
                effects.append(On(track, done))
                effects += self.settled(track)
        late = [record for record in self._parked if record.deadline <= now]
        if late:
            self._parked = self._parked[len(late) :]
            effects.append(
                On(self._ring.tracks[0], (Failed(late, TimedOut("no receipt in time; the message was not sent")),))
            )
        return effects

    def close(self, error: ClientError) -> list[LanesEffect]:
        """Everything that is left fails, in order of its lane; so does every later `append`."""
        parked, self._parked, self._next_view = self._parked, [], None
        effects: list[LanesEffect] = [On(one, done) for one in self.tracks if (done := one.lane.fail(error))]
        if parked:
            effects.append(On(self._ring.tracks[0], (Failed(parked, error),)))
        return effects


def _hash(key: str | bytes | None) -> int:
    return -1 if key is None else murmur3_32(key)


def _is_ahead(layout: Layout, segment_id: int) -> bool:
    """Does the layout not know yet that this one is sealed? Its parent may be the one that it knows."""
    if segment_id in layout:
        return layout[segment_id].is_active
    return segment_id >= layout.next_segment_id
