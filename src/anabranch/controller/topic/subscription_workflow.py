"""Subscription workflow of one topic: registered first, then a cursor on every segment, then answered. Never awaits.

    subscribe ──▶ registry: CREATING ──▶ a cursor on every segment, planned children too ──▶ registry: READY ──▶ answer

From CREATING on, the operation workflow creates new segments with the cursor; it gets `AnnounceSubscriptions` once the
registry is durable. A segment that was planned before is in the record of `LayoutKnown`, so none is missed. Seek and
clear-backlog are intents in the registry too: once written they are completed on all segments, also by a later leader.
During the seek of an ordered subscription no consumer reads:

    seek ──▶ registry: move ──▶ Halt ──▶ every cursor moved, readers fenced ──▶ Resume ──▶ registry: no move ──▶ answer
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from anabranch.controller import segment_host as host
from anabranch.controller.events import (
    Halt,
    Halted,
    LeadershipLost,
    NotLeading,
    Resume,
    Resumed,
    StepDown,
    UnknownSubscription,
    Version,
)
from anabranch.controller.records.subscription_registry import (
    Move,
    Registry,
    Subscription,
    SubscriptionState,
)
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import CursorSpec, Request, SegmentRef, Start
from anabranch.controller.topic.operation_events import Answered, Ask, Failed, Reply
from anabranch.controller.topic.seek_target import seek_request
from anabranch.controller.topic.subscription_events import (
    AnnounceSubscriptions,
    CursorRest,
    CursorRested,
    Effect,
    Event,
    LayoutKnown,
    MoveCall,
    OtherKind,
    ReadRegistry,
    RegisterCall,
    Registered,
    RegistryDoubtful,
    RegistrySaved,
    RegistrySeen,
    RegistryUnread,
    SaveRegistry,
    SubscribeCall,
    SubscriptionAsked,
    SubscriptionBusy,
    SubscriptionCall,
    UnsubscribeCall,
)
from anabranch.model.errors import Error, NotAllowed, TooManySubscriptions
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment, backing_topic

_Todo = tuple[str, int]
"""An intent and a segment on which it is done."""

CALLS_MAX = 4_096
"""Calls that wait. Each subscribing consumer may cause one."""

FINISHED = -1
"""In place of a segment id: done on all segments."""


@dataclass(slots=True)
class _Pause:
    """Progress of the seek of an ordered subscription."""

    generation: int | None = None  # from Halted on
    moved: dict[int, host.Moved] = field(default_factory=dict)
    is_resuming: bool = False
    is_over: bool = False


class SubscriptionWorkflow:
    """For one topic and one leader term."""

    def __init__(self, topic: TopicName, term: int) -> None:
        self.registry: Registry | None = None
        self._topic, self._term = topic, term
        self._now_ms = 0
        self._version: Version | None = None
        self._saving: Registry | None = None
        self._record: TopicRecord | None = None
        self._calls: dict[str, SubscriptionCall] = {}
        self._done: set[_Todo] = set()
        self._busy: dict[Request | ReadRegistry, int] = {}  # sent or pausing, with its number of failures
        self._in_flight: Counter[str] = Counter()  # requests by their operation
        self._pauses: dict[str, _Pause] = {}  # by operation
        self._announced: frozenset[str] | None = None  # by the last AnnounceSubscriptions
        self._is_over = False

    def begin(self) -> list[Effect]:
        return [ReadRegistry()]

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self._now_ms = max(self._now_ms, now_ms)
        if self._is_over:
            if isinstance(event, SubscriptionAsked):
                return [Reply(event.call.operation_id, NotLeading(f"{self._topic} is led elsewhere"), -1)]
            return []
        match event:
            case RegistrySeen(registry, version):
                if self._saving is not None:
                    return []
                self.registry, self._version = registry or Registry(), version
            case RegistryUnread():
                return [self._rest(ReadRegistry())]
            case RegistrySaved(version):
                assert self._saving is not None
                self.registry, self._version, self._saving = self._saving, version, None
                intents = {intent for one in self.registry.subscriptions.values() for intent in _intents(one)}
                self._done = {todo for todo in self._done if todo[0] in intents or todo[1] == FINISHED}
                self._pauses = {one: pause for one, pause in self._pauses.items() if one in intents}
            case RegistryDoubtful():
                self._saving = self.registry = None
                return [ReadRegistry()]
            case LayoutKnown(record):
                self._record = record
            case CursorRested(what):
                if isinstance(what, ReadRegistry):
                    return [ReadRegistry()]
                return self._retry(what)
            case SubscriptionAsked(call):
                if len(self._calls) >= CALLS_MAX and call.operation_id not in self._calls:
                    error = SubscriptionBusy(f"{CALLS_MAX} changes of subscriptions of {self._topic} wait")
                    return [Reply(call.operation_id, error, -1)]
                self._calls.setdefault(call.operation_id, call)
            case Answered(request, answer):
                if self._busy.pop(request, None) is not None:
                    self._done.add((request.operation, request.segment.segment_id))
                    if request.operation in self._pauses and isinstance(answer, host.Moved):
                        self._pauses[request.operation].moved[request.segment.segment_id] = answer
                if self._has_more(request):
                    return []  # the last answer decides: a topic may have thousands of segments
            case Halted(operation_id, generation):
                if operation_id in self._pauses:
                    self._pauses[operation_id].generation = generation
            case Resumed(operation_id):
                if operation_id in self._pauses:
                    self._pauses[operation_id].is_resuming = self._pauses[operation_id].is_over = True
            case Failed(request, error):
                self._has_more(request)
                if isinstance(error, host.StaleTerm):
                    return self._step_down(str(error))
                return [self._rest(request)]
            case LeadershipLost(reason):
                return self._step_down(reason)
            case _:
                assert_never(event)
        return self._decide()

    def _has_more(self, request: Request) -> bool:
        """Called when the request has ended: whether others of its operation are still in flight."""
        self._in_flight[request.operation] -= 1
        if self._in_flight[request.operation] > 0:
            return True
        del self._in_flight[request.operation]
        return False

    def _rest(self, what: ReadRegistry | Request) -> CursorRest:
        self._busy[what] = self._busy.get(what, 0) + 1
        return CursorRest(what, self._busy[what])

    def _retry(self, request: Request) -> list[Effect]:
        """Repeats the request, if it is still needed."""
        failures = self._busy.pop(request, 0)
        effects = self._decide()
        if request in self._busy:
            self._busy[request] = failures
        return effects

    # decisions --------------------------------------------------------------------------------------------------------
    def _decide(self) -> list[Effect]:
        registry, record = self.registry, self._record
        if registry is None or self._saving is not None:
            return []
        if registry.leader_term > self._term:
            return self._step_down(f"the leader of term {registry.leader_term} has written")
        if record is None:
            return []
        if registry.incarnation != record.incarnation:
            return self._save(Registry(incarnation=record.incarnation), f"incarnation {record.incarnation} begins")
        if registry.leader_term < self._term:
            return self._save(registry, f"term {self._term} begins")
        effects: list[Effect] = []
        if registry.cursors != self._announced:
            self._announced = registry.cursors
            effects.append(AnnounceSubscriptions(self._announced))
        changed = registry
        for subscription in registry.subscriptions.values():
            requests = list(self._requests(subscription, record))
            if requests:
                effects += self._ask(requests)
            elif (paused := self._paused(subscription)) is not None:
                effects += paused
            else:
                changed = _finished(changed, subscription)
                if subscription.move is not None:
                    self._done.add((subscription.move.operation_id, FINISHED))
        if changed is registry:
            changed, replies = self._take_calls(registry, record)
            effects += replies
        return effects if changed is registry else effects + self._save(changed, "subscriptions")

    def _paused(self, subscription: Subscription) -> list[Effect] | None:
        """The next step of an ordered seek, when no request to segments is due. None: nothing is left."""
        if not subscription.is_sought_in_order:
            return None
        assert subscription.move is not None
        operation_id = subscription.move.operation_id
        pause = self._pauses.get(operation_id)
        if pause is None:
            self._pauses[operation_id] = _Pause()
            return [Halt(subscription.name, operation_id)]
        if pause.is_over:
            return None
        if pause.generation is None or pause.is_resuming:
            return []
        pause.is_resuming = True
        return [Resume(subscription.name, operation_id, dict(pause.moved))]

    def _requests(self, subscription: Subscription, record: TopicRecord) -> Iterable[Request]:
        """Requests to segments that this subscription still needs."""
        name, state, move = subscription.name, subscription.state, subscription.move
        if state is SubscriptionState.READY and move is None:
            return
        if not subscription.kind.has_cursors and state is not SubscriptionState.DELETING:
            return  # it has no cursors; only a deletion is sent, to end its holds
        generation = 0
        if move is not None and subscription.is_sought_in_order:
            pause = self._pauses.get(move.operation_id)
            if pause is None or pause.generation is None or pause.is_resuming:
                return
            generation = pause.generation
        for segment in (*record.segments.values(), *record.planned_children):
            ref = SegmentRef(backing_topic(self._topic, segment), record.incarnation, segment.segment_id)
            if state is SubscriptionState.CREATING and (request := self._creation(subscription, segment, ref)):
                yield request
            elif state is SubscriptionState.DELETING:
                intent = f"delete {subscription.operation_id}"
                if (intent, ref.segment_id) not in self._done:
                    yield host.DeleteCursor(intent, ref, name)
            elif move is not None and (move.operation_id, ref.segment_id) not in self._done:
                if not move.is_seek:
                    yield host.ClearBacklog(move.operation_id, ref, name)
                elif (target := seek_request(move, record, ref, name, generation)) is not None:
                    yield target

    def _creation(self, subscription: Subscription, segment: Segment, ref: SegmentRef) -> Request | None:
        intent = f"create {subscription.operation_id}"
        if (intent, ref.segment_id) in self._done:
            return None
        return host.CreateCursor(
            intent, ref, CursorSpec(subscription.name, subscription.start_on(segment.created_at_epoch))
        )

    def _ask(self, requests: Iterable[Request]) -> list[Effect]:
        effects: list[Effect] = []
        for request in requests:
            if request not in self._busy:
                self._busy[request] = 0
                self._in_flight[request.operation] += 1
                effects.append(Ask(request))
        return effects

    def _take_calls(self, registry: Registry, record: TopicRecord) -> tuple[Registry, list[Effect]]:
        """Answers calls that are decided; adds the intents of the others to the registry."""
        effects: list[Effect] = []
        for call in tuple(self._calls.values()):
            try:
                wanted = self._wanted(registry, record, call)
            except Error as error:
                effects.append(self._reply(call, error))
                continue
            if wanted is None and isinstance(call, RegisterCall):
                del self._calls[call.operation_id]
                effects.append(Registered(call.operation_id))
            elif wanted is None:
                effects.append(self._reply(call, None))
            registry = wanted or registry
        return registry, effects

    def _wanted(self, registry: Registry, record: TopicRecord, call: SubscriptionCall) -> Registry | None:
        """The registry with the intent of the call; None if the call is completed."""
        if isinstance(call, RegisterCall):
            return self._registered(registry, record, call)
        if record.is_migrating and isinstance(call, UnsubscribeCall | MoveCall):
            # The partitions have told their subscriptions: a cursor that is deleted now would be registered.
            raise SubscriptionBusy(f"{self._topic} is being migrated; try again")
        found = registry.subscriptions.get(call.name)
        match call:
            case SubscribeCall(operation_id, name, kind, start, count_max):
                if found is None:
                    if 0 < count_max <= sum(one.kind.has_cursors for one in registry.subscriptions.values()):
                        raise TooManySubscriptions(
                            f"Exceed the maximum number of subscriptions of the topic {self._topic}: {count_max}"
                        )
                    state = SubscriptionState.CREATING
                    deleted, now_ms = registry.deleted, self._now_ms
                    return registry.with_one(
                        Subscription(
                            name, kind, start, state, record.epoch, now_ms, operation_id, incarnations_before=deleted
                        )
                    )
                if found.kind is not kind:
                    raise OtherKind(f"subscription {name} is a {found.kind} subscription, not {kind}")
                if found.state is SubscriptionState.DELETING:
                    raise SubscriptionBusy(f"subscription {name} is being deleted")
                return None if found.state is SubscriptionState.READY else registry
            case UnsubscribeCall(_, name):
                if found is None or found.state is SubscriptionState.DELETING:
                    return None if found is None else registry
                return registry.with_one(replace(found, state=SubscriptionState.DELETING, move=None))
            case MoveCall(operation_id, name, publish_ms, positions):
                move = None if found is None else found.move
                if move is not None and move.operation_id == operation_id:
                    return registry
                if (operation_id, FINISHED) in self._done:
                    return None
                if found is None:
                    raise UnknownSubscription(f"no subscription {name} on {self._topic}")
                if found.state is not SubscriptionState.READY or move is not None:
                    raise SubscriptionBusy(f"subscription {name} is being {'moved' if move else found.state.lower()}")
                if not found.kind.has_cursors:
                    raise NotAllowed(f"{name} is a checkpoint group: its members keep their positions themselves")
                if missing := [one.segment_id for one in positions if one.segment_id not in record.segments]:
                    raise NotAllowed(f"segments {missing} of {self._topic} do not exist, or no longer")
                return registry.with_one(replace(found, move=Move(operation_id, publish_ms, positions)))
            case _:
                assert_never(call)

    def _registered(self, registry: Registry, record: TopicRecord, call: RegisterCall) -> Registry | None:
        new = {
            name: Subscription(
                name,
                kind,
                Start.EARLIEST,
                SubscriptionState.READY,
                record.epoch,
                self._now_ms,
                call.operation_id,
                incarnations_before=registry.deleted,
            )
            for name, kind in call.kinds.items()
            if name not in registry.subscriptions
        }
        return replace(registry, subscriptions={**registry.subscriptions, **new}) if new else None

    # ends -------------------------------------------------------------------------------------------------------------
    def _save(self, registry: Registry, reason: str) -> list[Effect]:
        self._saving = replace(registry, leader_term=self._term)
        return [SaveRegistry(self._saving, self._version, reason)]

    def _reply(self, call: SubscriptionCall, error: Error | None) -> Reply:
        del self._calls[call.operation_id]
        return Reply(call.operation_id, error, -1 if self._record is None else self._record.epoch)

    def _step_down(self, reason: str) -> list[Effect]:
        self._is_over = True
        replies = [self._reply(call, NotLeading(reason)) for call in tuple(self._calls.values())]
        return [*replies, StepDown(reason)]


def _intents(subscription: Subscription) -> Iterable[str]:
    yield f"{'delete' if subscription.state is SubscriptionState.DELETING else 'create'} {subscription.operation_id}"
    if subscription.move is not None:
        yield subscription.move.operation_id


def _finished(registry: Registry, subscription: Subscription) -> Registry:
    """The registry after all requests for this subscription are done."""
    match subscription.state:
        case SubscriptionState.CREATING:
            return registry.with_one(replace(subscription, state=SubscriptionState.READY))
        case SubscriptionState.DELETING:
            return registry.without(subscription.name)
        case SubscriptionState.READY:
            if subscription.move is None:
                return registry
            return registry.with_one(replace(subscription, move=None))
        case _:
            assert_never(subscription.state)
