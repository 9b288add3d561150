"""The operation workflow step by step: requests and writes, resumption by a new leader, abort."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.controller import segment_host as host
from anabranch.controller.events import StepDown
from anabranch.controller.records.topic_record import Outcome, Phase, TopicRecord
from anabranch.controller.segment_host import Done, HostError, HostUnavailable, SealFacts, SegmentRef, StaleTerm, Status
from anabranch.controller.topic.operation_events import (
    AnnounceDeleted,
    AnnounceLayout,
    AnnouncePlan,
    Answered,
    Ask,
    Asked,
    DeleteCall,
    Effect,
    Event,
    Failed,
    MergeCall,
    PolicyCall,
    PruneCall,
    ReadRecord,
    RecordDoubtful,
    RecordRemoved,
    RecordSaved,
    RecordSeen,
    RemoveRecord,
    Reply,
    Rest,
    Rested,
    SaveRecord,
    SplitCall,
    SubscriptionsKnown,
)
from anabranch.controller.topic.operation_workflow import CALLS_MAX, OperationWorkflow
from anabranch.model.layout import Layout, LayoutLimits
from anabranch.model.names import TopicName
from anabranch.model.position import Position

TOPIC = TopicName.parse("topic://public/default/orders")
LIMITS = LayoutLimits(segments_max=4, dag_depth_max=2)


class Bench:
    """One leader, answered by hand. `stored` is the record in the store."""

    def __init__(self, term: int, stored: TopicRecord, version: int = 1, **options: Any) -> None:
        self.machine = OperationWorkflow(TOPIC, term, limits=LIMITS, **options)
        self.stored, self.version, self.now_ms = stored, version, 1_000
        self.effects: list[Effect] = []
        assert self.machine.begin() == [ReadRecord()]

    def tell(self, event: Event) -> list[Effect]:
        """Saves are done at once; the other effects are given back."""
        left: list[Effect] = []
        events = [event]
        while events:
            for effect in self.machine.handle(events.pop(0), self.now_ms):
                if isinstance(effect, SaveRecord):
                    assert effect.expected == self.version
                    self.stored, self.version = effect.record, self.version + 1
                    events.append(RecordSaved(self.version))
                else:
                    left.append(effect)
        return left

    def lead(self, *subscriptions: str) -> list[Effect]:
        self.tell(RecordSeen(self.stored, self.version))
        return self.tell(SubscriptionsKnown(frozenset(subscriptions)))

    def answer(self, effect: Effect) -> list[Effect]:
        assert isinstance(effect, Ask)
        answer: host.Answer = Done()
        if isinstance(effect.request, host.Seal):
            answer = SealFacts(Position(7, 3), 1_234, effect.request.operation)
        return self.tell(Answered(effect.request, answer))


def new_record(segments: int = 1, term: int = 1) -> TopicRecord:
    return TopicRecord(Layout.initial(segments, now_ms=5), incarnation=9, leader_term=term)


def asked(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(type(e.request).__name__, e.request.segment.segment_id) for e in effects if isinstance(e, Ask)]


def kinds(effects: list[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


class TestSplit:
    def test_split_runs_all_phases_in_order(self) -> None:
        bench = Bench(1, new_record())
        bench.lead("a", "b")
        begun = bench.tell(Asked(SplitCall("op", 0)))
        assert asked(begun) == [("Create", 1), ("Create", 2)]
        assert AnnouncePlan in kinds(begun)
        assert bench.stored.operation is not None
        assert bench.stored.epoch == 0
        assert bench.stored.layout.next_segment_id == 3
        create = begun[-1]
        assert isinstance(create, Ask)
        assert isinstance(create.request, host.Create)
        assert {c.subscription for c in create.request.cursors} == {"a", "b"}
        assert {c.start for c in create.request.cursors} == {host.Start.EARLIEST}
        first, second = [e for e in begun if isinstance(e, Ask)]
        assert bench.answer(first) == []  # nothing is sealed before every child is there
        sealed = bench.answer(second)
        assert asked(sealed) == [("Seal", 0)]
        assert bench.machine.phase is Phase.SEAL
        done = bench.answer(sealed[0])
        assert kinds(done) == [AnnounceLayout, Reply]
        assert done[1] == Reply("op", None, 1)
        assert bench.stored.outcome("op") is Outcome.COMMITTED
        assert [s.segment_id for s in bench.stored.layout.active] == [1, 2]
        assert bench.stored.segments[0].last_position == Position(7, 3)
        assert bench.stored.segments[0].sealed_at_ms == 1_234

    def test_split_writes_the_record_twice(self) -> None:
        bench = Bench(1, new_record())
        bench.lead()
        before = bench.version
        ahead = [e for e in bench.tell(Asked(SplitCall("op", 0))) if isinstance(e, Ask)]
        while ahead:
            ahead += [e for e in bench.answer(ahead.pop()) if isinstance(e, Ask)]
        assert bench.stored.epoch == 1
        assert bench.version == before + 2

    def test_children_wait_for_the_known_subscriptions(self) -> None:
        bench = Bench(1, new_record())
        bench.tell(RecordSeen(bench.stored, bench.version))
        assert asked(bench.tell(Asked(SplitCall("op", 0)))) == []
        assert asked(bench.tell(SubscriptionsKnown(frozenset({"a"})))) == [("Create", 1), ("Create", 2)]

    def test_calls_run_one_after_another(self) -> None:
        bench = Bench(1, new_record(2))
        bench.lead()
        ahead = [e for e in bench.tell(Asked(SplitCall("one", 0))) if isinstance(e, Ask)]
        assert asked(bench.tell(Asked(SplitCall("two", 1)))) == []
        replies = []
        while ahead:
            effects = bench.answer(ahead.pop(0))
            replies += [e.operation_id for e in effects if isinstance(e, Reply)]
            ahead += [e for e in effects if isinstance(e, Ask)]
        assert replies == ["one", "two"]
        assert bench.stored.epoch == 2

    def test_impossible_call_is_refused(self) -> None:
        bench = Bench(1, new_record(3))
        bench.lead()
        for call, code in (
            (SplitCall("a", 77), "unknown-segment"),
            (SplitCall("b", 0, ways=3), "too-many-segments"),
            (MergeCall("c", (0, 2)), "bad-merge"),
        ):
            (reply,) = bench.tell(Asked(call))
            assert isinstance(reply, Reply)
            assert reply.error is not None
            assert reply.error.code == code
        assert bench.stored.operation is None


class TestCrash:
    def planned(self) -> Bench:
        bench = Bench(1, new_record())
        bench.lead("a")
        bench.tell(Asked(SplitCall("op", 0)))
        return bench

    def test_next_leader_continues_with_the_same_children(self) -> None:
        successor = Bench(2, self.planned().stored)
        assert asked(successor.lead("a", "b")) == [("Create", 1), ("Create", 2)]
        assert successor.stored.leader_term == 2

    def test_old_leader_steps_down(self) -> None:
        old = self.planned()
        successor = Bench(2, old.stored)
        successor.lead()
        effects = old.tell(RecordSeen(successor.stored, 99))
        assert kinds(effects) == [Reply, StepDown]
        (late,) = old.tell(Asked(SplitCall("x", 0)))
        assert isinstance(late, Reply)
        assert late.error is not None
        assert late.error.code == "not-leader"

    def test_stale_term_of_an_owner_makes_the_leader_step_down(self) -> None:
        bench = self.planned()
        request = host.Create("op", SegmentRef(TOPIC, 9, 1), ())
        assert kinds(bench.tell(Failed(request, StaleTerm("2 has spoken")))) == [Reply, StepDown]

    @pytest.mark.parametrize("is_applied", [True, False])
    def test_doubtful_plan_is_settled_by_a_read(self, is_applied: bool) -> None:
        bench = Bench(1, new_record())
        bench.lead()
        (save,) = bench.machine.handle(Asked(SplitCall("op", 0)), 1_000)
        assert isinstance(save, SaveRecord)
        assert bench.machine.handle(RecordDoubtful(), 1_000) == [ReadRecord()]
        if is_applied:
            bench.stored, bench.version = save.record, bench.version + 1
        effects = bench.tell(RecordSeen(bench.stored, bench.version))
        assert asked(effects) == [("Create", 1), ("Create", 2)]
        assert bench.stored.layout.next_segment_id == 3

    @pytest.mark.parametrize("is_applied", [True, False])
    def test_doubtful_commit_is_settled_by_a_read(self, is_applied: bool) -> None:
        bench = self.planned()
        for one in (1, 2):
            bench.tell(Answered(host.Create("op", SegmentRef(TOPIC, 9, one), ()), Done()))
        facts = SealFacts(Position(0, 0), 5, "op")
        (save,) = bench.machine.handle(Answered(host.Seal("op", SegmentRef(TOPIC, 9, 0), ()), facts), 1_000)
        assert isinstance(save, SaveRecord)
        assert bench.machine.handle(RecordDoubtful(), 1_000) == [ReadRecord()]
        if is_applied:
            bench.stored, bench.version = save.record, bench.version + 1
        effects = bench.tell(RecordSeen(bench.stored, bench.version))
        assert effects[-1] == Reply("op", None, 1)
        assert bench.stored.epoch == 1


class TestAbort:
    def begun(self, **options: Any) -> tuple[Bench, list[Ask]]:
        bench = Bench(1, new_record(), **options)
        bench.lead("a")
        return bench, [e for e in bench.tell(Asked(SplitCall("op", 0))) if isinstance(e, Ask)]

    def test_abort_fences_the_parents_first(self) -> None:
        bench, (first, _) = self.begun()
        fence = bench.tell(Failed(first.request, HostError("no space")))
        assert asked(fence) == [("Fence", 0)]
        assert bench.stored.operation is not None
        assert isinstance(fence[0], Ask)
        done = bench.tell(Answered(fence[0].request, Status(exists=True)))
        assert bench.stored.outcome("op") is Outcome.ABORTED
        assert asked(done) == [("Delete", 1), ("Delete", 2)]
        (reply,) = [e for e in done if isinstance(e, Reply)]
        assert reply.error is not None
        assert reply.error.code == "operation-aborted"
        assert AnnounceLayout in kinds(done)  # planned children no longer belong to the topic
        for effect in done:
            if isinstance(effect, Ask):
                bench.answer(effect)
        assert bench.stored.garbage == ()
        assert bench.stored.epoch == 0

    def test_abort_rolls_forward_if_a_parent_is_sealed(self) -> None:
        """A predecessor got further than the successor could know."""
        bench, (first, second) = self.begun()
        fence = bench.tell(Failed(first.request, HostError("no space")))
        assert isinstance(fence[0], Ask)
        sealed = Status(exists=True, sealed=SealFacts(Position(0, 1), 7, "op"))
        assert asked(bench.tell(Answered(fence[0].request, sealed))) == [("Create", 1)]
        bench.answer(second)
        bench.answer(first)
        assert bench.stored.outcome("op") is Outcome.COMMITTED

    def test_no_abort_after_a_seal_request(self) -> None:
        bench, (first, second) = self.begun(create_ms_max=10)
        bench.answer(first)
        (seal,) = bench.answer(second)
        assert isinstance(seal, Ask)
        bench.now_ms += 1_000_000
        (rest,) = bench.tell(Failed(seal.request, HostUnavailable("down")))
        assert rest == Rest(seal.request, 1)
        assert asked(bench.tell(Rested(seal.request))) == [("Seal", 0)]

    def test_operation_is_aborted_when_children_take_too_long(self) -> None:
        bench, (first, _) = self.begun(create_ms_max=10)
        (rest,) = bench.tell(Failed(first.request, HostUnavailable("down")))
        assert isinstance(rest, Rest)
        bench.now_ms += 11
        assert asked(bench.tell(Rested(first.request))) == [("Fence", 0)]

    def test_seal_phase_is_stored_for_hosts_without_fencing(self) -> None:
        bench, (first, second) = self.begun(journals_seal=True)
        bench.answer(first)
        assert asked(bench.answer(second)) == [("Seal", 0)]
        assert bench.stored.operation is not None
        assert bench.stored.operation.phase is Phase.SEAL


def test_new_topic_gets_segments_before_its_first_term() -> None:
    bench = Bench(1, new_record(2, term=0))
    made = bench.tell(RecordSeen(bench.stored, bench.version))
    assert asked(made) == [("Create", 0), ("Create", 1)]
    assert bench.stored.leader_term == 0
    bench.answer(made[0])
    assert kinds(bench.answer(made[1])) == [AnnounceLayout]
    assert bench.stored.leader_term == 1


def test_prune_is_swept_after_the_deletion() -> None:
    bench = Bench(1, new_record())
    bench.lead()
    ahead = [e for e in bench.tell(Asked(SplitCall("op", 0))) if isinstance(e, Ask)]
    while ahead:
        ahead += [e for e in bench.answer(ahead.pop()) if isinstance(e, Ask)]
    effects = bench.tell(Asked(PruneCall("gc", (0,))))
    assert asked(effects) == [("Delete", 0)]
    assert [s.segment_id for s in bench.stored.garbage] == [0]
    (delete,) = [e for e in effects if isinstance(e, Ask)]
    (rest,) = bench.tell(Failed(delete.request, HostUnavailable("down")))
    assert isinstance(rest, Rest)
    again = bench.tell(Rested(delete.request))
    bench.answer(again[0])
    assert bench.stored.garbage == ()


def test_next_leader_finishes_a_deletion() -> None:
    bench = Bench(1, new_record(2))
    bench.lead()
    assert asked(bench.tell(Asked(DeleteCall("bye")))) == [("Delete", 0), ("Delete", 1)]
    assert bench.stored.is_deleting
    successor = Bench(2, bench.stored, bench.version)
    effects = successor.tell(RecordSeen(successor.stored, successor.version))
    assert asked(effects) == [("Delete", 0), ("Delete", 1)]
    assert successor.answer(effects[0]) == []
    assert successor.answer(effects[1]) == [RemoveRecord(9, successor.version)]
    assert successor.tell(RecordRemoved()) == [AnnounceDeleted()]


def test_repeated_delete_leaves_the_next_incarnation() -> None:
    bench = Bench(1, new_record())
    bench.lead()
    (reply,) = bench.tell(Asked(DeleteCall("bye", incarnation=8)))
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.code == "topic-not-found"
    assert not bench.stored.is_deleting


def test_call_above_the_queue_limit_is_refused() -> None:
    bench = Bench(1, new_record())
    bench.lead()
    for number in range(CALLS_MAX):
        bench.tell(Asked(SplitCall(f"op-{number}", 0)))
    (reply,) = bench.tell(Asked(SplitCall("one too many", 0)))
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.code == "operation-running"
    assert bench.tell(Asked(SplitCall("op-1", 0))) == []  # it waits already


class TestPolicy:
    def test_policy_is_written_at_the_same_epoch_and_answered(self) -> None:
        bench = Bench(1, new_record())
        bench.lead()
        assert bench.tell(Asked(PolicyCall("p", {"maxSegments": 2}))) == [Reply("p", None, 0)]
        assert bench.stored.auto_scale_policy == {"maxSegments": 2}
        assert bench.tell(Asked(PolicyCall("q", None))) == [Reply("q", None, 0)]
        assert (bench.stored.auto_scale_policy, bench.stored.epoch) == (None, 0)

    def test_policy_that_is_set_already_is_not_written_again(self) -> None:
        bench = Bench(1, new_record())
        bench.lead()
        bench.tell(Asked(PolicyCall("p", {"maxSegments": 2})))
        before = bench.version
        assert bench.tell(Asked(PolicyCall("q", {"maxSegments": 2}))) == [Reply("q", None, 0)]
        assert bench.version == before

    def test_policy_waits_for_the_running_split_and_both_are_in_the_record(self) -> None:
        bench = Bench(1, new_record())
        bench.lead()
        ahead = [e for e in bench.tell(Asked(SplitCall("op", 0))) if isinstance(e, Ask)]
        assert bench.tell(Asked(PolicyCall("p", {"maxSegments": 2}))) == []
        replies: list[Effect] = []
        while ahead:
            found = bench.answer(ahead.pop(0))
            ahead += [e for e in found if isinstance(e, Ask)]
            replies += [e for e in found if isinstance(e, Reply)]
        assert replies == [Reply("op", None, 1), Reply("p", None, 1)]
        assert (bench.stored.epoch, bench.stored.auto_scale_policy) == (1, {"maxSegments": 2})

    def test_write_with_unknown_outcome_is_settled_by_reading_again(self) -> None:
        bench = Bench(1, new_record())
        bench.lead()
        saved = bench.machine.handle(Asked(PolicyCall("p", {"maxSegments": 2})), 2_000)
        assert [type(one) for one in saved] == [SaveRecord]
        assert isinstance(saved[0], SaveRecord)
        assert bench.machine.handle(RecordDoubtful(), 2_001) == [ReadRecord()]
        found = bench.machine.handle(RecordSeen(saved[0].record, bench.version + 1), 2_002)
        assert Reply("p", None, 0) in found
