"""Layout, drain tracker and assignment together: under splits, merges and moves each key is read in written order.

A small model with one subscription. Producers write to the active segments, readers read what they hold, owners report
drained segments. All messages arrive late, and leaders change with what they had stored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.group.assignment import (
    Assign,
    Assignment,
    Evict,
    Holding,
    Joined,
    Left,
    ReleaseTimedOut,
    Save,
    SegmentsChanged,
)
from anabranch.controller.group.assignment import Event as AssignmentEvent
from anabranch.controller.group.assignment_record import AssignmentRecord
from anabranch.controller.group.drain_tracker import Drained, DrainRecord, DrainTracker, LayoutChanged, Open
from anabranch.controller.group.drain_tracker import Event as DrainEvent
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.topic.gc_policy import Progress, Retention, decide
from anabranch.model.layout import Layout
from anabranch.model.routing import key_hash
from tests.support.models.layout_histories import merge, split

KEYS = [f"key-{i}" for i in range(12)]


@dataclass
class Reader:
    inbox: deque[Assign] = field(default_factory=deque)
    holds: set[int] = field(default_factory=set)
    generation: int = 0


class World:
    def __init__(self) -> None:
        self.layout = Layout.initial(1, now_ms=0)
        self.entries: dict[int, list[tuple[str, int]]] = {0: []}
        self.cursor: dict[int, int] = {0: 0}
        self.written = 0
        self.read: dict[str, list[int]] = {key: [] for key in KEYS}
        self.readers: dict[str, Reader] = {}
        self.events_sent: deque[DrainEvent | Holding] = deque()
        self.assignment, self.gate = Assignment(), DrainTracker()
        self.stored: tuple[AssignmentRecord, DrainRecord] = self.assignment.record(), self.gate.record()
        self.gated(LayoutChanged(self.layout))

    def write(self, key: str) -> None:
        self.written += 1
        self.entries[self.layout.route(key_hash(key)).segment_id].append((key, self.written))

    def change(self, layout: Layout) -> None:
        for one in layout.segments:
            self.entries.setdefault(one, [])
            self.cursor.setdefault(one, 0)
        self.layout = layout
        for segment in layout.sealed:  # those that are read already are drained when sealed
            self.look_drained(segment.segment_id)
        self.gated(LayoutChanged(layout))

    def look_drained(self, one: int) -> None:
        if not self.layout[one].is_active and self.cursor[one] == len(self.entries[one]):
            self.events_sent.append(Drained(one))

    def gated(self, event: DrainEvent) -> None:
        for effect in self.gate.handle(event):
            if isinstance(effect, Open):
                self.assigned(SegmentsChanged(effect.segments, effect.finished))

    def assigned(self, event: AssignmentEvent) -> None:
        for effect in self.assignment.handle(event):
            match effect:
                case Save():
                    self.stored = self.assignment.record(), self.gate.record()
                case Assign(consumer):
                    self.readers[consumer].inbox.append(effect)
                case Evict(segment_id, consumer):
                    reader = self.readers[consumer]
                    reader.holds.discard(segment_id)
                    lists = [(it.generation, set(it.segment_ids) - {segment_id}) for it in reader.inbox]
                    reader.inbox = deque(Assign(consumer, number, tuple(ids)) for number, ids in lists)

    def apply(self, name: str) -> None:
        reader = self.readers[name]
        if reader.inbox:
            newest = reader.inbox.popleft()
            reader.generation, reader.holds = newest.generation, set(newest.segment_ids)
            self.events_sent.append(Holding(name, reader.generation, frozenset(reader.holds)))

    def read_one(self, name: str) -> None:
        for one in sorted(self.readers[name].holds):
            if one in self.cursor and self.cursor[one] < len(self.entries[one]):
                key, number = self.entries[one][self.cursor[one]]
                assert not self.read[key] or self.read[key][-1] < number, f"{key} out of order"
                self.read[key].append(number)
                self.cursor[one] += 1
                self.look_drained(one)
                return

    def hear(self) -> None:
        events_sent = self.events_sent.popleft()
        if not isinstance(events_sent, Holding):
            self.gated(events_sent)
        elif events_sent.consumer in self.readers:
            self.assigned(events_sent)

    def fail_over(self) -> None:
        assignment, gate = self.stored
        self.assignment, self.gate = Assignment(assignment), DrainTracker(gate)
        held = {name: self.assignment.assigned(name).segment_ids for name in self.assignment.members}
        self.gated(LayoutChanged(self.layout))
        for name in held.keys() & self.readers.keys():
            assert set(held[name]) <= set(self.assignment.assigned(name).segment_ids), (
                "a new leader took something away"
            )
        for name in self.assignment.members - self.readers.keys():
            self.assigned(Left(name))
        for name in self.readers.keys() - self.assignment.members:
            self.assigned(Joined(name))
        for name, reader in self.readers.items():
            reader.inbox.append(self.assignment.assigned(name))
        for one in self.gate.undrained:
            self.look_drained(one)

    def collect(self) -> None:
        verdict = decide(
            TopicRecord(self.layout),
            now_ms=1,
            retention=Retention(0, 0),
            subscriptions={"s": Progress(self.gate.drained)},
            sizes={},
            holds={},
        )
        for one in verdict.prune:
            assert self.cursor.pop(one) == len(self.entries.pop(one)), "unread data was dropped"
        self.change(self.layout.pruned(verdict.prune))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_key_is_read_completely_and_in_order(data: st.DataObject) -> None:
    world = World()
    actions = ["write"] * 4 + ["read"] * 4 + ["apply"] * 3 + ["hear"] * 3
    actions += ["split", "split", "merge", "join", "leave", "late", "leader", "collect"]
    for _ in range(data.draw(st.integers(10, 60))):
        names = sorted(world.readers)
        name = data.draw(st.sampled_from(names)) if names else ""
        match data.draw(st.sampled_from(actions)):
            case "write":
                for key in data.draw(st.lists(st.sampled_from(KEYS), max_size=6)):
                    world.write(key)
            case "read" if name:
                world.read_one(name)
            case "apply" if name:
                world.apply(name)
            case "hear" if world.events_sent:
                world.hear()
            case "split" if len(world.layout.active) < 6:
                one = data.draw(st.sampled_from(world.layout.active))
                world.change(split(world.layout, one.segment_id, ways=data.draw(st.integers(2, 3))))
            case "merge" if len(world.layout.active) > 1:
                low = data.draw(st.integers(0, len(world.layout.active) - 2))
                world.change(merge(world.layout, *(it.segment_id for it in world.layout.active[low : low + 3])))
            case "join":
                name = data.draw(st.sampled_from("abc"))
                if name not in world.readers:
                    world.readers[name] = Reader()
                    world.assigned(Joined(name))
            case "leave" if name:
                del world.readers[name]
                world.assigned(Left(name))
            case "late" if world.assignment.awaited():
                due = data.draw(st.sampled_from(world.assignment.awaited()))
                world.assigned(ReleaseTimedOut(due.segment_id, due.generation))
            case "leader":
                world.fail_over()
            case "collect":
                world.collect()
    if not world.readers:
        world.readers["z"] = Reader()
        world.assigned(Joined("z"))
    for _ in range(3 * world.written + 200):
        for name in sorted(world.readers):
            world.apply(name)
            world.read_one(name)
        while world.events_sent:
            world.hear()
    assert sum(map(len, world.read.values())) == world.written, "something is left unread"
