"""The list of ledgers that a log need not bring back: any crash leaves a part of it, never anything else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.log.released_ledgers import Released, decode_released, encode_released, read_released
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
    released = Released(disk, "/log")
    released.add([1, 2])
    released.add([3])
    assert read_released(disk, "/log") == {1, 2, 3}
