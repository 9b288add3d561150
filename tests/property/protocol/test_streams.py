"""Byte streams: any chunking decodes alike, written frames are read back, and only ProtocolError is raised."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.protocol import entry
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import frame, frame_with_payload, read_command
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.frames import FrameDecoder
from tests.support.fuzz.frames import mutated_frames, random_command, sized

LIMIT = 60_000
Seen = tuple[list[tuple[bytes, bytes | None]], type[ProtocolError] | None]


def decoded(chunks: Iterable[bytes], scratch_bytes: int = 16_384) -> Seen:
    """Frames and the error that ended the stream, through the interface a socket uses."""
    decoder = FrameDecoder(LIMIT, bytearray(scratch_bytes))
    frames: list[tuple[bytes, bytes | None]] = []
    try:
        for chunk in chunks:
            rest = chunk
            while rest:
                buffer = decoder.buffer()
                count = min(len(buffer), len(rest))
                buffer[:count], rest = rest[:count], rest[count:]
                frames += (
                    (bytes(one.command), None if one.payload is None else bytes(one.payload))
                    for one in decoder.received(count)
                )
    except ProtocolError as error:
        return frames, type(error)
    return frames, None


def decoded_in_blocks(chunks: Iterable[bytes], scratch_bytes: int) -> Seen:
    """Like `decoded`, with chunks passed as blocks wherever the decoder could have asked for one."""
    decoder = FrameDecoder(LIMIT, bytearray(scratch_bytes))
    frames: list[tuple[bytes, bytes | None]] = []
    try:
        for chunk in chunks:
            rest = chunk
            while rest:
                if decoder._own is None:
                    count, found = len(rest), decoder.received_block(rest)
                else:
                    buffer = decoder.buffer()
                    count = min(len(buffer), len(rest))
                    buffer[:count] = rest[:count]
                    found = decoder.received(count)
                rest = rest[count:]
                frames += ((bytes(one.command), None if one.payload is None else bytes(one.payload)) for one in found)
    except ProtocolError as error:
        return frames, type(error)
    return frames, None


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({at % (len(data) + 1) for at in cuts}), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


parts = st.tuples(
    st.binary(max_size=40),
    st.one_of(st.just(b""), st.binary(min_size=1, max_size=100)),
    st.sampled_from((0, 0, 0, 300, 40_000)),
)


@given(
    st.lists(parts, max_size=6), st.lists(st.integers(0, 200_000), max_size=12), st.sampled_from((16, 64, 1024, 16_384))
)
def test_any_chunking_decodes_alike(
    messages: list[tuple[bytes, bytes, int]], cuts: list[int], scratch_bytes: int
) -> None:
    wanted = [(command, (payload + bytes(padding)) or None) for command, payload, padding in messages]
    data = b"".join(sized(command, payload or b"") for command, payload in wanted)
    assert decoded(cut(data, cuts), scratch_bytes) == (wanted, None)
    assert decoded_in_blocks(cut(data, cuts), scratch_bytes) == (wanted, None)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 200_000), max_size=12), st.sampled_from((16, 256, 16_384)))
def test_any_chunking_of_bad_bytes_fails_alike(seed: int, cuts: list[int], scratch_bytes: int) -> None:
    data = b"".join(mutated_frames(seed, 4))
    whole = decoded([data])
    assert decoded(cut(data, cuts), scratch_bytes) == whole
    assert decoded_in_blocks(cut(data, cuts), scratch_bytes) == whole
    assert decoded([data[at : at + 1] for at in range(len(data))], scratch_bytes) == whole


@given(st.integers(0, 2**32), st.sampled_from(list(pb.BaseCommand.Type.values())))
@settings(max_examples=300)
def test_commands_come_back(seed: int, kind: int) -> None:
    command = random_command(random.Random(seed), kind)
    (one,) = FrameDecoder(10**6).feed(frame(command))
    read_kind, body = read_command(one.command)
    assert read_kind == kind
    assert body == getattr(command, pb.BaseCommand.Type.Name(kind).lower())
    assert one.payload is None


@given(st.binary(max_size=200), st.integers(0, 2**63), st.text(max_size=10))
def test_entries_come_back_inside_frames(data: bytes, sequence_id: int, key: str) -> None:
    sealed = entry.build_entry(data, sequence_id=sequence_id, key=key, publish_time=5)
    send = pb.BaseCommand(type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=sequence_id))
    (one,) = FrameDecoder(10**6).feed(frame_with_payload(send, sealed))
    assert one.payload is not None and bytes(one.payload) == sealed
    assert entry.checksum_ok(one.payload)
    assert entry.metadata(one.payload).sequence_id == sequence_id
    assert entry.split_batch(one.payload)[0].data == data
    assert entry.sticky_key(one.payload) == key.encode()


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=8), st.booleans())
def test_batches_come_back(messages: list[bytes], compress: bool) -> None:
    sealed = entry.build_batch(messages, compress=compress)
    assert entry.checksum_ok(sealed)
    assert [message.data for message in entry.split_batch(sealed)] == messages


def look_inside(payload: bytes) -> None:
    """Calls everything that reads entries with arbitrary bytes."""
    for look in (entry.checksum_ok, entry.metadata, entry.split_batch):
        try:
            look(payload)
        except ProtocolError:
            pass
    assert isinstance(entry.publish_time_of(payload), int)
    assert isinstance(entry.sticky_key(payload), bytes)


@given(st.binary(max_size=120), st.sampled_from((b"", b"\x0e\x01", b"\x0e\x02\x00\x00\x00\x02", b"\x00\x00\x00\x06")))
@settings(max_examples=500)
def test_random_bytes_raise_only_the_typed_error(data: bytes, start: bytes) -> None:
    look_inside(start + data)
    try:
        read_command(data)
    except ProtocolError:
        pass
    decoded([data])


def test_mutated_frames_raise_only_the_typed_error_and_free_memory() -> None:
    limit = 5 * 2**20 + 10_240
    frames = list(mutated_frames(seed=20, count=6_000))
    outcomes = {"read": 0, "refused": 0}

    def run(some: list[bytes]) -> None:
        scratch = bytearray(16_384)
        for data in some:
            decoder = FrameDecoder(limit, scratch)
            try:
                for one in decoder.feed(data):
                    read_command(one.command)
                    if one.payload is not None:
                        look_inside(bytes(one.payload))
                outcomes["read"] += 1
            except ProtocolError:
                outcomes["refused"] += 1

    run(frames[:1_000])
    tracemalloc.start()
    try:
        run(frames[1_000:])
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcomes["read"] > 1_000 and outcomes["refused"] > 1_000
    assert peak < 1_000_000  # no frame here brings more than 20 kB, whatever its sizes promise
    assert held < 200_000
