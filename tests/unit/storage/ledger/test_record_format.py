"""Bytes of records and file heads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.ledger.record_format import (
    HEADER_BYTES,
    LEDGER_MAGIC,
    LOG_MAGIC,
    BadFileHead,
    NewerFormat,
    decode_file_head,
    decode_group_head,
    decode_header,
    encode_file_head,
    encode_group_head,
    encode_header,
    is_sound,
    log_stamp,
)


@given(
    ledger=st.integers(0, 2**63),
    entry=st.integers(0, 2**63),
    offset=st.integers(0, 2**63),
    messages=st.integers(0, 2**32 - 1),
    payload=st.binary(max_size=200),
    flip=st.integers(0, 10_000),
)
def test_record_round_trips_and_detects_every_bit_flip(
    ledger: int, entry: int, offset: int, messages: int, payload: bytes, flip: int
) -> None:
    record = bytearray(encode_header(ledger, entry, offset, messages, log_stamp(3), payload) + payload)
    header = decode_header(record)
    assert header[1:] == (len(payload), ledger, entry, offset, messages, log_stamp(3))
    assert is_sound(memoryview(record), 0, len(payload))
    record[flip % len(record)] ^= 1 << flip % 8
    assert not is_sound(memoryview(record), 0, len(payload))


def test_group_head_is_valid_only_at_its_offset_in_its_file() -> None:
    head = encode_group_head(2, 4096, 10, 1234, 7)
    found = decode_group_head(b"x" + head, 1, 4096, 7)
    assert found is not None
    assert (found.entry, found.messages, found.length) == (2, 10, 1234)
    assert decode_group_head(head, 0, 4097, 7) is None
    assert decode_group_head(head, 0, 4096, 8) is None
    assert decode_group_head(head[: HEADER_BYTES - 1], 0, 4096, 7) is None
    assert decode_group_head(head[:-10] + b"\x01" + head[-9:], 0, 4096, 7) is None


def test_stamps_of_neighbouring_logs_differ() -> None:
    assert len({log_stamp(number) for number in range(10_000)}) == 10_000


def test_file_heads() -> None:
    head = encode_file_head(LEDGER_MAGIC, 77)
    assert decode_file_head(head + b"more", LEDGER_MAGIC, "f") == 77
    with pytest.raises(BadFileHead, match="not a ABlog file"):
        decode_file_head(head, LOG_MAGIC, "f")
    with pytest.raises(BadFileHead, match="too short"):
        decode_file_head(head[:10], LEDGER_MAGIC, "f")
    with pytest.raises(BadFileHead, match="checksum mismatch in the head of f"):
        decode_file_head(head[:17] + b"\xff" + head[18:], LEDGER_MAGIC, "f")


def test_a_newer_format_is_refused_by_name() -> None:
    with pytest.raises(NewerFormat, match="some/file has format 2; this version reads up to 1"):
        decode_file_head(encode_file_head(LEDGER_MAGIC, 1, format_=2), LEDGER_MAGIC, "some/file")
