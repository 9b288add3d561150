"""Migration in the operation workflow: adoption, subscriptions, children, seals, commit; undo; the next leader."""

from __future__ import annotations

import pytest

from anabranch.controller import segment_host as host
from anabranch.controller.events import StepDown, TopicGone
from anabranch.controller.records.subscription_registry import SubscriptionKind
from anabranch.controller.records.topic_record import (
    MigratedFrom,
    MigrationOptions,
    Outcome,
    TopicRecord,
    migration_planned,
)
from anabranch.controller.segment_host import (
    Adopted,
    Done,
    HostUnavailable,
    NotPlanned,
    OldClient,
    SealFacts,
    Start,
    Status,
)
from anabranch.controller.topic.operation_events import (
    AnnounceDeleted,
    AnnounceLayout,
    AnnouncePlan,
    Answered,
    Ask,
    Asked,
    DeleteCall,
    Effect,
    Failed,
    MigrationCall,
    MigrationUndone,
    RecordRemoved,
    RecordSeen,
    RegisterSubscriptions,
    RemoveRecord,
    Reply,
    Rest,
    Rested,
    SplitCall,
    SubscriptionsKnown,
    SubscriptionsRegistered,
)
from anabranch.model.position import Position
from anabranch.model.routing import MOD_N
from tests.unit.controller.topic.test_operation_workflow import Bench, asked, kinds

OLD = "persistent://public/default/orders"
CLIENT = OldClient("producer", "p", "10.0.0.7:1", "Pulsar-Java-v3")
SEAL = SealFacts(Position(7, 3), 1_234, "op")


def plan(partitions: int = 2, **options: object) -> TopicRecord:
    return migration_planned(
        MigratedFrom(OLD, partitions, 5),
        "op",
        incarnation=9,
        epoch=2,
        routing=MOD_N,
        options=MigrationOptions(**options),  # type: ignore[arg-type]  # options by name
    )


def requests(effects: list[Effect]) -> list[host.Request]:
    return [effect.request for effect in effects if isinstance(effect, Ask)]


def answer_all(bench: Bench, effects: list[Effect], answer: host.Answer) -> list[Effect]:
    left: list[Effect] = []
    for request in requests(effects):
        left += bench.tell(Answered(request, answer))
    return left


def adopted(bench: Bench, effects: list[Effect], *subscriptions: tuple[str, bool]) -> list[Effect]:
    return answer_all(bench, effects, Adopted((), subscriptions))


class TestForward:
    def test_migration_runs_all_steps_in_order(self) -> None:
        bench = Bench(1, plan())
        assert kinds(bench.tell(RecordSeen(bench.stored, 1))) == [AnnouncePlan]
        begun = bench.tell(SubscriptionsKnown(frozenset()))
        assert asked(begun) == [("Adopt", 0), ("Adopt", 1)]
        assert [str(one.segment.name) for one in requests(begun)] == [f"{OLD}-partition-0", f"{OLD}-partition-1"]
        assert bench.tell(Asked(MigrationCall("op"))) == []
        registers = adopted(bench, begun, ("a", False), ("w", True))
        wanted = {"a": SubscriptionKind.STREAM, "w": SubscriptionKind.QUEUE}
        assert registers == [RegisterSubscriptions("op", wanted)]
        assert bench.tell(SubscriptionsKnown(frozenset({"a"}))) == []
        creates = bench.tell(SubscriptionsKnown(frozenset({"a", "w"})))
        assert asked(creates) == [("Create", 2), ("Create", 3)]
        create = requests(creates)[0]
        assert isinstance(create, host.Create)
        assert {(one.subscription, one.start) for one in create.cursors} == {
            ("a", Start.EARLIEST), ("w", Start.EARLIEST)
        }  # fmt: skip
        seals = answer_all(bench, creates, Done())
        assert asked(seals) == [("Seal", 0), ("Seal", 1)]
        done = answer_all(bench, seals, SEAL)
        assert kinds(done) == [AnnounceLayout, Reply]
        assert done[1] == Reply("op", None, 3)
        assert bench.stored.outcome("op") is Outcome.COMMITTED
        assert [one.segment_id for one in bench.stored.layout.active] == [2, 3]

    def test_topic_without_subscriptions_needs_no_registration(self) -> None:
        bench = Bench(1, plan(0))
        assert asked(adopted(bench, bench.lead())) == [("Create", 1)]

    def test_partitions_without_some_subscription_get_it_in_one_request_before_registration(self) -> None:
        bench = Bench(1, plan(3))
        first, second, third = requests(bench.lead())
        bench.tell(Answered(first, Adopted((), (("a", False), ("b", False), ("c", False)))))
        bench.tell(Answered(second, Adopted((), (("c", False),))))
        creates = bench.tell(Answered(third, Adopted((), (("a", False), ("b", False), ("c", False)))))
        (create,) = requests(creates)
        assert isinstance(create, host.Create)
        assert create.segment.segment_id == 1
        assert [(one.subscription, one.start) for one in create.cursors] == [
            ("a", Start.EARLIEST), ("b", Start.EARLIEST)
        ]  # fmt: skip
        assert kinds(bench.tell(Answered(create, Done()))) == [RegisterSubscriptions]

    def test_subscription_that_is_deleted_after_its_registration_is_not_waited_for(self) -> None:
        bench = Bench(1, plan(0))
        assert kinds(adopted(bench, bench.lead(), ("a", False))) == [RegisterSubscriptions]
        assert asked(bench.tell(SubscriptionsRegistered("op"))) == [("Create", 1)]

    def test_chosen_kind_wins_over_that_of_the_consumers(self) -> None:
        bench = Bench(1, plan(kinds={"a": "QUEUE"}))
        registers = adopted(bench, bench.lead(), ("a", False))
        assert registers == [RegisterSubscriptions("op", {"a": SubscriptionKind.QUEUE})]

    def test_subscription_that_is_shared_on_one_partition_is_a_queue(self) -> None:
        bench = Bench(1, plan())
        first, second = requests(bench.lead())
        bench.tell(Answered(first, Adopted((), (("a", True),))))
        registers = bench.tell(Answered(second, Adopted((), (("a", False),))))
        assert registers == [RegisterSubscriptions("op", {"a": SubscriptionKind.QUEUE})]

    def test_forced_migration_tells_the_owners_to_close_clients(self) -> None:
        bench = Bench(1, plan(force=True))
        assert all(isinstance(one, host.Adopt) and one.force for one in requests(bench.lead()))

    def test_other_operations_wait_until_it_is_over(self) -> None:
        bench = Bench(1, plan())
        begun = bench.lead()
        assert bench.tell(Asked(SplitCall("split", 2))) == []
        creates = adopted(bench, begun)
        done = answer_all(bench, answer_all(bench, creates, Done()), SEAL)
        assert ("Create", 4) in asked(done), "the split of a child begins"


def step(bench: Bench) -> tuple[str, int, int] | None:
    found = bench.machine.migration_step
    return None if found is None else (found.name, found.done, found.total)


class TestStep:
    def test_step_counts_partitions_and_segments_through_a_migration(self) -> None:
        bench = Bench(1, plan(3))
        assert step(bench) is None
        first, second, third = requests(bench.lead())
        assert step(bench) == ("ADOPT", 0, 3)
        bench.tell(Answered(first, Adopted((), (("a", False),))))
        assert step(bench) == ("ADOPT", 1, 3)
        bench.tell(Answered(second, Adopted()))
        creates = bench.tell(Answered(third, Adopted((), (("a", False),))))
        assert step(bench) == ("REGISTER", 2, 3)
        answer_all(bench, creates, Done())
        assert step(bench) == ("REGISTER", 3, 3)
        creates = bench.tell(SubscriptionsRegistered("op"))
        bench.tell(Answered(requests(creates)[0], Done()))
        assert step(bench) == ("CREATE", 1, 3)
        seals = [one for request in requests(creates)[1:] for one in bench.tell(Answered(request, Done()))]
        bench.tell(Answered(requests(seals)[0], SEAL))
        assert step(bench) == ("SEAL", 1, 3)
        answer_all(bench, seals[1:], SEAL)
        assert step(bench) is None

    def test_step_of_an_undo_counts_what_is_released_or_deleted(self) -> None:
        bench = Bench(5, undone_record())
        releases = bench.tell(RecordSeen(bench.stored, 1))
        assert step(bench) == ("UNDO", 0, 4)
        bench.tell(Answered(requests(releases)[0], Done()))
        assert step(bench) == ("UNDO", 1, 4)

    def test_split_has_none(self) -> None:
        bench = Bench(1, plan())
        answer_all(bench, answer_all(bench, adopted(bench, bench.lead()), Done()), SEAL)
        bench.tell(Asked(SplitCall("split", 2)))
        assert bench.stored.operation is not None
        assert step(bench) is None


class TestNextLeader:
    def test_next_leader_adopts_again_and_goes_on(self) -> None:
        bench = Bench(2, plan())
        begun = bench.lead("a")  # registered by the former leader
        assert asked(adopted(bench, begun, ("a", False))) == [("Create", 2), ("Create", 3)]

    def test_next_leader_of_a_sealed_partition_rolls_forward_after_the_time_to_create(self) -> None:
        bench = Bench(2, plan())
        creates = adopted(bench, bench.lead())
        bench.now_ms += 60_000
        fences = bench.tell(Failed(requests(creates)[0], HostUnavailable("down")))
        assert [one for one in asked(fences) if one[0] == "Fence"] == [("Fence", 0), ("Fence", 1)]
        wanted = [one for one in requests(fences) if isinstance(one, host.Fence)]
        bench.tell(Answered(wanted[0], Status(True, SEAL)))
        on = bench.tell(Answered(wanted[1], Status(True)))
        on += bench.tell(Rested(requests(creates)[0]))
        assert bench.stored.is_migrating
        assert not bench.stored.is_deleting
        assert ("Create", 2) in asked(on)

    def test_next_leader_continues_an_undo(self) -> None:
        bench = Bench(5, undone_record())
        releases = bench.tell(RecordSeen(bench.stored, 1))
        assert asked(releases) == [("Release", 0), ("Release", 1), ("Delete", 2), ("Delete", 3)]


def undone_record() -> TopicRecord:
    bench = Bench(1, plan())
    begun = bench.lead()
    fences = answer_all(bench, begun, Adopted((CLIENT,)))
    answer_all(bench, fences, Status(True))
    assert bench.stored.is_deleting
    return bench.stored


class TestUndo:
    def test_client_that_cannot_follow_undoes_it(self) -> None:
        bench = Bench(1, plan())
        begun = bench.lead()
        bench.tell(Asked(MigrationCall("op")))
        first, second = requests(begun)
        assert bench.tell(Answered(first, Adopted((CLIENT,)))) == []
        fences = bench.tell(Answered(second, Adopted()))
        assert asked(fences) == [("Fence", 0), ("Fence", 1)]
        releases = answer_all(bench, fences, Status(True))
        assert asked(releases) == [("Release", 0), ("Release", 1), ("Delete", 2), ("Delete", 3)]
        assert bench.stored.is_deleting, "the undo is durable before the first partition is released"
        removal = answer_all(bench, releases, Done())
        assert kinds(removal) == [RemoveRecord]
        ended = bench.tell(RecordRemoved())
        assert kinds(ended) == [AnnounceDeleted, Reply]
        reply = ended[1]
        assert isinstance(reply, Reply)
        assert isinstance(reply.error, MigrationUndone)
        assert str(CLIENT) in reply.error.reason

    def test_record_is_removed_only_when_every_partition_is_released(self) -> None:
        bench = Bench(3, undone_record())
        releases = bench.tell(RecordSeen(bench.stored, 1))
        left = [one for one in requests(releases) if one.segment.segment_id != 1]
        for request in left:
            assert bench.tell(Answered(request, Done())) == []
        last = next(one for one in requests(releases) if one.segment.segment_id == 1)
        rest = bench.tell(Failed(last, HostUnavailable("down")))
        assert kinds(rest) == [Rest]
        again = bench.tell(Rested(last))
        assert kinds(bench.tell(Answered(requests(again)[0], Done()))) == [RemoveRecord]

    @pytest.mark.parametrize("error", [NotPlanned("terminated"), NotPlanned("does not exist")])
    def test_partition_that_cannot_be_adopted_undoes_it(self, error: NotPlanned) -> None:
        bench = Bench(1, plan())
        first, _ = requests(bench.lead())
        fences = bench.tell(Failed(first, error))
        assert asked(fences) == [("Fence", 0), ("Fence", 1)]
        answer_all(bench, fences, Status(False))
        assert bench.stored.is_deleting
        assert bench.stored.operation is not None
        assert error.reason in bench.stored.operation.reason

    def test_migration_that_the_store_no_longer_allows_is_undone_before_any_request(self) -> None:
        bench = Bench(1, plan())
        bench.machine.forbid_migration("the number of partitions has changed")
        assert asked(bench.lead()) == [("Fence", 0), ("Fence", 1)]

    def test_nothing_is_undone_after_the_first_seal(self) -> None:
        bench = Bench(1, plan())
        seals = answer_all(bench, adopted(bench, bench.lead()), Done())
        bench.now_ms += 60_000
        assert kinds(bench.tell(Failed(requests(seals)[0], HostUnavailable("down")))) == [Rest]
        assert not bench.stored.is_deleting

    def test_topic_is_gone_for_other_calls_but_a_deletion_is_told_that_it_was_undone(self) -> None:
        bench = Bench(4, undone_record())
        releases = bench.tell(RecordSeen(bench.stored, 1))
        bench.tell(Asked(DeleteCall("delete")))
        answer_all(bench, releases, Done())
        (reply,) = [one for one in bench.tell(RecordRemoved()) if isinstance(one, Reply)]
        assert isinstance(reply.error, MigrationUndone)


def test_late_call_for_a_finished_migration_is_refused() -> None:
    bench = Bench(1, plan())
    answer_all(bench, answer_all(bench, adopted(bench, bench.lead()), Done()), SEAL)
    (reply,) = bench.tell(Asked(MigrationCall("other")))
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert not isinstance(reply.error, TopicGone | MigrationUndone)


def test_leader_of_a_lower_term_steps_down() -> None:
    bench = Bench(1, plan())
    first, _ = requests(bench.lead())
    assert StepDown in kinds(bench.tell(Failed(first, host.StaleTerm("term 2"))))
