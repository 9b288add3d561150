"""The subscription workflow: register, create all cursors, answer; types, starts, seeks; resumption by a new leader."""

from __future__ import annotations

import pytest

from anabranch.controller import segment_host as host
from anabranch.controller.events import Halt, Halted, Resume, Resumed, StepDown
from anabranch.controller.records.subscription_registry import (
    BadRegistry,
    Move,
    Registry,
    Subscription,
    SubscriptionKind,
    SubscriptionState,
)
from anabranch.controller.records.topic_record import TopicRecord, aborted, committed, planned
from anabranch.controller.segment_host import Done, HostUnavailable, SegmentMissing, Start
from anabranch.controller.topic.operation_events import Answered, Ask, Failed, Reply
from anabranch.controller.topic.subscription_events import (
    AnnounceSubscriptions,
    CursorRest,
    CursorRested,
    Effect,
    Event,
    LayoutKnown,
    MoveCall,
    ReadRegistry,
    RegisterCall,
    Registered,
    RegistryDoubtful,
    RegistrySaved,
    RegistrySeen,
    SaveRegistry,
    SubscribeCall,
    SubscriptionAsked,
    UnsubscribeCall,
)
from anabranch.controller.topic.subscription_workflow import SubscriptionWorkflow
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.replacement import plan_split
from anabranch.model.segment import Seal

TOPIC = TopicName.parse("topic://public/default/orders")
STREAM, QUEUE = SubscriptionKind.STREAM, SubscriptionKind.QUEUE


def idle() -> TopicRecord:
    return TopicRecord(Layout.initial(1, now_ms=0), incarnation=4, leader_term=1)


def splitting() -> TopicRecord:
    return planned(idle(), "op", plan_split(idle().layout, 0, now_ms=1, limits=NO_LIMITS), now_ms=1)


class Bench:
    def __init__(self, record: TopicRecord, term: int = 1, stored: Registry | None = None) -> None:
        self.machine = SubscriptionWorkflow(TOPIC, term)
        self.stored, self.version = stored, None if stored is None else 1
        assert self.machine.begin() == [ReadRegistry()]
        self.begun = self.tell(RegistrySeen(stored, self.version), LayoutKnown(record))

    def tell(self, *events: Event) -> list[Effect]:
        left: list[Effect] = []
        ahead = list(events)
        while ahead:
            for effect in self.machine.handle(ahead.pop(0), 10):
                if isinstance(effect, SaveRegistry):
                    assert effect.expected == self.version
                    self.stored, self.version = Registry.decode(effect.registry.encode()), (self.version or 0) + 1
                    ahead.append(RegistrySaved(self.version))
                else:
                    left.append(effect)
        return left

    def subscribe(self, name: str = "s", kind: SubscriptionKind = STREAM, start: Start = Start.LATEST) -> list[Effect]:
        return self.tell(SubscriptionAsked(SubscribeCall(f"call-{name}", name, kind, start)))

    def answer_all(self, effects: list[Effect]) -> list[Effect]:
        left: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Ask):
                left += self.tell(Answered(effect.request, Done()))
        return left


def starts(effects: list[Effect]) -> dict[int, Start]:
    found = [e.request for e in effects if isinstance(e, Ask)]
    return {r.segment.segment_id: r.cursor.start for r in found if isinstance(r, host.CreateCursor)}


def test_subscribe_registers_first_and_answers_after_all_cursors() -> None:
    bench = Bench(idle())
    begun = bench.subscribe()
    assert begun[0] == AnnounceSubscriptions(frozenset({"s"}))
    assert starts(begun) == {0: Start.LATEST}
    assert bench.stored is not None
    assert bench.stored.subscriptions["s"].state is SubscriptionState.CREATING
    assert bench.answer_all(begun) == [Reply("call-s", None, 0)]
    assert bench.stored.subscriptions["s"].state is SubscriptionState.READY


def test_subscriptions_of_a_migration_are_ready_with_one_write_and_keep_the_kind_that_is_registered() -> None:
    bench = Bench(idle())
    bench.answer_all(bench.subscribe("b"))
    before = bench.version
    effects = bench.tell(SubscriptionAsked(RegisterCall("op", {"a": QUEUE, "b": QUEUE, "c": STREAM})))
    assert effects == [AnnounceSubscriptions(frozenset({"a", "b", "c"})), Registered("op")]
    assert bench.version == (before or 0) + 1
    assert bench.stored is not None
    assert {(one.name, one.kind, one.state) for one in bench.stored.subscriptions.values()} == {
        ("a", QUEUE, SubscriptionState.READY),
        ("b", STREAM, SubscriptionState.READY),
        ("c", STREAM, SubscriptionState.READY),
    }
    assert bench.tell(SubscriptionAsked(RegisterCall("op", {"a": QUEUE}))) == [Registered("op")], "safe to repeat"


def test_answers_are_decided_upon_when_none_of_their_operation_is_in_flight() -> None:
    bench = Bench(splitting())
    begun = bench.subscribe()
    first, second, third = [one.request for one in begun if isinstance(one, Ask)]
    assert bench.tell(Answered(first, Done())) == []
    assert [type(one) for one in bench.tell(Failed(second, HostUnavailable("down")))] == [CursorRest]
    assert bench.tell(Answered(third, Done())) == []
    (again,) = bench.tell(CursorRested(second))
    assert isinstance(again, Ask)
    assert bench.tell(Answered(again.request, Done())) == [Reply("call-s", None, 0)]


def test_planned_children_get_a_cursor_from_their_beginning() -> None:
    bench = Bench(splitting())
    begun = bench.subscribe()
    assert starts(begun) == {0: Start.LATEST, 1: Start.EARLIEST, 2: Start.EARLIEST}
    child = next(e.request for e in begun if isinstance(e, Ask) and e.request.segment.segment_id == 1)
    (rest,) = bench.tell(Failed(child, SegmentMissing("not yet")))
    assert isinstance(rest, CursorRest)
    seals = {0: Seal(3)}
    bench.tell(LayoutKnown(committed(splitting(), "op", seals, now_ms=3)))
    again = bench.tell(CursorRested(child))
    assert starts(again) == {1: Start.EARLIEST}  # active by now, and still from its beginning


def test_children_of_an_aborted_plan_need_no_cursor() -> None:
    bench = Bench(splitting())
    begun = bench.subscribe()
    for effect in begun:
        if isinstance(effect, Ask) and effect.request.segment.segment_id == 0:
            assert bench.tell(Answered(effect.request, Done())) == []
    record = aborted(splitting(), "op", now_ms=5, reason="no space")
    assert bench.tell(LayoutKnown(record)) == [Reply("call-s", None, 0)]


def test_subscription_beyond_the_limit_is_refused_existing_ones_are_not() -> None:
    bench = Bench(idle())
    bench.answer_all(bench.subscribe())
    (refusal,) = bench.tell(SubscriptionAsked(SubscribeCall("other", "t", STREAM, Start.LATEST, 1)))
    assert isinstance(refusal, Reply) and refusal.error is not None
    assert refusal.error.code == "too-many-subscriptions"
    (reply,) = bench.tell(SubscriptionAsked(SubscribeCall("again", "s", STREAM, Start.LATEST, 1)))
    assert reply == Reply("again", None, 0)
    assert bench.tell(SubscriptionAsked(SubscribeCall("room", "t", STREAM, Start.LATEST, 2))) != []


def test_first_subscribe_sets_type_and_start() -> None:
    bench = Bench(idle())
    bench.answer_all(bench.subscribe())
    (reply,) = bench.tell(SubscriptionAsked(SubscribeCall("again", "s", STREAM, Start.EARLIEST)))
    assert reply == Reply("again", None, 0)
    assert bench.stored is not None
    assert bench.stored.subscriptions["s"].start is Start.LATEST
    (refusal,) = bench.tell(SubscriptionAsked(SubscribeCall("other", "s", QUEUE, Start.LATEST)))
    assert isinstance(refusal, Reply)
    assert refusal.error is not None
    assert refusal.error.code == "subscription-of-other-type"


def test_checkpoint_groups_have_no_cursors() -> None:
    bench = Bench(idle())
    assert bench.subscribe(kind=SubscriptionKind.CHECKPOINT) == [Reply("call-s", None, 0)]
    assert bench.stored is not None
    assert bench.stored.cursors == frozenset()


def test_unsubscribe() -> None:
    bench = Bench(idle())
    bench.answer_all(bench.subscribe())
    begun = bench.tell(SubscriptionAsked(UnsubscribeCall("bye", "s")))
    assert begun[0] == AnnounceSubscriptions(frozenset())  # new segments get none before the old ones lose theirs
    assert bench.answer_all(begun) == [Reply("bye", None, 0)]
    assert bench.stored is not None
    assert bench.stored.subscriptions == {}


def test_next_leader_finishes_a_seek() -> None:
    bench = Bench(idle())
    bench.answer_all(bench.subscribe(kind=QUEUE))
    (ask,) = bench.tell(SubscriptionAsked(MoveCall("seek", "s", 77)))
    assert isinstance(ask, Ask)
    assert isinstance(ask.request, host.Seek)
    assert ask.request.generation == 0, "the consumers of a queue just come again"
    (busy,) = bench.tell(SubscriptionAsked(MoveCall("clear", "s", None)))
    assert isinstance(busy, Reply)
    assert busy.error is not None
    assert busy.error.retryable
    successor = Bench(idle(), 2, bench.stored)
    assert ask in successor.begun
    successor.answer_all(successor.begun)
    assert successor.stored is not None
    assert successor.stored.subscriptions["s"].move is None
    assert bench.tell(Answered(ask.request, Done())) == [Reply("seek", None, 0)]


class TestASeekInOrder:
    """No consumer reads from before the first cursor moves until after the last one has moved."""

    def begun(self) -> Bench:
        bench = Bench(committed(splitting(), "op", {0: Seal(3)}, now_ms=3))
        bench.answer_all(bench.subscribe())
        assert bench.tell(SubscriptionAsked(MoveCall("seek", "s", 77))) == [Halt("s", "seek")]
        return bench

    def test_no_cursor_moves_before_halted(self) -> None:
        bench = self.begun()
        assert bench.tell(LayoutKnown(committed(splitting(), "op", {0: Seal(3)}, now_ms=3))) == []
        asked = bench.tell(Halted("seek", 9))
        assert {e.request.segment.segment_id for e in asked if isinstance(e, Ask)} == {0, 1, 2}
        assert {e.request.generation for e in asked if isinstance(e, Ask) and isinstance(e.request, host.Seek)} == {9}

    def test_resume_follows_the_last_moved_cursor(self) -> None:
        bench = self.begun()
        asked = [e.request for e in bench.tell(Halted("seek", 9)) if isinstance(e, Ask)]
        moved = {0: host.Moved(False, 1), 1: host.Moved(False, 0), 2: host.Moved(False, 0)}
        for request in asked[1:]:
            assert bench.tell(Answered(request, moved[request.segment.segment_id])) == []
        last = asked[0]
        resume = bench.tell(Answered(last, moved[last.segment.segment_id]))
        assert resume == [Resume("s", "seek", moved)]
        assert bench.stored is not None
        assert bench.stored.subscriptions["s"].move is not None, "a successor would go on with it"
        assert bench.tell(LayoutKnown(committed(splitting(), "op", {0: Seal(3)}, now_ms=3))) == [], "asked once"
        assert bench.tell(Resumed("seek")) == [Reply("seek", None, 1)]
        assert bench.stored.subscriptions["s"].move is None

    def test_next_leader_repeats_the_halt(self) -> None:
        successor = Bench(committed(splitting(), "op", {0: Seal(3)}, now_ms=3), 2, self.begun().stored)
        assert [effect for effect in successor.begun if not isinstance(effect, AnnounceSubscriptions)] == [
            Halt("s", "seek")
        ]
        asked = [e.request for e in successor.tell(Halted("seek", 9)) if isinstance(e, Ask)]
        assert len(asked) == 3

    def test_next_leader_skips_a_finished_seek(self) -> None:
        successor = Bench(committed(splitting(), "op", {0: Seal(3)}, now_ms=3), 2, self.begun().stored)
        assert successor.tell(Resumed("seek")) == []
        assert successor.stored is not None
        assert successor.stored.subscriptions["s"].move is None

    def test_clear_backlog_halts_no_consumer(self) -> None:
        bench = Bench(idle())
        bench.answer_all(bench.subscribe())
        (ask,) = bench.tell(SubscriptionAsked(MoveCall("clear", "s", None)))
        assert isinstance(ask, Ask)
        assert isinstance(ask.request, host.ClearBacklog)


def test_seek_of_an_unknown_subscription_is_refused() -> None:
    (reply,) = Bench(idle()).tell(SubscriptionAsked(MoveCall("seek", "s", 77)))
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.code == "subscription-not-found"


def test_cursor_creation_is_retried() -> None:
    bench = Bench(idle())
    ask = bench.subscribe()[-1]
    assert isinstance(ask, Ask)
    for failures in (1, 2):
        assert bench.tell(Failed(ask.request, HostUnavailable("down"))) == [CursorRest(ask.request, failures)]
        assert bench.tell(CursorRested(ask.request)) == [ask]


def test_stale_term_makes_the_leader_step_down() -> None:
    bench = Bench(idle())
    bench.machine.handle(SubscriptionAsked(SubscribeCall("x", "s", STREAM, Start.LATEST)), 0)
    bench.machine.handle(RegistryDoubtful(), 0)
    effects = bench.machine.handle(RegistrySeen(Registry({}, 9, 4), 50), 0)
    assert [type(effect) for effect in effects] == [Reply, StepDown]


def test_registry_of_another_incarnation_is_replaced() -> None:
    old = Subscription("s", STREAM, Start.LATEST, SubscriptionState.READY, 0, 0, "call")
    bench = Bench(idle(), 2, Registry({"s": old}, 1, 3))
    assert bench.stored == Registry({}, 2, 4)


def test_registry_survives_encoding() -> None:
    name = "a/b%c#d é\N{GRINNING FACE}"
    one = Subscription(name, QUEUE, Start.EARLIEST, SubscriptionState.READY, 3, 4, "call", Move("m", None))
    registry = Registry({name: one}, 7, 8)
    assert Registry.decode(registry.encode()) == registry
    for data in (b"", b"[]", b"{}", b'{"subscriptions":{"a":1},"leaderTerm":1,"incarnation":1}'):
        with pytest.raises(BadRegistry):
            Registry.decode(data)
