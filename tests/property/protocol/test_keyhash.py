"""The fast key hash equals the readable one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model import keyhash as plain
from anabranch.protocol import keyhash as fast


@given(st.binary(max_size=300))
def test_fast_equals_plain(data: bytes) -> None:
    assert fast.murmur3_32(data) == plain.murmur3_32(data)
    assert 1 <= fast.key_shared_slot(data) <= 0xFFFF
