"""Stream consumers together with the controller's state machine, under random changes of layout and membership.

The controller is the real `GroupState`, the consumers are the real `AssignmentReconciler` and `CumulativeAckLog`. The
segments are a model with one reader each and a durable position. Oracle: every message is handed out exactly once,
every key in order over all consumers, through splits, merges, joins, leaves, lost sessions and changes of the leader,
with assignments that arrive late. Deadlines never pass here: the group must come to rest without them.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

import pytest

from anabranch.client.consumer.assignment_reconciler import AssignmentReconciler, Attach, Detach, Release, Stop
from anabranch.client.consumer.assignment_reconciler import Effect as HoldingsEffect
from anabranch.client.consumer.cumulative_acks import CumulativeAckLog
from anabranch.client.messages.message import MessageId
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group.assignment import Holding, Released
from anabranch.controller.group.consumer_sessions import Disconnected, LeftCleanly, Registered
from anabranch.controller.group.drain_tracker import LayoutChanged
from anabranch.controller.group.group_events import (
    AskDrained,
    Event,
    GroupSaved,
    GroupSeen,
    Push,
    SaveGroup,
)
from anabranch.controller.group.group_record import GroupRecord
from anabranch.controller.group.group_state import GroupState
from tests.support.models.keyed_topic_model import KEYS, KeyedTopic

TOPIC = "topic://public/default/t"


@dataclass
class Reading:
    """One attached segment of one consumer."""

    segment_id: int
    next_index: int
    last: MessageId | None = None
    is_stopped: bool = False


@dataclass
class Member:
    name: str
    reconciler: AssignmentReconciler = field(default_factory=AssignmentReconciler)
    log: CumulativeAckLog[int] = field(default_factory=CumulativeAckLog)
    readings: dict[int, Reading] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)  # to be attached as soon as the former reader is gone
    closing: set[int] = field(default_factory=set)
    connection: int | None = None
    is_fresh: bool = False  # registered, without an assignment yet
    pushes: deque[Push] = field(default_factory=deque)
    handed: list[tuple[int, int, MessageId]] = field(default_factory=list)  # number, segment, id: not acknowledged


class StreamWorld:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topic = KeyedTopic(self.chance.randint(1, 3))
        self.acked: dict[int, int] = defaultdict(int)  # segment -> so many, durable
        self.reader: dict[int, str] = {}  # segment -> who is attached: one
        self.members: dict[str, Member] = {}
        self.order: dict[int, list[int]] = defaultdict(list)  # key -> numbers as handed out, over all consumers
        self.stored: GroupRecord | None = None
        self.stamp: int | None = None
        self.connections = 0
        self.term = 0
        self.lead()

    # the controller ---------------------------------------------------------------------------------------------------
    def lead(self) -> None:
        """A new leader: sessions are cut, and everybody comes back with what it holds."""
        self.term += 1
        self.group = GroupState("life", self.term)
        self.group.begin()
        self.tell(GroupSeen(self.stored, self.stamp), LayoutChanged(self.topic.layout))
        for member in self.members.values():
            member.connection, member.pushes = None, deque()

    def tell(self, *events: Event) -> None:
        ahead = deque(events)
        while ahead:
            for effect in self.group.handle(ahead.popleft(), 0):
                match effect:
                    case SaveGroup(record):
                        self.stored, self.stamp = GroupRecord.decode(record.encode()), (self.stamp or 0) + 1
                        ahead.append(GroupSaved(self.stamp))
                    case Push(connection, consumer):
                        member = self.members.get(consumer)
                        if member is not None and member.connection == connection:
                            member.pushes.append(effect)
                    case AskDrained(segment_ids):
                        ahead.extend(draining.Drained(one) for one in segment_ids if self.is_drained(one))
                    case _:
                        pass  # deadlines never pass here

    def is_drained(self, segment_id: int) -> bool:
        layout = self.topic.layout
        is_sealed = segment_id in layout and not layout[segment_id].is_active
        return is_sealed and self.acked[segment_id] == len(self.topic.stored[segment_id])

    # consumers --------------------------------------------------------------------------------------------------------
    def join(self) -> None:
        if len(self.members) < 4:
            name = f"c{self.connections}"
            self.members[name] = Member(name)
            self.connect(self.members[name])

    def connect(self, member: Member) -> None:
        if member.connection is None:
            self.connections += 1
            member.connection, member.pushes, member.is_fresh = self.connections, deque(), True
            self.tell(Registered(member.name, self.connections))
            if member.reconciler.generation is not None:
                held = frozenset(member.reconciler.held)
                self.tell(Holding(member.name, member.reconciler.generation, held))

    def cut(self, member: Member) -> None:
        if member.connection is not None:
            connection, member.connection, member.pushes = member.connection, None, deque()
            self.tell(Disconnected(connection))

    def leave(self, member: Member) -> None:
        """A consumer leaves: everything is acknowledged, then closed, then reported."""
        if len(self.members) > 1 and member.connection is not None:
            self.acknowledge(member, len(member.handed))
            self.reader = {one: name for one, name in self.reader.items() if name != member.name}
            del self.members[member.name]
            self.tell(LeftCleanly(member.name, member.connection))

    def hear(self, member: Member) -> None:
        if member.pushes:
            push = member.pushes.popleft()
            effects = member.reconciler.assigned(push.segment_ids, generation=push.generation, epoch=0)
            self.perform(member, effects or [])
            if member.is_fresh:
                member.is_fresh = False
                self.perform(member, member.reconciler.registered(self.topic.layout.segments))

    def perform(self, member: Member, effects: list[HoldingsEffect]) -> None:
        for effect in effects:
            match effect:
                case Attach(segment_id):
                    member.wanted.add(segment_id)
                case Stop(segment_id):
                    if segment_id in member.wanted:  # never attached
                        member.wanted.discard(segment_id)
                        member.readings[segment_id] = Reading(segment_id, 0)
                    member.readings[segment_id].is_stopped = True
                    self.settle(member, segment_id)
                case Detach(segment_id):
                    member.closing.add(segment_id)
                case Release(generation, segment_ids):
                    if member.connection is not None:
                        self.tell(*(Released(member.name, one, generation) for one in segment_ids))

    def settle(self, member: Member, segment_id: int) -> None:
        if not any(segment == segment_id for _, segment, _ in member.handed):
            self.perform(member, member.reconciler.settled(segment_id))

    def close(self, member: Member) -> None:
        for segment_id in list(member.closing):
            member.closing.discard(segment_id)
            del member.readings[segment_id]
            if self.reader.get(segment_id) == member.name:
                del self.reader[segment_id]
            member.log.forget(segment_id)
            self.perform(member, member.reconciler.closed(segment_id))

    def attach(self, member: Member) -> None:
        for segment_id in sorted(member.wanted):
            if segment_id not in self.reader:  # an exclusive reader
                member.wanted.discard(segment_id)
                self.reader[segment_id] = member.name
                member.readings[segment_id] = Reading(segment_id, self.acked[segment_id])

    def take(self, member: Member) -> bool:
        readings = [one for one in member.readings.values() if not one.is_stopped]
        self.chance.shuffle(readings)
        for one in readings:
            stored = self.topic.stored[one.segment_id]
            if one.next_index < len(stored):
                key, number = stored[one.next_index]
                self.order[key].append(number)
                one.last = MessageId(TOPIC, 0, one.next_index, lane=one.segment_id)
                one.next_index += 1
                member.handed.append((member.log.handed_out(one.segment_id, one.last), one.segment_id, one.last))
                return True
        return False

    def acknowledge(self, member: Member, count: int) -> None:
        """A cumulative ack of the message that was handed out as number `count` of those that are left."""
        if not count:
            return
        number, segment_id, one = member.handed[count - 1]
        member.handed = member.handed[count:]
        for where, last in member.log.covered(number, segment_id, one).items():
            if last.entry + 1 > self.acked[where]:
                assert self.reader[where] == member.name
                self.acked[where] = last.entry + 1
                if self.is_drained(where):
                    self.tell(draining.Drained(where))
        for leaving in member.reconciler.leaving:
            self.settle(member, leaving)

    # the world --------------------------------------------------------------------------------------------------------
    def change(self, name: str) -> None:
        if name == "split":
            self.topic.split(self.chance.randrange(100))
        else:
            self.topic.merge(self.chance.randrange(100))
        self.tell(LayoutChanged(self.topic.layout))
        sealed = [one.segment_id for one in self.topic.layout.sealed]
        self.tell(*(draining.Drained(one) for one in sealed if self.is_drained(one)))

    def step(self) -> None:
        member = self.members[self.chance.choice(sorted(self.members))] if self.members else None
        match self.chance.choices(list(WEIGHED), list(WEIGHED.values()))[0]:
            case "publish":
                self.topic.publish(self.chance.randrange(KEYS))
            case "split" | "merge" as name:
                self.change(name)
            case "join":
                self.join()
            case "lead":
                self.lead()
            case name if member is not None:
                if name == "acknowledge":
                    self.acknowledge(member, self.chance.randint(0, len(member.handed)))
                else:
                    getattr(self, name)(member)
            case _:
                pass

    def finish(self) -> None:
        if not self.members:
            self.join()
        for _ in range(10_000):
            before = (sum(map(len, self.order.values())), sum(self.acked.values()), dict(self.reader))
            for member in list(self.members.values()):
                self.connect(member)
                while member.pushes:
                    self.hear(member)
                self.close(member)
                self.attach(member)
                while self.take(member):
                    pass
                self.acknowledge(member, len(member.handed))
            after = (sum(map(len, self.order.values())), sum(self.acked.values()), dict(self.reader))
            if before == after and not any(one.pushes or one.closing for one in self.members.values()):
                return
        raise AssertionError("it does not come to rest")


WEIGHED = {
    "publish": 30,
    "take": 30,
    "acknowledge": 15,
    "hear": 15,
    "attach": 15,
    "close": 10,
    "split": 3,
    "merge": 3,
    "join": 2,
    "leave": 1,
    "cut": 2,
    "connect": 6,
    "lead": 1,
}


@pytest.mark.parametrize("seed", range(150))
def test_keys_are_in_order_over_all_consumers_without_duplicates(seed: int) -> None:
    """Scenarios 43, 46, 47, 48, 53, 54."""
    world = StreamWorld(seed)
    for _ in range(400):
        world.step()
    world.finish()
    for key in range(KEYS):
        assert world.order[key] == list(range(world.topic.next_number[key])), f"key {key}"
    assert all(world.acked[one] == len(stored) for one, stored in world.topic.stored.items())
