"""Seeded simulation of one scalable topic with faults of leaders, store and segment hosts, in one thread.

Time jumps from event to event. Every request (to the metadata store or to a segment's owner) can be refused, lost,
applied without an answer, or applied long after its sender gave up. Leaders are killed or frozen between any two
effects; a frozen leader continues later with its old term. The machines are the real ones, the metadata is the memory
backend's data.

The invariants are checked at every write and every message; `World.finish` ends the faults and checks the final state.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from anabranch.controller import segment_host as host
from anabranch.controller.events import StepDown
from anabranch.controller.records.subscription_registry import Registry, SubscriptionState
from anabranch.controller.records.topic_record import NoSuchOperation, Outcome, TopicRecord
from anabranch.controller.records.topic_record_codec import decode_record, encode_record
from anabranch.controller.segment_host import (
    FencingToken,
    HostError,
    HostOutcomeUnknown,
    HostUnavailable,
    Request,
    SegmentRef,
)
from anabranch.controller.topic.operation_events import (
    AnnounceDeleted,
    AnnounceLayout,
    AnnouncePlan,
    Answered,
    Ask,
    Asked,
    Call,
    Failed,
    MigrationCall,
    PruneCall,
    ReadRecord,
    RecordDoubtful,
    RecordRemoved,
    RecordSaved,
    RecordSeen,
    RecordUnread,
    RegisterSubscriptions,
    RemoveRecord,
    Reply,
    Rest,
    Rested,
    SaveRecord,
    SubscriptionsKnown,
    SubscriptionsRegistered,
)
from anabranch.controller.topic.operation_workflow import OperationWorkflow
from anabranch.controller.topic.subscription_events import (
    AnnounceSubscriptions,
    CursorRest,
    CursorRested,
    LayoutKnown,
    ReadRegistry,
    RegisterCall,
    Registered,
    RegistryDoubtful,
    RegistrySaved,
    RegistrySeen,
    RegistryUnread,
    SaveRegistry,
    SubscriptionAsked,
    SubscriptionCall,
)
from anabranch.controller.topic.subscription_workflow import SubscriptionWorkflow
from anabranch.metadata.interface import ABSENT, Change
from anabranch.metadata.memory.data import MemoryData
from anabranch.model.errors import Error
from anabranch.model.layout import Layout, LayoutLimits
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment, backing_topic
from tests.support.models.memory_segment_host import Shelf

TOPIC = TopicName.parse("topic://public/default/orders")
RECORD = "/topics/public/default/orders"
REGISTRY = f"{RECORD}/registry"
LIMITS = LayoutLimits(segments_max=12, dag_depth_max=6)
LINES_SHOWN = 90


class Broken(AssertionError):
    """An invariant is violated."""


class WorldClock:
    """For the metadata: the world's time; it needs no timers here."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now_ms

    def monotonic(self) -> float:
        return self._world.now_ms / 1000

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        raise NotImplementedError


@dataclass(slots=True)
class Asking:
    """A call with all its answers."""

    call: Call | SubscriptionCall
    incarnation: int  # of the topic when it was asked
    replies: list[Error | None] = field(default_factory=list)


class World:
    def __init__(self, seed: int, *, trouble: float, segments: int = 1) -> None:
        self.chance = random.Random(seed)
        self.trouble = trouble
        self.now_ms = 0
        self.lines: list[str] = []
        self.data = MemoryData(WorldClock(self))
        self.shelf = Shelf()
        self.leaders: list[Leader] = []
        self.askings: dict[str, Asking] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.listeners: list[Callable[[host.HostEvent], None]] = []
        self.downs: dict[int, int] = {}  # host -> down until
        self.refusals: dict[str, int] = {}  # operation -> creations that are refused for good
        self.incarnation = 0
        self.record: TopicRecord | None = None  # as it is in the store at this moment
        self.registry: Registry | None = None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._ids = count(1)
        self._terms = count(1)
        self.data.listen(self._written)
        self.shelf.listen(self._host_event)
        self.create_topic(segments)

    # time -------------------------------------------------------------------------------------------------------------
    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + max(0, delay_ms), next(self._order), what))

    def step(self) -> bool:
        if not self._events:
            return False
        self.now_ms, _, what = heapq.heappop(self._events)
        what()
        return True

    def run(self, until_ms: int) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self.step()
        self.now_ms = max(self.now_ms, until_ms)

    def say(self, what: str) -> None:
        self.lines.append(f"{self.now_ms:7d}  {what}")

    def must(self, condition: bool, what: str) -> None:
        if not condition:
            self.say(f"BROKEN: {what}")
            raise Broken(what)

    # network ----------------------------------------------------------------------------------------------------------
    def send(
        self,
        apply: Callable[[], Any],
        answered: Callable[[Any], None],
        failed: Callable[[Error], None],
        lost: Callable[[bool], None],
    ) -> None:
        """A request, by a fate of the seed. `lost(maybe)`: no answer; `maybe` it was or will be applied."""
        chance = self.chance
        there, back = chance.randint(0, 4), chance.randint(0, 4)
        fate = chance.choice(["refused", "request", "answer", "late", "slow"]) if chance.random() < self.trouble else ""
        patience = 200

        def arrive() -> None:
            try:
                answer = apply()
            except Error as error:
                failure = error
                if fate not in ("answer", "late"):
                    self.at(back, lambda: failed(failure))
                return
            if fate not in ("answer", "late"):
                self.at(back, lambda: answered(answer))

        match fate:
            case "refused":
                self.at(there, lambda: lost(False))
            case "request":
                self.at(patience, lambda: lost(True))
            case "answer":
                self.at(there, arrive)
                self.at(patience, lambda: lost(True))
            case "late":
                self.at(there, lambda: lost(True))
                self.at(chance.choice([5, 50, 500, 5_000]), arrive)
            case _:
                self.at(there + (150 if fate == "slow" else 0), arrive)

    def ask_host(
        self, token: FencingToken, request: Request, answered: Callable[[Any], None], failed: Callable[[Error], None]
    ) -> None:
        owner = request.segment.segment_id % 3

        def apply() -> host.Answer:
            if isinstance(request, host.Create) and self.refusals.get(request.operation, 0) > 0:
                self.refusals[request.operation] -= 1
                raise HostError("the host accepts no further segment")
            if self.downs.get(owner, 0) > self.now_ms:
                raise HostUnavailable(f"host {owner} is down")
            self.check_request(request)
            answer = self.shelf.apply(token, request, self.now_ms)
            self.say(f"  host: {_told(request)} term {token.term}.{token.number}")
            if isinstance(request, host.Seal):
                self._check_seal(request)
            return answer

        def lost(maybe: bool) -> None:
            failed(HostOutcomeUnknown("no answer") if maybe else HostUnavailable("not reached"))

        self.send(apply, answered, failed, lost)

    def check_request(self, request: Request) -> None:
        """What an owner checks in the topic's record: raises HostError."""

    def _host_event(self, event: host.HostEvent) -> None:
        for tell in tuple(self.listeners):
            tell(event)

    # checks at every write --------------------------------------------------------------------------------------------
    def _written(self, changes: Any) -> None:
        for change in changes:
            assert isinstance(change, Change)
            found = self.data.get(change.key)
            if change.key == RECORD:
                self._check_record(None if found is None else decode_record(found.value))
            elif change.key == REGISTRY:
                self.registry = None if found is None else Registry.decode(found.value)
        self._check_cursors()

    def _check_record(self, record: TopicRecord | None) -> None:
        before, self.record = self.record, record
        if record is None:
            self.must(before is not None and before.is_deleting, "a topic disappeared without a deletion")
            self.say("record removed")
            return
        running = record.operation
        self.say(
            f"record: term {record.leader_term} epoch {record.epoch} active "
            f"{[s.segment_id for s in record.layout.active]} "
            f"{'' if running is None else f'{running.plan.kind} {running.plan.parent_ids}->{running.plan.child_ids}'}"
            f"{' garbage ' + str([s.segment_id for s in record.garbage]) if record.garbage else ''}"
            f"{' DELETING' if record.is_deleting else ''}"
        )
        if before is not None and before.incarnation == record.incarnation:
            self.must(record.leader_term >= before.leader_term, "a leader of an older term has written")
            self.must(record.epoch >= before.epoch, "the epoch went back")
            self.must(record.layout.next_segment_id >= before.layout.next_segment_id, "ids could be used again")
            if before.operation is not None and record.epoch != before.epoch:
                self.must(
                    record.operation is None and record.outcome(before.operation.operation_id) is Outcome.COMMITTED,
                    "the epoch was raised beside the running operation",
                )
        last = record.last_operation
        if last is not None:
            known = self.outcomes.setdefault(last.operation_id, last.outcome)
            self.must(known is last.outcome, f"operation {last.operation_id} was {known} and then {last.outcome}")
        if record.leader_term > 0 and not record.is_deleting:
            self._check_segments(record)

    def _check_segments(self, record: TopicRecord) -> None:
        running = () if record.operation is None else record.operation.plan.parent_ids
        for segment in record.segments.values():
            stored = self.shelf.segments.get(name_of(segment))
            self.must(stored is not None, f"segment {segment.segment_id} is in the layout and not on its host")
            assert stored is not None
            is_sealed = stored.sealed is not None
            if segment.is_active:
                self.must(
                    not is_sealed or segment.segment_id in running, f"segment {segment.segment_id} is sealed but active"
                )
            else:
                self.must(is_sealed, f"segment {segment.segment_id} is not sealed on its host")

    def _check_seal(self, request: host.Seal) -> None:
        """A seal belongs to an operation that will be committed."""
        record = self.record
        running = None if record is None else record.operation
        if running is not None and running.operation_id == request.operation:
            return
        done = self.outcomes.get(request.operation)
        self.must(done is Outcome.COMMITTED, f"{request.segment} is sealed for {request.operation}, which is {done}")

    def ready(self) -> list[str]:
        registry, record = self.registry, self.record
        if registry is None or record is None or registry.incarnation != record.incarnation:
            return []
        return [
            s.name for s in registry.subscriptions.values() if s.kind.has_cursors and s.state is SubscriptionState.READY
        ]

    def _check_cursors(self) -> None:
        """Every subscription that was confirmed has its cursor on every segment."""
        record = self.record
        if record is None or record.is_deleting or record.leader_term == 0:
            return
        ready = self.ready()
        for segment in record.segments.values():
            stored = self.shelf.segments.get(name_of(segment))
            for name in ready:
                self.must(
                    stored is not None and name in stored.cursors, f"{name} has no cursor on {segment.segment_id}"
                )

    def check_publish(self, ref: SegmentRef, ring: int) -> None:
        """Before anything is accepted by a segment: its parents are sealed, and every confirmed cursor is there."""
        stored = self.shelf.segments[ref.name]
        for name in self.ready():
            self.must(name in stored.cursors, f"{ref} takes messages before {name} has its cursor")
        record = self.record
        planned = () if record is None else record.planned_children
        for child in planned:
            if child.segment_id == ref.segment_id and record is not None:
                for parent in child.parent_ids:
                    if ring in record.layout[parent].hash_range:
                        above = self.shelf.segments[name_of(record.layout[parent])]
                        self.must(above.sealed is not None, f"{ref} is written to while its parent {parent} is")

    # topic and leaders ------------------------------------------------------------------------------------------------
    def create_topic(self, segments: int) -> None:
        self.incarnation += 1
        record = TopicRecord(Layout.initial(segments, now_ms=self.now_ms), incarnation=self.incarnation)
        self.data.put(RECORD, encode_record(record), ABSENT, None)

    def elect(self) -> Leader:
        leader = self.new_leader(next(self._terms))
        self.leaders.append(leader)
        leader.start()
        return leader

    def new_leader(self, term: int) -> Leader:
        return Leader(self, term)

    @property
    def leader(self) -> Leader:
        return self.leaders[-1]

    def ask(self, call: Call | SubscriptionCall) -> None:
        self.askings[call.operation_id] = Asking(call, self.incarnation)
        self.say(f"asked: {call}")
        self.leader.ask(call)

    def replied(self, operation_id: str, error: Error | None) -> None:
        self.askings[operation_id].replies.append(error)

    def between_effects(self, leader: Leader) -> None:
        """Called between two effects of a leader: it may be killed or frozen here."""

    def new_id(self, word: str) -> str:
        return f"{word}-{next(self._ids)}"

    def is_calm(self) -> bool:
        record = self.record
        return record is None or (
            record.operation is None
            and not record.garbage
            and not record.is_deleting
            and self.leader.ops.is_idle
            and self.registry is not None
            and all(s.state is SubscriptionState.READY and s.move is None for s in self.registry.subscriptions.values())
        )

    def finish(self) -> None:
        """Ends the faults, resumes frozen leaders and lets the last leader finish all work."""
        self.trouble = 0.0
        self.downs.clear()
        self.refusals.clear()
        for leader in self.leaders:
            leader.thaw()
        if self.leader.is_dead:
            self.elect()
        deadline = self.now_ms + 120_000
        while not self.is_calm():
            self.must(self.now_ms < deadline and self.step(), "it never becomes calm")
        self.run(self.now_ms + 10_000)
        self._check_calm()

    def _check_calm(self) -> None:
        record = self.record
        expected = set() if record is None else {name_of(s) for s in record.segments.values()}
        self.must(set(self.shelf.segments) == expected, f"orphans: {set(self.shelf.segments) ^ expected}")
        if record is not None:
            self._check_segments(record)
            self._check_cursors()
            for name in expected:
                extra = set(self.shelf.segments[name].cursors) - set(self.ready())
                self.must(not extra, f"cursors without a subscription on {name}: {extra}")
        for operation_id, asking in self.askings.items():
            for reply in asking.replies:
                outcome = self.outcomes.get(operation_id)
                if reply is not None and not isinstance(asking.call, SubscriptionCall | PruneCall):
                    # after the next operation the record does not name a migration any more: its caller reads it
                    unsettled = ("not-leader", NoSuchOperation.code if isinstance(asking.call, MigrationCall) else "")
                    self.must(
                        outcome is not Outcome.COMMITTED or reply.code in unsettled,
                        f"{operation_id} was refused ({reply.code}) and committed",
                    )


class Leader:
    """One leader term of one process."""

    def __init__(self, world: World, term: int) -> None:
        self.world, self.term = world, term
        self.ops = OperationWorkflow(TOPIC, term, limits=LIMITS, create_ms_max=1_500)
        self.subs = SubscriptionWorkflow(TOPIC, term)
        self.is_dead = False
        self.is_frozen = False
        self._missed: list[tuple[Any, Any]] = []
        self._numbers = count(1)

    def say(self, what: str) -> None:
        self.world.say(f"T{self.term}: {what}")

    def start(self) -> None:
        self.say("elected")
        self.perform(self.ops, self.ops.begin())
        self.perform(self.subs, self.subs.begin())

    def kill(self) -> None:
        self.say("killed")
        self.is_dead = True

    def freeze(self) -> None:
        self.say("frozen")
        self.is_frozen = True

    def thaw(self) -> None:
        if self.is_frozen:
            self.say("wakes up")
            self.is_frozen = False
            missed, self._missed = self._missed, []
            for machine, event in missed:
                self.deliver(machine, event)

    def ask(self, call: Call | SubscriptionCall) -> None:
        if isinstance(call, SubscriptionCall):
            self.deliver(self.subs, SubscriptionAsked(call))
        else:
            self.deliver(self.ops, Asked(call))

    def deliver(self, machine: Any, event: Any) -> None:
        if self.is_dead:
            return
        if self.is_frozen:
            self._missed.append((machine, event))
            return
        self.perform(machine, machine.handle(event, self.world.now_ms))

    def perform(self, machine: Any, effects: list[Any]) -> None:
        for effect in effects:
            if self.is_dead:
                return
            if self.is_frozen:  # what it was about to do it does when it wakes up
                self._missed.append((_Rest(machine, self), effect))
                continue
            self._do(machine, effect)
            self.world.between_effects(self)

    def _do(self, machine: Any, effect: Any) -> None:
        world, deliver = self.world, self.deliver
        match effect:
            case ReadRecord():
                self.read(RECORD, machine, lambda v, at: RecordSeen(v and decode_record(v), at or 0), RecordUnread())
            case ReadRegistry():
                self.read(REGISTRY, machine, lambda v, at: RegistrySeen(v and Registry.decode(v), at), RegistryUnread())
            case SaveRecord(record, expected, reason):
                self.say(f"saves: {reason}")
                self.write(
                    machine,
                    lambda: world.data.put(RECORD, encode_record(record), expected, None),
                    RecordSaved,
                    RecordDoubtful(),
                )
            case SaveRegistry(registry, version, reason):
                self.say(f"saves registry: {reason}")
                wanted = ABSENT if version is None else version
                self.write(
                    machine,
                    lambda: world.data.put(REGISTRY, registry.encode(), wanted, None),
                    RegistrySaved,
                    RegistryDoubtful(),
                )
            case RemoveRecord(incarnation, expected):
                self._remove(machine, incarnation, expected)
            case Ask(request):
                world.ask_host(
                    FencingToken(self.term, next(self._numbers)),
                    request,
                    lambda answer: deliver(machine, Answered(request, answer)),
                    lambda error: deliver(machine, Failed(request, error)),
                )
            case Rest(what, failures):
                world.at(min(50 * 2**failures, 1_000), lambda: deliver(machine, Rested(what)))
            case CursorRest(which, failures):
                world.at(min(50 * 2**failures, 1_000), lambda: deliver(machine, CursorRested(which)))
            case AnnouncePlan(record) | AnnounceLayout(record):
                deliver(self.subs, LayoutKnown(record))
            case AnnounceSubscriptions(names):
                deliver(self.ops, SubscriptionsKnown(names))
            case RegisterSubscriptions(operation_id, kinds):
                deliver(self.subs, SubscriptionAsked(RegisterCall(operation_id, kinds)))
            case Registered(operation_id):
                deliver(self.ops, SubscriptionsRegistered(operation_id))
            case Reply(operation_id, error, _):
                self.say(f"reply {operation_id}: {error.code if error else 'done'}")
                world.replied(operation_id, error)
            case StepDown(reason):
                self.say(f"steps down: {reason}")
                self.is_dead = True
            case AnnounceDeleted():
                self.is_dead = True
            case _:
                self.do_more(machine, effect)

    def do_more(self, machine: Any, effect: Any) -> None:
        """Effects of other machines than those two."""
        raise AssertionError(effect)

    def read(self, key: str, machine: Any, seen: Callable[[Any, Any], Any], unread: Any) -> None:
        def answered(found: Any) -> None:
            self.deliver(machine, seen(found and found.value, found and found.version))

        self.world.send(
            lambda: self.world.data.get(key), answered, lambda _: None, lambda _: self.deliver(machine, unread)
        )

    def write(self, machine: Any, apply: Callable[[], Any], saved: Callable[[int], Any], doubtful: Any) -> None:
        deliver = self.deliver
        self.world.send(
            apply,
            lambda version: deliver(machine, saved(version)),
            lambda _: deliver(machine, doubtful),
            lambda _: deliver(machine, doubtful),
        )

    def _remove(self, machine: Any, incarnation: int, expected: int) -> None:
        data = self.world.data

        def remove_registry() -> None:
            found = data.get(REGISTRY)
            if found is not None and Registry.decode(found.value).incarnation == incarnation:
                data.delete(REGISTRY, found.version)

        def remove_record() -> None:
            self.write(machine, lambda: data.delete(RECORD, expected), lambda _: RecordRemoved(), RecordDoubtful())

        self.write(_Then(remove_record, machine), remove_registry, lambda _: None, RecordDoubtful())


@dataclass(frozen=True, slots=True)
class _Then:
    """Runs a second step after the first one was answered; a failure is passed to the machine."""

    go_on: Callable[[], None]
    machine: Any

    def handle(self, event: Any, now_ms: int) -> list[Any]:
        if event is None:
            self.go_on()
            return []
        effects: list[Any] = self.machine.handle(event, now_ms)
        return effects


@dataclass(frozen=True, slots=True)
class _Rest:
    """Stands for the effects that a frozen leader had still to do."""

    machine: Any
    leader: Leader

    def handle(self, effect: Any, now_ms: int) -> list[Any]:
        self.leader._do(self.machine, effect)
        return []


_NAMES: dict[tuple[int, int, int, str | None], TopicName] = {}


def name_of(segment: Segment) -> TopicName:
    """`backing_topic`, remembered: worlds ask for little else."""
    key = segment.segment_id, segment.hash_range.start, segment.hash_range.end, segment.legacy_topic_name
    if key not in _NAMES:
        _NAMES[key] = backing_topic(TOPIC, segment)
    return _NAMES[key]


def _told(request: Request) -> str:
    return f"{type(request).__name__} {request.segment.segment_id} ({request.operation})"
