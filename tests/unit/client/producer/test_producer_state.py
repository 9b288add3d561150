"""A producer's segment lanes when segments are split and merged: every interleaving of the relevant events.

The brokers are the model of `tests.support.models.producer_model`; its oracle reads what they stored, ancestors first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations, product

import pytest

from anabranch.client.config import Batching
from anabranch.client.errors import Closed, NotAuthorized, TimedOut
from anabranch.client.messages.outgoing import OutgoingMessage
from anabranch.client.producer.ancestry import Ancestor, Ancestry, successors
from anabranch.client.producer.producer_effects import AskLayout, CloseRequest, Drop, On, Open, Reopen, SegmentLane
from anabranch.client.producer.producer_state import ProducerState
from anabranch.client.producer.segment_producer_state import Failed, SegmentProducerState, Stored
from anabranch.client.producer.segment_router import SegmentRouter
from anabranch.client.topic.topic_view import Plan, TopicView, synthetic_view, with_partition_hash
from anabranch.model.hashrange import FULL, HashRange
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.replacement import plan_migration
from anabranch.model.routing import MOD_N, RANGE_HIGH16, RANGE_LOW16, RingHash, Routing, key_hash
from tests.support.models.layout_histories import applied, merge, split
from tests.support.models.producer_model import HASHES, KEYS, MAX_BYTES, TOPIC, ProducerWorld

REGULAR = TopicName.parse("persistent://public/default/x")


def attached(world: ProducerWorld) -> list[SegmentLane]:
    for track in list(world.lines):
        world.ask(track)
        world.receive(track, 10)
    return list(world.lines)


def send_all(world: ProducerWorld, rounds: int = 2) -> None:
    for _ in range(rounds):
        for key in KEYS[:5]:
            world.send(key)
    world.flush()


# -- one split: where the seal falls between the receipts, whose connection breaks, when the layout comes


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "foreign"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layout", ["plan", "early", "late", "missing"])
@pytest.mark.parametrize("cut", ["no", "before", "after"])
def test_scenario_30_a_split_between_any_two_receipts(is_ours: bool, batch: int, layout: str, cut: str) -> None:
    for stored in range(11):
        for received in {0, stored // 2, stored}:
            world = ProducerWorld(batch=batch, is_ours=is_ours)
            (parent,) = attached(world)
            send_all(world)
            world.split(0)
            if layout == "plan":
                world.show(plan=True)
                attached(world)
            world.serve(parent, stored)
            world.receive(parent, received)
            if cut == "before":
                world.cut(parent)
            world.seal(0)
            world.commit()
            if layout in ("early", "plan"):
                world.show()
            send_all(world, 1)
            if cut == "after":
                world.cut(parent)
            world.receive(parent, 100)
            if layout == "late":
                attached(world)
                world.show()
            send_all(world, 1)
            world.settle()
            world.check()


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "foreign"])
@pytest.mark.parametrize("order", list(permutations(["seal-0", "seal-1", "hear-0", "hear-1", "show"])))
def test_scenario_31_a_merge_in_any_order(is_ours: bool, order: tuple[str, ...]) -> None:
    for cut in (None, 0, 1):
        world = ProducerWorld(segments=2, batch=2, is_ours=is_ours)
        parents = attached(world)
        send_all(world)
        for track in parents:
            world.serve(track, 3)
        world.merge(0, 1)
        for moment in order:
            name, _, number = moment.partition("-")
            if name == "seal":
                world.seal(int(number))
            elif name == "hear":
                world.receive(parents[int(number)], 5)
            else:
                world.commit()
                world.show()
            send_all(world, 1)
            if cut is not None:
                world.cut(parents[cut])
        world.settle()
        world.check()


@pytest.mark.parametrize("answers", list(product([True, False], repeat=3)))
def test_scenario_32_no_duplicates_over_two_generations_and_cut_lines(answers: tuple[bool, ...]) -> None:
    """Split, split again, merge - each while every connection is cut before its receipts."""
    world = ProducerWorld(batch=2)
    changes: list[Callable[[], None]] = [lambda: world.split(0), lambda: world.split(1, 3), lambda: world.merge(5, 2)]
    for change, is_answered in zip(changes, answers, strict=True):
        for track in attached(world):
            send_all(world, 1)
            world.serve(track, 4)
            if is_answered:
                world.receive(track, 2)
        change()
        for track in list(world.lines):
            world.cut(track)
        world.commit()
        send_all(world, 1)
        world.show()
    world.settle()
    world.check(is_exact=True)


# -- single rules


def record(key: str | None, order: int, **fields: object) -> OutgoingMessage:
    hashed = -1 if key is None else HASHES[key]
    return OutgoingMessage(order, b"x", key, hash=hashed, order=order, **fields)  # type: ignore[arg-type]  # fields of OutgoingMessage


def state_on(view: TopicView) -> tuple[ProducerState, list[SegmentLane]]:
    state = ProducerState(lambda: SegmentProducerState("p", Batching(max_messages=1)))
    tracks = [effect.track for effect in state.viewed(view) if isinstance(effect, Open)]
    for track in tracks:
        state.opened(track, MAX_BYTES, None, None if view.is_synthetic else Ancestry())
    return state, tracks


def test_messages_wait_and_layout_is_requested_without_successor() -> None:
    state, (parent,) = state_on(TopicView(TOPIC, Layout.initial(1, now_ms=0)))
    state.append(record("key-0", 0, deadline=5.0))
    assert state.terminated(parent) == [AskLayout()]
    state.append(record("key-0", 1, deadline=6.0))
    assert (state.oldest(), state.next_deadline()) == (0, 5.0)
    (late,) = state.expire(5.5)
    assert isinstance(late, On) and isinstance(late.effects[0], Failed)
    assert isinstance(late.effects[0].error, TimedOut)
    effects = state.viewed(TopicView(TOPIC, split(Layout.initial(1, now_ms=0), 0)))
    assert [type(effect) for effect in effects] == [Open, Open, Drop]
    assert state.oldest() == 1


def test_planned_children_are_opened_early_and_dropped_on_abort() -> None:
    world = ProducerWorld()
    attached(world)
    world.split(0)
    world.show(plan=True)
    assert [track.segment.segment_id for track in world.lines] == [0, 1, 2]
    attached(world)
    world.send("key-0")
    world.plan = None  # aborted
    world.show()
    assert [track.segment.segment_id for track in world.lines] == [0]


def test_early_child_is_reopened_when_parent_outcome_is_unknown() -> None:
    world = ProducerWorld()
    (parent,) = attached(world)
    world.split(0)
    world.show(plan=True)
    attached(world)
    world.send("key-0")
    world.serve(parent)
    world.cut(parent)
    world.commit()
    view = TopicView(TOPIC, world.layout)
    effects = world.state.viewed(view)
    assert [type(effect) for effect in effects] == [Drop, Reopen], "the ancestry of the child is older than the seal"


def test_scenario_34_recreated_topic_receives_unconfirmed_messages() -> None:
    state, (old,) = state_on(TopicView(TOPIC, Layout.initial(1, now_ms=0), 1))
    for n in range(3):
        state.append(record("key-0", n))
    old.lane.receipt(0, 1, 1)
    effects = state.viewed(TopicView(TOPIC, Layout.initial(1, now_ms=9), 2, generation=1))
    assert [type(effect) for effect in effects] == [Drop, Open]
    (new,) = state.active
    assert new is not old and new.segment.segment_id == old.segment.segment_id
    (sent,) = state.opened(new, MAX_BYTES, None, Ancestry())
    assert isinstance(sent, On) and len(sent.effects) == 2


def test_new_partitions_wait_until_old_lanes_are_empty() -> None:
    state, old = state_on(synthetic_view(REGULAR, 2, 0))
    track, _ = state.append(record("key-0", 0))
    assert track is not None
    assert state.viewed(synthetic_view(REGULAR, 3, 0)) == []
    assert state.append(record("key-0", 1)) == (None, ())
    assert (state.oldest(), state.is_changing) == (0, True)
    track.lane.receipt(0, 1, 1)
    opened = [effect.track for effect in state.settled(track) if isinstance(effect, Open)]
    assert len(opened) == 1 and len(list(state.active)) == 3
    assert (state.oldest(), state.is_changing) == (1, False)
    assert all(one in state.tracks for one in old)


def test_scenario_31_migration_keeps_keys_behind_all_partitions() -> None:
    regular = synthetic_view(REGULAR, 2, 0)
    state, old = state_on(regular)
    for n, key in enumerate(KEYS):
        state.append(record(key, n))
    migrated = applied(regular.layout, plan_migration(regular.layout, now_ms=1, limits=NO_LIMITS))
    effects = state.viewed(TopicView(TOPIC, migrated))
    assert {type(effect) for effect in effects} == {Open, CloseRequest}
    children = list(state.active)
    state.opened(children[0], MAX_BYTES, None, Ancestry())
    track, wanted = state.append(record(next(key for key in KEYS if not HASHES[key] & 0x8000), 99))
    assert track is children[0] and not [one for one in wanted if not isinstance(one, Stored)], "it is held"
    for one in old:
        state.close_confirmed(one)
    assert {one.lane.is_held for one in children} == {False}
    assert sum(len(one.lane.take_all()) for one in children) == len(KEYS) + 1


@pytest.mark.parametrize("one", list(PartitionHash))
def test_unsure_messages_of_a_partition_are_found_in_it_by_the_hash_of_the_topic(one: PartitionHash) -> None:
    """The connections to both partitions broke before the migration; all that they had stored is known afterwards."""
    regular = with_partition_hash(synthetic_view(REGULAR, 2, 0), one)
    state, old = state_on(regular)
    stored = {n: key for n, key in enumerate(KEYS) if n < len(KEYS) // 2}
    for n, key in enumerate(KEYS):
        track, _ = state.append(record(key, n))
        assert track is old[one.partition_of(key, 2)]
    for track in old:
        state.lost(track)
    migrated = applied(regular.layout, plan_migration(regular.layout, now_ms=1, limits=NO_LIMITS))
    assert migrated.routing.partition_hash is one
    state.viewed(TopicView(TOPIC, migrated))
    lasts = [max((n for n, key in stored.items() if one.partition_of(key, 2) == index), default=-1) for index in (0, 1)]
    parents = [Ancestor(index, FULL, last, None, one) for index, last in enumerate(lasts)]
    for child in list(state.active):
        state.opening(child)
        state.opened(child, MAX_BYTES, None, Ancestry(parents))
    again = [each for child in state.active for each in child.lane.take_all()]
    assert sorted(each.sequence_id for each in again) == [n for n in range(len(KEYS)) if n not in stored]


def test_plan_of_a_migration_opens_children_and_holds_nothing() -> None:
    regular = synthetic_view(REGULAR, 2, 0)
    state, old = state_on(regular)
    state.append(record("key-0", 0))
    change = plan_migration(regular.layout, now_ms=1, limits=NO_LIMITS)
    plan = Plan("op", change.parent_ids, change.children, {})
    opened = state.viewed(replace(regular, plan=plan))
    assert [effect.track.segment.segment_id for effect in opened if isinstance(effect, Open)] == [2, 3]
    track, effects = state.append(record("key-0", 1))
    assert track in old and effects, "the partitions are written to until they are sealed"
    assert [type(effect) for effect in state.viewed(regular)] == [Drop, Drop], "undone"


def test_lane_error_fails_its_messages_and_later_appends() -> None:
    state, (track,) = state_on(TopicView(TOPIC, Layout.initial(1, now_ms=0)))
    state.append(record("key-0", 0))
    (failed,) = state.failed(track, NotAuthorized("no"))
    assert isinstance(failed, On) and isinstance(failed.effects[0], Failed)
    with pytest.raises(NotAuthorized):
        state.append(record("key-0", 1))


def test_close_fails_messages_of_all_lanes() -> None:
    world = ProducerWorld()
    (parent,) = attached(world)
    send_all(world, 1)
    world.serve(parent, 2)
    world.split(0)
    world.change()
    send_all(world, 1)
    world.perform(world.state.close(Closed("x")))
    assert len(world.stored) + len([one for one in world.failures if isinstance(one, Closed)]) > 0
    assert world.state.oldest() == float("inf")


# -- ancestry


def test_ancestry_has_by_hash_range_and_sequence_id() -> None:
    low, high = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)
    ancestry = Ancestry([Ancestor(1, low, 10, RingHash.LOW16), Ancestor(2, high, 20, RingHash.LOW16)])
    below = next(key for key in KEYS if not HASHES[key] & 0x8000)
    above = next(key for key in KEYS if HASHES[key] & 0x8000)
    assert ancestry.has(record(below, 10)) and not ancestry.has(record(below, 11))
    assert ancestry.has(record(above, 20)) and not ancestry.has(record(above, 21))
    assert not Ancestry().has(record(below, 0))


def test_ancestry_has_keyless_messages_and_partitions() -> None:
    halves = (HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF))
    router = Ancestry(Ancestor(i, half, 100 * i, RingHash.LOW16) for i, half in enumerate(halves))
    assert {router.has(record(None, n)) for n in range(1, 100)} == {True, False}
    modulo = Ancestry(Ancestor(i, half, 100 * i, None) for i, half in enumerate(halves))
    assert [modulo.has(record(None, n)) for n in (1, 2, 3)] == [True, False, True]
    assert [modulo.has(record("key-0", 50))] == [(HASHES["key-0"] & 0x7FFFFFFF) % 2 == 1]


def test_successors_apply_consecutive_seals_and_skip_misfits() -> None:
    first = Layout.initial(2, now_ms=0)
    second = split(first, 0)
    third = split(second, 2)
    fourth = merge(third, 4, 5)
    received = {0: [second[2], second[3]], 2: [third[4], third[5]], 4: [fourth[6]], 5: [fourth[6]]}
    assert {one.segment_id for one in successors(first, received).active} == {1, 3, 6}
    assert successors(first, {2: [third[4], third[5]]}).active == first.active
    assert successors(first, {0: [third[4]]}).active == first.active, "a gap"


@pytest.mark.parametrize("routing", [RANGE_LOW16, RANGE_HIGH16, MOD_N])
def test_router_routes_like_the_layout(routing: Routing) -> None:
    layout = replace(split(Layout.initial(3, now_ms=0), 1, ways=4), routing=routing)
    tracks = {
        one.segment_id: SegmentLane(one, SegmentProducerState("p", Batching()), one.hash_range) for one in layout.active
    }
    starts = tuple(one.hash_range.start for one in layout.active)
    router = SegmentRouter(tuple(tracks[one.segment_id] for one in layout.active), layout.routing, starts)
    for n in range(500):
        raw = key_hash(f"key-{n}")
        keyed = OutgoingMessage(n, b"", f"key-{n}", hash=raw)
        assert router.route(keyed).segment == layout.route(raw)
        assert router.route(OutgoingMessage(n, b"")).segment == layout.route_keyless(n)
