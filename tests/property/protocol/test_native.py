"""The C loops of publishing and delivery against the Python ones: same results for any frames, chunks and damage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.protocol import entry
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame, frame_with_payload, receipt_frame
from anabranch.protocol.messages import NativeRuns, PlainRuns
from anabranch.protocol.native import NATIVE
from tests.support.fuzz.send_paths import published

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the extension was not built here")

U64 = st.integers(0, 127) | st.integers(0, (1 << 64) - 1)


@st.composite
def send_frames(draw: st.DrawFn) -> bytes:
    """Mostly plain ones; every optional field and every kind of entry now and then."""
    send = pb.CommandSend(producer_id=draw(st.integers(0, 3)), sequence_id=draw(U64))
    if draw(st.booleans()):
        send.num_messages = draw(st.integers(0, 300) | st.integers(-(1 << 31), (1 << 31) - 1))
    if draw(st.booleans()):
        send.highest_sequence_id = draw(U64)
    unusual = draw(st.integers(0, 30))
    if unusual == 1:
        send.txnid_least_bits = draw(U64)
    elif unusual == 2:
        send.is_chunk = True
    elif unusual == 3:
        send.marker = False
    elif unusual == 4:
        send.message_id.ledgerId = send.message_id.entryId = 1
    payload = bytearray(entry.build_entry(draw(st.binary(max_size=60)), publish_time=1))
    if unusual == 5:
        payload[-1] ^= 1
    elif unusual == 6:
        payload = payload[6:]  # without a checksum
    elif unusual == 7:
        payload = payload[: draw(st.integers(1, 8))]
    command = BaseCommand(type=BaseCommand.SEND, send=send)
    return frame(command) if unusual == 8 else frame_with_payload(command, bytes(payload))


OTHERS = [
    frame(BaseCommand(type=BaseCommand.PING, ping=pb.CommandPing())),
    frame(BaseCommand(type=BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=6, messagePermits=6))),
]
streams = st.lists(send_frames() | st.sampled_from(OTHERS), max_size=12).map(b"".join)


@settings(deadline=None)
@given(streams, st.lists(st.integers(0, 3_000), max_size=6), st.booleans())
def test_any_frames_in_any_chunks(data: bytes, cuts: list[int], blocks: bool) -> None:
    assert published(data, cuts, native=True, blocks=blocks) == published(data, cuts, native=False, blocks=blocks)


@settings(deadline=None)
@given(streams.filter(bool), st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_frames(data: bytes, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(data)
    for place, value in flips:
        damaged[place % len(damaged)] = value
    given_bytes = bytes(damaged)
    assert published(given_bytes, [], native=True, blocks=True) == published(given_bytes, [], native=False, blocks=True)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_arbitrary_bytes_are_not_read_out_of_bounds(data: bytes, start: int) -> None:
    assert NATIVE is not None
    start = min(start, len(data))
    for _, _, _, _, body, after in NATIVE.sends(memoryview(data), start, len(data), 1 << 20):
        assert start + 8 < body <= after - 6 <= len(data) - 6
        start = after


@pytest.mark.parametrize(("start", "end"), [(-1, 4), (5, 4), (0, 11)])
def test_offsets_outside_the_buffer_are_refused(start: int, end: int) -> None:
    assert NATIVE is not None
    with pytest.raises(ValueError, match="outside"):
        NATIVE.sends(memoryview(bytes(10)), start, end, 100)


@given(
    producer=U64,
    ledger=U64,
    entry_id=st.integers(0, (1 << 64) - 100),
    partition=st.integers(-1, (1 << 31) - 1),
    sequences=st.lists(st.tuples(U64, U64), max_size=30),
)
def test_receipt_runs_equal_single_receipts(
    producer: int, ledger: int, entry_id: int, partition: int, sequences: list[tuple[int, int]]
) -> None:
    assert NATIVE is not None
    plain = [
        receipt_frame(producer, sequence, ledger, number, partition, highest)
        for number, (sequence, highest) in enumerate(sequences, entry_id)
    ]
    publishes = [(None, sequence, highest) for sequence, highest in sequences]
    assert NATIVE.receipts(producer, ledger, entry_id, partition, publishes) == b"".join(plain)


def test_invalid_publishes_are_refused() -> None:
    assert NATIVE is not None
    for bad in ([(1, 2)], [[0, 1, 2]], [(0, "1", 2)], [(0, -1, 2)]):
        with pytest.raises((TypeError, IndexError, SystemError, OverflowError)):
            NATIVE.receipts(1, 1, 1, -1, bad)  # type: ignore[arg-type]  # that is the point


entries: st.SearchStrategy[list[Any]] = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 3) | U64, U64),
        st.integers(0, 300) | st.integers(0, (1 << 32) - 1),
        st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: memoryview(data)),
        st.none(),
    ),
    max_size=20,
)


@given(U64, st.integers(-1, (1 << 31) - 1), entries, st.integers(0, 5), st.integers(0, 3_000), st.integers(0, 3_000))
def test_message_heads_equal_those_of_python(
    consumer: int, partition: int, run: list[Any], start: int, bytes_max: int, messages_max: int
) -> None:
    native, plain = (
        runs(consumer, partition).take(run, start, bytes_max, messages_max) for runs in (NativeRuns, PlainRuns)
    )
    assert native == plain
    frames, positions, wire, size, messages, each = native
    taken = run[start : start + len(positions)]
    assert frames[1::2] == [payload for _, _, payload, _ in taken]
    assert positions == [position for position, _, _, _ in taken]
    assert (wire, size) == (sum(map(len, frames)), sum(map(len, frames[1::2])))
    assert messages == sum(one[1] for one in taken)
    assert each == (taken[0][1] if len({one[1] for one in taken}) == 1 else -1)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ([], TypeError),
        ((), IndexError),
        (((1, 2), 1), IndexError),
        (((1,), 1, b"x", None), IndexError),
        ((7, 1, b"x", None), SystemError),
        (((-1, 2), 1, b"x", None), OverflowError),
        (((1, 1 << 64), 1, b"x", None), OverflowError),
        (((1, "2"), 1, b"x", None), TypeError),
        (((1, 2), None, b"x", None), TypeError),
        (((1, 2), 1, 5, None), TypeError),
    ],
)
def test_invalid_entries_are_refused(bad: Any, error: type[Exception]) -> None:
    good = ((1, 2), 1, b"x", None)
    with pytest.raises((error, SystemError)):
        NativeRuns(1, -1).take([good, bad, good], 0, 1 << 20, 1 << 20)


def test_negative_starts_are_refused() -> None:
    with pytest.raises(ValueError, match="before"):
        NativeRuns(1, -1).take([], -1, 1 << 20, 1 << 20)
