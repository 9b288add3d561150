"""Consumers of ordered subscriptions join, leave, hang and crash while segments split and merge and leaders change.

No two consumers read one segment at a time, and never two under one generation, although attach messages may arrive
seconds late and a process that was replaced under its name may continue. No segment is read before its ancestors are
drained (every key arrives in order); no confirmed message is lost; in the end all open segments are assigned evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from anabranch.broker.segment.reader_fence import ReaderFence
from anabranch.controller import segment_host as host
from anabranch.controller.events import Halt, Halted, Resume, Resumed
from anabranch.controller.group import assignment as assigning
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group.assignment import AwaitRelease
from anabranch.controller.group.consumer_sessions import (
    Disconnected,
    Fence,
    LeftCleanly,
    Refuse,
    Registered,
    Ticked,
    WakeAt,
    Welcome,
)
from anabranch.controller.group.drain_tracker import LayoutChanged
from anabranch.controller.group.group_events import (
    AskDrained,
    CloseConsumer,
    ConsumerClosed,
    GroupDoubtful,
    GroupSaved,
    GroupSeen,
    GroupUnread,
    Push,
    ReadGroup,
    ReleaseOverdue,
    SaveGroup,
)
from anabranch.controller.group.group_record import GroupRecord
from anabranch.controller.group.group_state import GroupState
from anabranch.controller.records.subscription_registry import SubscriptionState
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import FencingToken, SegmentRef, Start, Status
from anabranch.controller.topic.operation_events import AnnounceLayout
from anabranch.metadata.interface import ABSENT
from anabranch.model.errors import Error
from tests.simulation.test_controller_operations import CHAOS_MS, ORDERED, SEEDS, Life, Producer
from tests.support.simulation.controller import LINES_SHOWN, RECORD, Broken, Leader, name_of
from tests.support.simulation.metadata_processes import seeds

GRACE_MS = 800
RELEASE_MS = 300


class Consumer:
    """A process that reads its assigned segments and releases revoked ones after a while."""

    continues = False

    def __init__(self, life: GroupLife, subscription: str, name: str) -> None:
        self._life, self.subscription, self.name = life, subscription, name
        self.connection = -1
        self.leader: GroupLeader | None = None
        self.generation = -1  # the newest it has received
        self.applied = -1  # the one it acts upon: what it attaches to the owners under
        self.held: set[int] = set()  # what it has asked for, or has
        self.wanted: set[int] = set()
        self.is_hanging = False
        self.is_gone = False
        self.is_replaced = False  # by another process of its name; it does not know

    def connect(self) -> None:
        """Sends the event to the leader; repeated until there is one."""
        life = self._life
        if self.is_gone or self.is_replaced:
            return
        leader = life.leader
        if leader is self.leader and not leader.is_dead and self.connection >= 0:
            life.at(100, self.connect)
            return
        self.drop()
        if isinstance(leader, GroupLeader) and not leader.is_dead and self.subscription in leader.groups:
            life.connections += 1
            self.connection, self.leader = life.connections, leader
            life.consumers[self.connection] = self
            leader.tell(self.subscription, Registered(self.name, self.connection, self.is_new, self.continues))
        life.at(100, self.connect)

    @property
    def is_new(self) -> bool:
        """The new process has no earlier assignment."""
        return self.generation < 0

    def drop(self) -> None:
        """The connection breaks; the leader notices it later, perhaps after the next connection is open."""
        life, old, leader = self._life, self.connection, self.leader
        self.connection, self.leader = -1, None
        if leader is not None and old >= 0:
            life.at(life.chance.choice([0, 5, 200]), lambda: leader.tell(self.subscription, Disconnected(old)))

    def leave(self) -> None:
        self.is_gone = True
        for one in tuple(self.held):
            self.detach(one)
        if self.leader is not None:
            self.leader.tell(self.subscription, LeftCleanly(self.name, self.connection))

    def die(self) -> None:
        """Its attachments break with it."""
        for one in tuple(self.held):
            self.detach(one)
        self.is_gone = True
        self.drop()

    def replaced(self) -> None:
        """It sleeps; when it wakes up it attaches, for a while, to what it had."""
        life = self._life
        self.is_replaced, self.is_hanging = True, True
        self.drop()

        def wake() -> None:
            self.is_hanging = False
            for one in sorted(self.wanted):
                self.attach(one)

        for delay_ms in (life.chance.randint(1, 300), life.chance.randint(300, 3_000)):
            life.at(delay_ms, wake)
        life.at(4_000, self.die)

    def assigned(self, push: Push) -> None:
        if push.connection != self.connection or push.generation < self.generation or self.is_gone:
            return
        self.generation = push.generation
        life, wanted = self._life, set(push.segment_ids)

        def apply() -> None:
            if self.is_gone or push.generation != self.generation or push.connection != self.connection:
                return
            if self.is_hanging:
                life.at(100, apply)
                return
            self.wanted, self.applied = wanted, push.generation
            self.on_applied(push)
            for one in self.held - wanted:
                self.detach(one)
            for one in sorted(wanted - self.held):
                self.attach(one)
            self.say_held(push.generation)

        life.at(life.chance.randint(0, 20), apply)

    def on_applied(self, push: Push) -> None:
        """Called before segments are attached and detached."""

    def say_held(self, generation: int) -> None:
        life, leader = self._life, self.leader
        if leader is not None:
            held = assigning.Holding(self.name, generation, frozenset(self.held))
            life.at(life.chance.randint(0, 5), lambda: leader.tell(self.subscription, held))

    def attach(self, segment_id: int) -> None:
        """A SUBSCRIBE under the assignment that it acts upon; it may be on its way for long."""
        life, generation = self._life, self.applied
        self.held.add(segment_id)
        delay_ms = life.chance.choice([50, 500, 3_000]) if life.is_late() else life.chance.randint(0, 5)
        life.at(delay_ms, lambda: life.subscribed(self, segment_id, generation))

    def detach(self, segment_id: int) -> None:
        self.held.discard(segment_id)
        life, key = self._life, (self.subscription, segment_id)
        if key in life.readers and life.readers[key][0] is self:
            del life.readers[key]

    def fenced(self, segment_id: int, generation: int) -> None:
        """Refused: it is another's. It is dropped, unless a newer assignment has it."""
        if self._life.reader(self.subscription, segment_id) is self:
            return  # that was an old one, which came late
        self.held.discard(segment_id)
        if generation == self.applied:
            self.wanted.discard(segment_id)
            if self.leader is not None:
                self.leader.tell(self.subscription, assigning.Released(self.name, segment_id, generation))
        self.attach_again(segment_id)

    def closed(self, segment_id: int) -> None:
        """By the segment's owner. What it still is to read it attaches to again, if it is let in."""
        self.held.discard(segment_id)
        self._life.at(50, lambda: self.attach_again(segment_id))

    def attach_again(self, segment_id: int) -> None:
        if self.is_gone or segment_id not in self.wanted or segment_id in self.held:
            return
        if self.is_hanging:
            self._life.at(50, lambda: self.attach_again(segment_id))
        else:
            self.attach(segment_id)

    def read(self) -> bool:
        life, found = self._life, False
        record = life.record
        if record is None or self.is_hanging:
            return False
        for one in sorted(self.held & record.segments.keys()):
            segment = name_of(record.segments[one])
            stored = life.shelf.segments.get(segment)
            if life.reader(self.subscription, one) is not self:
                continue
            if stored is None or self.subscription not in stored.cursors or life.chance.random() < 0.3:
                continue
            for position, entry in life.shelf.unread(segment, self.subscription)[:5]:
                life.deliver(self.subscription, entry.producer, entry.sequence_id, one)
                life.shelf.acknowledge(segment, self.subscription, position)
                found = True
        return found


class GroupLeader(Leader):
    """Leads the groups of the ordered subscriptions too."""

    def __init__(self, world: GroupLife, term: int) -> None:
        super().__init__(world, term)
        self.life = world
        self.groups: dict[str, GroupState] = {}
        self.received: list[host.HostEvent] = []  # from its election on
        self.layout: TopicRecord | None = None

    def deliver(self, machine: Any, event: Any) -> None:
        super().deliver(machine, event)
        self.found_groups()

    def found_groups(self) -> None:
        registry = self.subs.registry
        if self.is_dead or self.is_frozen or registry is None or registry.leader_term != self.term:
            return
        for name, subscription in registry.subscriptions.items():
            ready = subscription.state is SubscriptionState.READY
            if name in ORDERED and ready and name not in self.groups and self.layout is not None:
                group = self.groups[name] = GroupState(subscription.operation_id, self.term, grace_ms=GRACE_MS)
                self.perform(group, group.begin())
                super().deliver(group, LayoutChanged(self.layout.layout))
                for one in self.received:
                    self.hear_one(name, one)

    def tell(self, subscription: str, event: Any) -> None:
        if subscription in self.groups:
            self.deliver(self.groups[subscription], event)

    def hear(self, event: host.HostEvent) -> None:
        self.received.append(event)
        for name in tuple(self.groups):
            self.hear_one(name, event)

    def hear_one(self, name: str, event: host.HostEvent) -> None:
        if isinstance(event, host.Drained) and event.subscription == name:
            self.tell(name, draining.Drained(event.segment.segment_id, event.rewind_count))
        elif isinstance(event, host.Refilled) and event.subscription == name:
            self.tell(name, draining.Refilled(event.segment.segment_id, event.rewind_count))

    def _do(self, machine: Any, effect: Any) -> None:
        super()._do(machine, effect)
        if isinstance(effect, AnnounceLayout):
            self.layout = effect.record
            for group in self.groups.values():
                self.deliver(group, LayoutChanged(effect.record.layout))

    def do_more(self, machine: Any, effect: Any) -> None:
        life = self.life
        match effect:
            case Halt(name) | Resume(name):
                self.found_groups()
                if name not in self.groups:  # while its first layout is on its way
                    life.at(5, lambda: self.perform(machine, [effect]))
                else:
                    self.deliver(self.groups[name], effect)
                return
            case Halted(operation_id, generation):
                self.say(f"halted for {operation_id} at {generation}")
                self.deliver(self.subs, effect)
                return
            case Resumed():
                self.deliver(self.subs, effect)
                return
        name = next(name for name, group in self.groups.items() if group is machine)
        key = f"{RECORD}/groups/{name}"
        match effect:
            case ReadGroup():
                self.read(key, machine, lambda v, at: GroupSeen(v and GroupRecord.decode(v), at), GroupUnread())
            case SaveGroup(record, expected):
                wanted = ABSENT if expected is None else expected
                self.write(
                    machine, lambda: life.data.put(key, record.encode(), wanted, None), GroupSaved, GroupDoubtful()
                )
            case AskDrained(segment_ids):
                for one in segment_ids:
                    self.ask_drained(name, one)
            case Push(connection, consumer, generation, segment_ids):
                self.say(f"{name}: {consumer} has {list(segment_ids)} (generation {generation})")
                if connection in life.consumers:
                    life.at(life.chance.randint(0, 5), lambda: life.consumers[connection].assigned(effect))
            case AwaitRelease(segment_id, holder, generation):
                life.at(RELEASE_MS, lambda: self.deliver(machine, ReleaseOverdue(segment_id, generation, holder)))
            case CloseConsumer():
                self.say(f"{name}: closes {effect.consumer} at {effect.segment_id} below {effect.generation}")
                self.close_consumer(machine, name, effect)
            case WakeAt(at_ms):
                life.at(at_ms - life.now_ms, lambda: self.deliver(machine, Ticked()))
            case Welcome() | Fence() | Refuse():
                pass
            case _:
                raise AssertionError(effect)

    def close_consumer(self, machine: Any, name: str, close: CloseConsumer) -> None:
        """As the shell does it: at all owners of what the consumer can have had, until each has confirmed it."""
        stored = machine.assignment.record()
        segments = {close.segment_id} if close.segment_id is not None else set(stored.owned.get(close.consumer, ()))
        if close.segment_id is None:
            segments |= {one for one, it in stored.leaving.items() if it.holder == close.consumer}
            segments |= {one for one, follower in stored.following.items() if follower == close.consumer}
        missing = set(segments)

        def closed(segment_id: int) -> None:
            missing.discard(segment_id)
            if not missing:
                self.deliver(machine, ConsumerClosed(close))

        for one in sorted(segments):
            self.close_at(name, close, one, partial(closed, one))
        if not segments:
            self.deliver(machine, ConsumerClosed(close))

    def close_at(self, name: str, close: CloseConsumer, segment_id: int, done: Callable[[], None]) -> None:
        life, record = self.life, self.life.record
        if self.is_dead or record is None:
            return
        if segment_id not in record.segments:
            done()
            return
        ref = SegmentRef(name_of(record.segments[segment_id]), record.incarnation, segment_id)
        request = host.CloseReader("close", ref, name, close.consumer, close.generation)
        again = partial(self.close_at, name, close, segment_id, done)
        life.ask_host(
            FencingToken(self.term, next(self._numbers)), request, lambda _: done(), lambda _: life.at(50, again)
        )

    def ask_drained(self, name: str, segment_id: int) -> None:
        life, record = self.life, self.life.record
        if self.is_dead or record is None or segment_id not in record.segments:
            return
        ref = SegmentRef(name_of(record.segments[segment_id]), record.incarnation, segment_id)

        def answered(status: Status) -> None:
            for subscription, rewind_count in status.drained:
                if subscription == name:
                    self.tell(name, draining.Drained(segment_id, rewind_count))

        def failed(error: Error) -> None:
            life.at(50, lambda: self.ask_drained(name, segment_id))

        life.ask_host(FencingToken(self.term, next(self._numbers)), host.Fence("drained?", ref), answered, failed)


class GroupLife(Life):
    def __init__(self, seed: int) -> None:
        self.connections = 0
        self.consumers: dict[int, Consumer] = {}  # by connection
        self.all_consumers: list[Consumer] = []
        self.readers: dict[tuple[str, int], tuple[Consumer, int]] = {}  # at the owners: reader and generation
        self.under: dict[tuple[str, int, int], Consumer] = {}  # every admission
        super().__init__(seed)
        self.deletes = False
        self.listeners.append(self.broadcast)
        self.shelf.on_close(lambda ref, subscription, _: self.send_away(subscription, ref.segment_id))

    def new_leader(self, term: int) -> Leader:
        return GroupLeader(self, term)

    def broadcast(self, event: host.HostEvent) -> None:
        for leader in self.leaders:
            if isinstance(leader, GroupLeader) and not leader.is_dead:
                self.at(self.chance.randint(0, 10), partial(leader.hear, event))

    # what the owners of segments do with readers ----------------------------------------------------------------------
    def is_late(self) -> bool:
        return self.is_chaotic and self.chance.random() < self.trouble

    def reader(self, subscription: str, segment_id: int) -> Consumer | None:
        found = self.readers.get((subscription, segment_id))
        return None if found is None else found[0]

    def fence_of(self, subscription: str, segment_id: int) -> ReaderFence | None:
        record = self.record
        segment = None if record is None else record.segments.get(segment_id)
        stored = None if segment is None else self.shelf.segments.get(name_of(segment))
        return None if stored is None or subscription not in stored.cursors else stored.cursors[subscription].fence

    def subscribed(self, consumer: Consumer, segment_id: int, generation: int) -> None:
        """A SUBSCRIBE arrives."""
        key, fence = (consumer.subscription, segment_id), self.fence_of(consumer.subscription, segment_id)
        if fence is None:
            consumer.detach(segment_id)
            return
        if not fence.admits(consumer.name, segment_id, generation):
            self.say(
                f"  host: {segment_id} refuses {consumer.name} under {generation}, its fence is at {fence.generation}"
            )
            consumer.fenced(segment_id, generation)
            return
        fence.raise_to(generation)
        self.send_away(*key)
        before = self.reader(*key)
        known = self.under.setdefault((*key, generation), consumer)
        self.must(known is consumer, f"{key}: {known.name} and {consumer.name} both come under {generation}")
        self.must(before in (None, consumer), f"{consumer.name} attaches to {key}, which another one reads")
        if not consumer.is_gone and segment_id in consumer.held:  # otherwise its goodbye is right behind
            self.readers[key] = consumer, generation

    def send_away(self, subscription: str, segment_id: int) -> None:
        """Closes readers whose generation is outdated."""
        key, fence = (subscription, segment_id), self.fence_of(subscription, segment_id)
        if key in self.readers and fence is not None:
            consumer, generation = self.readers[key]
            if generation < fence.generation:
                del self.readers[key]
                consumer.closed(segment_id)

    def new_consumer(self, subscription: str, name: str, before: Consumer | None) -> Consumer:
        """`before`: the process of that name that it replaces."""
        return Consumer(self, subscription, name)

    def replace_process(self, old: Consumer) -> None:
        old.replaced()
        new = self.new_consumer(old.subscription, old.name, old)
        self.all_consumers.append(new)
        new.connect()

    def join(self, subscription: str) -> None:
        consumer = self.new_consumer(subscription, f"{subscription}-{len(self.all_consumers)}", None)
        self.all_consumers.append(consumer)
        consumer.connect()

    def replied(self, operation_id: str, error: Error | None) -> None:
        known = set(self.from_then)
        super().replied(operation_id, error)
        for name in sorted(set(self.groups_known) - known):
            for _ in range(self.chance.randint(1, 3)):
                self.join(name)

    def read_one(self, name: str, share: float = 0.5) -> bool:
        living = [c for c in self.all_consumers if c.subscription == name and not c.is_gone]
        return sum(consumer.read() for consumer in living) > 0

    def trouble_consumers(self) -> None:
        if not self.is_chaotic:
            return
        self.at(self.chance.randint(1, 150), self.trouble_consumers)
        living = [consumer for consumer in self.all_consumers if not consumer.is_gone and not consumer.is_replaced]
        if not living:
            return
        one = self.chance.choice(living)
        match self.chance.randrange(8):
            case 0 | 1:
                one.drop()
            case 5:
                self.say(f"{one.name} is replaced by another process")
                self.replace_process(one)
            case 2:
                one.is_hanging = not one.is_hanging
            case 3:
                self.say(f"{one.name} leaves")
                one.leave()
            case 4:
                self.say(f"{one.name} dies")
                one.die()
            case _:
                if len(living) < 8:
                    self.join(one.subscription)

    def live(self) -> None:
        producers = [Producer(self, number) for number in range(5)]
        self.elect()
        self.subscribe("first", Start.EARLIEST)
        self.run(200)
        self.is_chaotic = True
        for producer in producers:
            producer.send()
        self.read()
        self.act()
        self.trouble_hosts()
        self.trouble_consumers()
        self.run(CHAOS_MS)
        self.is_chaotic = False
        for consumer in self.all_consumers:
            consumer.is_hanging = False
        for name in self.groups_known:
            self.join(name)
        self.finish()
        for _ in range(400):
            self.run(self.now_ms + 50)
            if not sum(self.read_one(name, 1.0) for name in ORDERED) and self.is_settled():
                break
        self.check_complete()
        self.check_assigned()

    def is_settled(self) -> bool:
        return all(
            self.now_ms > 20_000
            and name in self.leader_groups()
            and not self.leader_groups()[name].assignment.awaited()
            for name in self.groups_known
        )

    @property
    def groups_known(self) -> list[str]:
        return [name for name in ORDERED if name in self.from_then]

    def leader_groups(self) -> dict[str, GroupState]:
        leader = self.leader
        assert isinstance(leader, GroupLeader)
        return leader.groups

    def check_assigned(self) -> None:
        """All open segments are read, evenly distributed."""
        record = self.record
        assert record is not None
        for name in self.groups_known:
            drained = {
                one
                for one, segment in record.segments.items()
                if self.shelf.segments[name_of(segment)].cursors[name].is_drained
            }
            expected = {
                one for one in record.segments if one not in drained and record.layout.ancestors(one) <= drained
            }
            living = [c for c in self.all_consumers if c.subscription == name and not c.is_gone]
            read = [(one, reader) for (subscription, one), (reader, _) in self.readers.items() if subscription == name]
            held = sorted(one for one, _ in read)
            self.must(held == sorted(expected), f"{name}: {expected} are open, {held} are read")
            counts = [sum(reader is consumer for _, reader in read) for consumer in living]
            self.must(max(counts) - min(counts) <= 1, f"{name}: uneven, {counts}")


def run_life(seed: int, kind: type[GroupLife] = GroupLife) -> GroupLife:
    life = kind(seed)
    try:
        life.live()
    except Exception as error:
        shown = "\n".join(life.lines[-LINES_SHOWN:])
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{shown}", pytrace=not isinstance(error, Broken))
    return life


@pytest.mark.parametrize("part", seeds(max(1, SEEDS // 5), 5))
def test_groups_under_faults(part: range) -> None:
    for seed in part:
        run_life(seed)
