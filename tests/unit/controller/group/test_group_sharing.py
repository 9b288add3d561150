"""A group whose members share a segment by entry buckets: what is durable, what a new leader does, who is closed."""

from __future__ import annotations

from anabranch.controller.group.assignment import AwaitRelease, Holding, Released
from anabranch.controller.group.consumer_sessions import Disconnected, LeftCleanly, Registered, Ticked
from anabranch.controller.group.drain_tracker import LayoutChanged
from anabranch.controller.group.group_events import CloseConsumer, ConsumerClosed, Effect, Push, ReleaseOverdue
from anabranch.controller.group.group_record import GroupRecord
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.replacement import plan_split, replaced, reserved
from anabranch.model.segment import Seal
from tests.unit.controller.group.test_group_state import Bench

FOUR = (0, 1, 2, 3)


def one() -> Layout:
    return Layout.initial(1, now_ms=0, bucket_budget=4)


def sharer(name: str, connection: int) -> Registered:
    return Registered(name, connection, continues=True, shares=True)


def buckets(effects: list[Effect]) -> dict[str, dict[int, tuple[int, ...]]]:
    return {effect.consumer: dict(effect.buckets) for effect in effects if isinstance(effect, Push)}


def led(*names: str) -> Bench:
    bench = Bench()
    bench.lead(one())
    for connection, name in enumerate(names, 7):
        bench.tell(sharer(name, connection))
    return bench


def test_a_member_that_can_share_claims_all_buckets_while_it_is_alone() -> None:
    bench = Bench()
    bench.lead(one())
    assert buckets(bench.tell(sharer("a", 7))) == {"a": {0: FOUR}}
    assert bench.group.assignment.shares == {}


def test_a_second_member_gets_half_of_them_at_once_under_the_same_generation() -> None:
    bench = led("a")
    effects = bench.tell(sharer("b", 8))
    assert buckets(effects) == {"a": {0: (0, 1)}, "b": {0: (2, 3)}}
    assert len({effect.generation for effect in effects if isinstance(effect, Push)}) == 1
    assert not [effect for effect in effects if isinstance(effect, AwaitRelease)], "no release is awaited"


def test_a_new_leader_moves_no_share() -> None:
    bench = led("a", "b", "c")
    before = dict(bench.group.assignment.shares)
    assert bench.stored is not None
    again = Bench(2, GroupRecord.decode(bench.stored.encode()), bench.version)
    again.lead(one())
    assert again.group.assignment.shares == before
    assert buckets(again.tell(sharer("b", 9))) == {"b": {0: before[0]["b"]}}


def test_shares_wait_for_a_lost_connection_and_move_when_the_consumer_is_closed_everywhere() -> None:
    bench = led("a", "b")
    assert bench.tell(Disconnected(8)) != []
    assert bench.group.assignment.shares[0]["b"] == (2, 3)
    bench.now_ms = 100
    (close,) = [effect for effect in bench.tell(Ticked()) if isinstance(effect, CloseConsumer)]
    assert (close.consumer, close.segment_id) == ("b", None)
    assert bench.group.assignment.shares[0]["b"] == (2, 3), "still its own until owners have confirmed"
    assert buckets(bench.tell(ConsumerClosed(close))) == {"a": {0: FOUR}}


def test_a_lost_owner_keeps_its_share_and_the_others_theirs_until_it_is_closed() -> None:
    bench = led("a", "b", "c")
    before = bench.group.assignment.shares[0]
    bench.tell(Disconnected(7))
    bench.now_ms = 100
    (close,) = [effect for effect in bench.tell(Ticked()) if isinstance(effect, CloseConsumer)]
    assert bench.group.assignment.shares[0] == before
    assert set(buckets(bench.tell(ConsumerClosed(close)))) == {"b", "c"}


def test_shares_of_a_member_that_leaves_move_at_once() -> None:
    bench = led("a", "b", "c")
    assert buckets(bench.tell(LeftCleanly("a", 7))) == {"b": {0: (0, 2)}, "c": {0: (1, 3)}}
    assert bench.group.assignment.owner(0) in ("b", "c")


def test_a_share_that_is_not_released_in_time_is_closed_alone() -> None:
    bench = led("a", "b")
    bench.tell(Released("b", 0, 99))  # nothing was revoked: ignored
    assert bench.group.assignment.shares[0] == {"a": (0, 1), "b": (2, 3)}
    effects = bench.tell(Registered("b", 9, shares=False))  # it came back without fan-out
    (due,) = [effect for effect in effects if isinstance(effect, AwaitRelease)]
    assert (due.segment_id, due.consumer) == (0, "b")
    assert buckets(effects)["a"] == {0: FOUR}
    (close,) = bench.tell(ReleaseOverdue(0, due.generation, "b"))
    assert isinstance(close, CloseConsumer)
    assert (close.consumer, close.segment_id) == ("b", 0)
    bench.tell(ConsumerClosed(close))
    assert bench.group.assignment.awaited() == []


def test_children_of_a_shared_segment_wait_until_it_is_drained() -> None:
    """The same-consumer continuation needs all keys of the parent at one consumer."""
    bench = led("a", "b")
    layout = one()
    plan = plan_split(layout, 0, now_ms=1, limits=NO_LIMITS)
    split = replaced(reserved(layout, plan), plan, {0: Seal(5)})
    bench.tell(LayoutChanged(split))
    assert bench.group.assignment.following == {}
    assert set(bench.group.waiting) == {1, 2}
    assert bench.group.assignment.shares[0] == {"a": (0, 1), "b": (2, 3)}


def test_a_released_share_is_forgotten() -> None:
    bench = led("a", "b")
    effects = bench.tell(Registered("b", 9, shares=False))
    (due,) = [effect for effect in effects if isinstance(effect, AwaitRelease)]
    bench.tell(Holding("b", due.generation, frozenset(), 9))
    assert bench.group.assignment.awaited() == []
