"""The list of ledgers that a log need not bring back: any crash leaves a part of it, never anything else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.log.released_ledgers import (
    LoggedLedgers,
    ReleasedLedgers,
    decode_released,
    encode_released,
    read_released,
)
from tests.support.in_memory.simulated_disk import SimDisk

ledgers = st.lists(st.integers(0, (1 << 64) - 1), max_size=20)


@given(ledgers, st.integers(0, 300))
def test_a_torn_list_is_the_beginning_of_the_whole(ids: list[int], cut: int) -> None:
    assert decode_released(encode_released(ids)) == set(ids)
    assert decode_released(encode_released(ids)[:cut]) == set(ids[: cut // 12])


@given(st.lists(st.integers(1, 1 << 32), min_size=1, max_size=10), st.data())
def test_a_flipped_bit_loses_one_and_invents_none(ids: list[int], data: st.DataObject) -> None:
    encoded = bytearray(encode_released(ids))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    at = bit // 96
    assert decode_released(bytes(encoded)) == set(ids[:at] + ids[at + 1 :])


def test_nothing_is_released_where_no_list_is() -> None:
    assert read_released(SimDisk(), "/log") == set()


def test_the_list_grows() -> None:
    disk = SimDisk()
    disk.make_dir("/log")
    released = ReleasedLedgers(disk, "/log")
    released.add([1, 2])
    released.add([3])
    assert read_released(disk, "/log") == {1, 2, 3}


def logged(**of: int) -> LoggedLedgers:
    found = LoggedLedgers()
    for name, number in of.items():
        found.last_log[int(name[1:])] = number
    return found


def test_closed_ledgers_are_listed_once() -> None:
    ledgers = logged(l1=1, l2=1, l3=2)
    assert sorted(ledgers.release(lambda one: one != 2)) == [1, 3]
    assert ledgers.release(lambda one: one != 2) == []
    assert ledgers.release(lambda one: True) == [2]


def test_a_deleted_one_must_be_listed_only_when_the_log_holds_it_and_the_list_does_not() -> None:
    ledgers = logged(l1=1, l2=1)
    ledgers.release(lambda one: one == 2)
    assert ledgers.forget(1)
    assert not ledgers.forget(2)  # listed already
    assert not ledgers.forget(3)  # never logged, or long in its file
    assert not ledgers.forget(1)


def test_what_its_last_log_file_held_is_forgotten_with_the_file() -> None:
    ledgers = logged(l1=1, l2=2)
    ledgers.release(lambda one: True)
    ledgers.retired(1)
    assert ledgers.last_log == {2: 2}
    ledgers.last_log[1] = 3  # written again, in a later file: the old listing does not speak for it
    assert ledgers.release(lambda one: True) == [1]
    ledgers.retired(3)
    assert ledgers.last_log == {} and not ledgers.forget(2)
