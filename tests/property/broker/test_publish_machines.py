"""Access tables and deduplication under any order of events."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.errors import ProducerBusy, ProducerFenced
from anabranch.broker.publish.producer_access import AccessMode, AccessTable
from anabranch.broker.publish.sequence_ids import DedupDecision, Sequences
from anabranch.broker.subscription.consumer_selectors import RING_SIZE, HashRing, SplitRanges
from anabranch.broker.subscription.delayed_delivery import DelayedEntries
from anabranch.model.position import Position

QUICK = settings(max_examples=200, deadline=None)


@QUICK
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(list(AccessMode)), st.one_of(st.none(), st.integers(0, 8))),
            st.integers(0, 40),
        ),
        max_size=40,
    )
)
def test_access_table(steps: list[tuple[AccessMode, int | None] | int]) -> None:
    table: AccessTable[int] = AccessTable()
    inside: set[int] = set()  # ready
    waiting: list[int] = []
    for number, step in enumerate(steps):
        epoch = table.epoch
        if isinstance(step, int):
            producers = sorted(inside | set(waiting))
            if not producers:
                continue
            gone = producers[step % len(producers)]
            heir = table.leave(gone)
            inside.discard(gone)
            waiting = [one for one in waiting if one != gone]
            if heir is not None:
                assert heir == waiting.pop(0), "waiting producers are admitted in order of arrival"
                assert not inside
                inside = {heir}
                assert table.epoch > epoch
        else:
            mode, known = step
            try:
                admission = table.admit(number, mode, known)
            except (ProducerBusy, ProducerFenced):
                assert (table.epoch, inside, waiting) == (epoch, set(table.holders), list(table.waiting))
                continue
            if admission.ready:
                assert admission.fence == () or mode is AccessMode.EXCLUSIVE_WITH_FENCING
                inside -= set(admission.fence)
                waiting = [one for one in waiting if one not in admission.fence]
                inside.add(number)
            else:
                waiting.append(number)
            if mode is not AccessMode.SHARED and admission.ready:
                assert admission.epoch == table.epoch
                assert inside == {number}
        assert table.epoch >= epoch
        assert set(table.holders) == inside
        assert list(table.waiting) == waiting
        if table.exclusive is not None:
            assert inside == {table.exclusive}
        assert not waiting or inside, "no producer waits for an empty topic"


@QUICK
@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "done", "fail"]), st.sampled_from("ab"), st.integers(0, 12)), max_size=60
    )
)
def test_dedup_equals_a_naive_model(steps: list[tuple[str, str, int]]) -> None:
    sequences = Sequences()
    stored: dict[str, set[int]] = {"a": set(), "b": set()}
    flying: list[tuple[str, int]] = []
    for action, name, sequence in steps:
        match action:
            case "send":
                decision = sequences.check(name, sequence)
                if stored[name] and sequence <= max(stored[name]):
                    assert decision is DedupDecision.DUPLICATE
                elif any(other == name and sequence <= number for other, number in flying):
                    assert decision is DedupDecision.IN_FLIGHT
                else:
                    assert decision is DedupDecision.NEW
                    sequences.push(name, sequence)
                    flying.append((name, sequence))
            case "done" if flying:
                done, number = flying.pop(0)
                sequences.persist(done, number)
                stored[done].add(number)
            case "fail":  # a topic loses everything in flight together
                for lost in {other for other, _ in flying}:
                    sequences.forget_pushed(lost)
                flying.clear()
        for one in "ab":
            assert sequences.last(one) == max(stored[one], default=-1)
    loaded, _ = Sequences.load(sequences.dump(Position(1, 1)))
    assert loaded.persisted == sequences.persisted


@QUICK
@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 50), st.integers(0, 20)), st.integers(0, 60)), max_size=40),
)
def test_delayed_equals_a_sorted_list(steps: list[tuple[int, int] | int]) -> None:
    delayed = DelayedEntries(1_000)
    model: dict[Position, int] = {}
    for step in steps:
        if isinstance(step, tuple):
            due_ms, entry = step
            delayed.add(due_ms, Position(1, entry))
            model.setdefault(Position(1, entry), due_ms)
        else:
            due = sorted(position for position, due_ms in model.items() if due_ms <= step)
            assert delayed.due(step) == due
            for position in due:
                del model[position]
        assert len(delayed) == len(model)
        assert delayed.next_ms == min(model.values(), default=None)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.text(max_size=5), max_size=8), st.text(max_size=5))
def test_hash_ring_moves_only_necessary_slots(labels: set[str], newcomer: str) -> None:
    before: HashRing[str] = HashRing()
    after: HashRing[str] = HashRing()
    labels.discard(newcomer)
    before.reset([(label, label) for label in labels])
    after.reset([(label, label) for label in {*labels, newcomer}])
    for slot in range(0, RING_SIZE, 7):
        old, new = before.owner(slot), after.owner(slot)
        assert new in (old, newcomer)
        assert new is not None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=20))
def test_split_ranges_cover_all_slots_and_move_only_those_of_one_member(toggled: list[str]) -> None:
    """A label joins if it is out, and leaves if it is in."""
    ranges: SplitRanges[str] = SplitRanges()
    members: list[str] = []
    for label in toggled:
        before = {slot: ranges.owner(slot) for slot in range(0, RING_SIZE, 61)}
        joins = label not in members
        members = [*members, label] if joins else [one for one in members if one != label]
        ranges.reset([(one, one) for one in members])
        spans = ranges.spans()
        assert [span[0] for span in spans] == [0, *(span[1] + 1 for span in spans[:-1])][: len(spans)]
        assert not spans or spans[-1][1] == RING_SIZE - 1
        assert sorted(span[2] for span in spans) == sorted(members)
        for slot, old in before.items():
            new = ranges.owner(slot)
            assert new == old or (new == label if joins else old == label)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=6), min_size=2, max_size=8))
def test_changed_hash_ring_equals_a_new_one(generations: list[set[str]]) -> None:
    kept: HashRing[str] = HashRing()
    for labels in generations:
        fresh: HashRing[str] = HashRing()
        members = [(label * 40, label) for label in labels]
        fresh.reset(sorted(members))
        kept.reset(members)
        assert [kept.owner(slot) for slot in range(0, RING_SIZE, 11)] == [
            fresh.owner(slot) for slot in range(0, RING_SIZE, 11)
        ]
