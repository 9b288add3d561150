"""The list of ledgers that recovery must not restore: a crash leaves a prefix of it, never anything else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.log.released_ledgers import (
    FINISHED_LEDGERS_MAX,
    LoggedLedgers,
    ReleasedLedgers,
    decode_released,
    encode_released,
    read_released,
)
from tests.support.in_memory.simulated_disk import SimDisk

ledgers = st.lists(st.integers(0, (1 << 64) - 1), max_size=20)


@given(ledgers, st.integers(0, 300))
def test_a_torn_list_is_a_prefix_of_the_whole(ids: list[int], cut: int) -> None:
    assert decode_released(encode_released(ids)) == set(ids)
    assert decode_released(encode_released(ids)[:cut]) == set(ids[: cut // 12])


@given(st.lists(st.integers(1, 1 << 32), min_size=1, max_size=10), st.data())
def test_a_flipped_bit_loses_one_item_and_adds_none(ids: list[int], data: st.DataObject) -> None:
    encoded = bytearray(encode_released(ids))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    at = bit // 96
    assert decode_released(bytes(encoded)) == set(ids[:at] + ids[at + 1 :])


def test_without_a_list_nothing_is_released() -> None:
    assert read_released(SimDisk(), "/log") == set()


def test_added_ledgers_are_appended_to_the_list() -> None:
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


def test_deleted_ledger_is_listed_only_if_logged_and_not_listed_yet() -> None:
    ledgers = logged(l1=1, l2=1)
    ledgers.release(lambda one: one == 2)
    assert ledgers.forget(1)
    assert not ledgers.forget(2)  # listed already
    assert not ledgers.forget(3)  # never logged, or its log file is deleted
    assert not ledgers.forget(1)


def test_retiring_a_log_file_forgets_its_ledgers() -> None:
    ledgers = logged(l1=1, l2=2)
    ledgers.release(lambda one: True)
    ledgers.retired(1)
    assert ledgers.last_log == {2: 2}
    ledgers.last_log[1] = 3  # written again, in a later file: the old listing does not count
    assert ledgers.release(lambda one: True) == [1]
    ledgers.retired(3)
    assert ledgers.last_log == {} and not ledgers.forget(2)


def test_many_finished_ledgers_in_the_log_ask_for_a_checkpoint() -> None:
    ledgers = logged(**{f"l{one}": 1 for one in range(FINISHED_LEDGERS_MAX)})
    answers = [ledgers.finish(one) for one in range(FINISHED_LEDGERS_MAX)]
    assert answers == [False] * (FINISHED_LEDGERS_MAX - 1) + [True]
    ledgers.forget(0)
    assert not ledgers.finish(1), "a deleted ledger is not kept in memory"
    ledgers.retired(1)
    assert not ledgers.finish(1), "the log has no records of it any more"


def test_open_ledgers_ask_for_no_checkpoint() -> None:
    ledgers = logged(**{f"l{one}": 1 for one in range(FINISHED_LEDGERS_MAX * 2)})
    assert not ledgers.finish(0)
