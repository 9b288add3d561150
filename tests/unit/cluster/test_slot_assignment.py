"""Slots and who gets them: bundles, the table's bytes, sticky and balanced assignment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cluster.slot_assignment import Member, balance, fill
from anabranch.cluster.slot_table import BadTable, Slot, Table, decode_table, encode_table
from anabranch.cluster.slots import SLOTS, slot_of, slots_of_bundle
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import BadName

ALL = frozenset(range(SLOTS))


def members(*names: str, draining: str = "") -> dict[str, Member]:
    return {name: Member(BrokerIncarnation(name, 1), name == draining) for name in names}


def counts(table: Table) -> dict[str, int]:
    """Slots by broker, planned moves counted as done."""
    found: dict[str, int] = {}
    for slot in table.slots:
        incarnation = slot.next_holder or slot.holder
        if incarnation is not None:
            found[incarnation.broker] = found.get(incarnation.broker, 0) + 1
    return found


def moved(table: Table) -> Table:
    """Every planned move done."""
    return table.with_holders(
        {n: slot.next_holder for n, slot in enumerate(table.slots) if slot.next_holder is not None}
    )


def test_bundles_are_ranges_of_the_same_hash() -> None:
    assert slots_of_bundle("0x00000000_0x40000000") == range(64)
    assert slots_of_bundle("0xc0000000_0xffffffff") == range(192, 256)
    topic = "persistent://public/default/orders-partition-3"
    halves = [slots_of_bundle(b) for b in ("0x00000000_0x80000000", "0x80000000_0xffffffff")]
    assert [slot_of(topic) in half for half in halves].count(True) == 1
    for bad in ("", "0x0_0x1", "0x40000000_0x40000000", "0x00000000_0x4000000g"):
        with pytest.raises(BadName):
            slots_of_bundle(bad)


incarnations = st.builds(BrokerIncarnation, st.sampled_from(["a", "b", "ü/%"]), st.integers(1, 3))
slots = st.builds(Slot, st.none() | incarnations, st.integers(0, 9), st.none() | incarnations)


@given(
    st.lists(slots, min_size=4, max_size=4), st.frozensets(incarnations), st.integers(0, 2**40), st.integers(0, 2**40)
)
def test_tables_come_back(some: list[Slot], dead: frozenset[BrokerIncarnation], term: int, serial: int) -> None:
    table = Table(tuple(some * (SLOTS // 4)), dead, term, serial)
    assert decode_table(encode_table(table)) == table
    assert len(encode_table(table)) < 12_000


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format":2}', b'{"format":1,"term":0,"seats":[],"dead":[1]}'])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadTable):
        decode_table(data)


def test_a_lone_broker_gets_everything_and_a_second_one_half() -> None:
    table = fill(Table(), members("a"), ALL)
    assert counts(table) == {"a": 256}
    planned = balance(table, members("a", "b"))
    assert counts(planned) == {"a": 128, "b": 128}
    assert sum(slot.next_holder is not None for slot in planned.slots) == 128
    assert balance(moved(planned), members("a", "b")) == moved(planned)


def test_a_draining_broker_gives_all_away() -> None:
    table = moved(balance(fill(Table(), members("a", "b"), ALL), members("a", "b")))
    assert counts(balance(table, members("a", "b", draining="a"))) == {"b": 256}


def test_a_restarted_broker_gets_its_own_slots_again() -> None:
    table = moved(balance(fill(Table(), members("a", "b", "c"), ALL), members("a", "b", "c")))
    before = table.held_by(BrokerIncarnation("b", 1))
    after = fill(table, {**members("a", "c"), "b": Member(BrokerIncarnation("b", 2))}, before)
    assert after.held_by(BrokerIncarnation("b", 2)) == before
    assert all(after.slots[n].epoch == table.slots[n].epoch + 1 for n in before)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["join", "leave", "drain"])), max_size=12))
def test_always_balanced_with_the_fewest_moves(changes: list[tuple[str, str]]) -> None:
    present: dict[str, Member] = {}
    table = Table()
    for lives, (name, change) in enumerate(changes, 1):
        if change == "join" and name not in present:
            present[name] = Member(BrokerIncarnation(name, lives))
        elif change == "leave":
            present.pop(name, None)
        elif name in present:
            present[name] = Member(present[name].incarnation, is_draining=True)
        living = {member.incarnation for member in present.values()}
        able = [member for member in present.values() if not member.is_draining]
        free = frozenset(n for n, slot in enumerate(table.slots) if slot.holder not in living)
        filled = fill(table, present, free)
        planned = balance(filled, present)
        assert planned == balance(planned, present), "nothing more to do"
        for n, slot in enumerate(filled.slots):
            assert n in free or slot.holder == table.slots[n].holder, "the living keep theirs"
        if able:
            share = counts(planned)
            assert set(share) <= {member.incarnation.broker for member in able}
            sizes = [share.get(member.incarnation.broker, 0) for member in able]
            assert sum(sizes) == SLOTS
            assert max(sizes) - min(sizes) <= 1
            held = {member.incarnation: len(filled.held_by(member.incarnation)) for member in able}
            least, extra = divmod(SLOTS, len(able))
            surplus = sorted((count - least for count in held.values()), reverse=True)
            least = sum(max(over - (index < extra), 0) for index, over in enumerate(surplus))
            given_up = sum(len(filled.held_by(m.incarnation)) for m in present.values() if m.is_draining)
            assert sum(slot.next_holder is not None for slot in planned.slots) == least + given_up
        table = moved(planned)
