"""The C loop of catch-up reads against the Python one: same results for any block and damage."""

from __future__ import annotations

import os

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.position import Position
from anabranch.storage.interface import StoredEntry
from anabranch.storage.ledger.record_format import encode_header
from anabranch.storage.ledger.record_runs import NATIVE, plain_run
from tests.support.fuzz.ledger_cases import block_case

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the extension was not built here, or has no instruction to use")


@given(st.integers(0, 1 << 40))
def test_any_block_gives_the_same_entries(seed: int) -> None:
    assert NATIVE is not None
    asked = block_case(seed)
    found, after = NATIVE(*asked)
    assert (found, after) == plain_run(*asked)
    for entry in found:
        assert type(entry) is StoredEntry and type(entry.position) is Position and type(entry.payload) is memoryview
        assert entry.left is None


@given(st.binary(max_size=400), st.integers(0, 3), st.integers(0, 3))
def test_arbitrary_bytes_are_not_read_out_of_bounds(data: bytes, ledger: int, first: int) -> None:
    assert NATIVE is not None
    asked = (memoryview(data), 0, ledger, first, first + 5, 1 << 20)
    assert NATIVE(*asked) == plain_run(*asked)


def test_found_entries_are_views_that_keep_their_block() -> None:
    assert NATIVE is not None
    block = bytearray(encode_header(1, 0, 0, 1, 0, b"abc") + b"abc")
    found, _ = NATIVE(memoryview(block), 0, 1, 0, 1, 100)
    block[-3:] = b"xyz"
    assert found[0].payload == b"xyz"
    with pytest.raises(BufferError):
        block.clear()


@pytest.mark.parametrize("sizes", [range(3_200), (11_000, 100_000, 1 << 20)])
def test_checksum_equals_crc32c(sizes: range | tuple[int, ...]) -> None:
    from anabranch.storage._native import checksum  # type: ignore[import-not-found]  # only where it was built

    data = memoryview(os.urandom(max(sizes) + 1))
    assert all(checksum(data[1 : 1 + size]) == crc32c(data[1 : 1 + size]) for size in sizes)
    assert checksum(b"123456789") == 0xE3069283


def test_non_tuple_types_are_refused() -> None:
    from anabranch.storage._native import sound_run  # only where it was built

    for types in ((list, Position), (StoredEntry, dict), (1, Position)):
        with pytest.raises(TypeError, match="tuples"):
            sound_run(memoryview(b""), 0, 1, 0, 1, 100, *types)
