"""Frame decoding: sizes, ownership, limits, errors."""

from __future__ import annotations

import tracemalloc

import pytest

from anabranch.protocol.errors import BadFrame, FrameTooLarge, ProtocolError
from anabranch.protocol.frames import BLOCK_BYTES, FRAME_OVERHEAD_MAX, MESSAGE_BYTES_MAX, Frame, FrameDecoder
from tests.support.fuzz.frames import sized

LIMIT = MESSAGE_BYTES_MAX + FRAME_OVERHEAD_MAX


def receive(decoder: FrameDecoder, data: bytes) -> list[Frame]:
    """One chunk through the real interface; views are not copied."""
    room = decoder.buffer()
    assert len(data) <= len(room)
    room[: len(data)] = data
    return list(decoder.received(len(data)))


def test_several_frames_in_one_chunk() -> None:
    decoder = FrameDecoder(LIMIT)
    frames = receive(decoder, sized(b"one") + sized(b"two", b"payload") + sized(b""))
    assert [(bytes(f.command), f.payload and bytes(f.payload)) for f in frames] == [
        (b"one", None),
        (b"two", b"payload"),
        (b"", None),
    ]
    assert not any(f.owned for f in frames)


def test_small_frame_in_two_chunks_is_scratch() -> None:
    data = sized(b"cmd", b"payload")
    for cut in range(1, len(data)):
        decoder = FrameDecoder(LIMIT)
        assert receive(decoder, data[:cut]) == []
        (frame,) = receive(decoder, data[cut:])
        assert (bytes(frame.command), bytes(frame.payload or b""), frame.owned) == (b"cmd", b"payload", False)


def test_large_frame_is_received_into_its_own_buffer() -> None:
    decoder = FrameDecoder(LIMIT)
    payload = bytes(range(256)) * 200
    data = sized(b"cmd", payload)
    assert receive(decoder, data[:16_000]) == []
    room = decoder.buffer()
    assert len(room) == len(data) - 16_000  # exactly the rest, no byte of the next frame
    (frame,) = receive(decoder, data[16_000:])
    assert frame.owned and frame.payload is not None
    receive(decoder, sized(b"x" * 100))
    assert bytes(frame.payload) == payload
    assert frame.payload.obj is room.obj  # the buffer that was received into: no copy


def test_connections_may_share_a_scratch() -> None:
    scratch = bytearray(1024)
    one, other = FrameDecoder(LIMIT, scratch), FrameDecoder(LIMIT, scratch)
    first, second = sized(b"first", b"1" * 100), sized(b"second", b"2" * 100)
    assert receive(one, first[:50]) == []
    assert receive(other, second[:60]) == []
    assert bytes(receive(one, first[50:])[0].payload or b"") == b"1" * 100
    assert bytes(receive(other, second[60:])[0].payload or b"") == b"2" * 100


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_frame_needs_room_for_its_command_size(size: int) -> None:
    with pytest.raises(BadFrame):
        list(FrameDecoder(LIMIT).feed(size.to_bytes(4, "big")))
    with pytest.raises(BadFrame):
        list(FrameDecoder(LIMIT).feed(size.to_bytes(4, "big") + bytes(8)))


def test_command_longer_than_its_frame() -> None:
    for chunk in (8, 20):
        decoder = FrameDecoder(LIMIT)
        with pytest.raises(BadFrame, match="command of 9 bytes in a frame of 12"):
            list(decoder.feed(((12).to_bytes(4, "big") + (9).to_bytes(4, "big") + bytes(12))[:chunk]))


def test_command_longer_than_its_large_frame_fails_at_once() -> None:
    decoder = FrameDecoder(LIMIT)
    assert receive(decoder, (100_000).to_bytes(4, "big")) == []
    with pytest.raises(BadFrame):
        receive(decoder, (99_997).to_bytes(4, "big"))


def test_the_limit_counts_the_length_field() -> None:
    decoder = FrameDecoder(1000)
    assert len(list(decoder.feed(sized(b"c", b"x" * 991)))) == 1
    with pytest.raises(FrameTooLarge) as caught:
        list(decoder.feed(sized(b"c", b"x" * 992)))
    assert caught.value.frame_bytes == 1001
    assert caught.value.code == "frame-too-large"


def test_sound_frames_come_before_the_error() -> None:
    frames = FrameDecoder(1000).feed(sized(b"good") + b"\xff" * 20)
    assert bytes(next(frames).command) == b"good"
    with pytest.raises(FrameTooLarge):
        next(frames)


def test_decoder_is_unusable_after_an_error() -> None:
    decoder = FrameDecoder(1000)
    with pytest.raises(FrameTooLarge):
        list(decoder.feed(b"\xff" * 8))
    with pytest.raises(ProtocolError):
        decoder.buffer()
    with pytest.raises(ProtocolError):
        decoder.received(1)


def test_decoder_is_unusable_after_an_abandoned_iteration() -> None:
    decoder = FrameDecoder(1000)
    data = sized(b"a") + sized(b"b")
    decoder.buffer()[: len(data)] = data
    next(decoder.received(len(data)))
    with pytest.raises(BadFrame, match="left undecoded"):
        decoder.buffer()


def test_announced_size_alone_allocates_little() -> None:
    scratch = bytearray(16 * 1024)
    decoders = [FrameDecoder(LIMIT, scratch) for _ in range(100)]
    tracemalloc.start()
    try:
        for decoder in decoders:
            assert receive(decoder, (MESSAGE_BYTES_MAX).to_bytes(4, "big") + (30).to_bytes(4, "big") + bytes(100)) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100 * 20_000


def test_a_frame_never_allocates_beyond_the_limit() -> None:
    limit = 200_000
    decoder = FrameDecoder(limit)
    data = sized(b"c", bytes(limit - 9))
    assert len(data) == limit
    tracemalloc.start()
    try:
        taken = 0
        while taken < len(data):
            count = min(7000, len(decoder.buffer()), len(data) - taken)
            decoder.buffer()[:count] = data[taken : taken + count]
            frames = list(decoder.received(count))
            taken += count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(frames) == 1 and frames[0].owned
    assert peak < 2 * limit  # the full buffer, and at the last growth the smaller one before it


def test_an_idle_connection_holds_little() -> None:
    scratch = bytearray(256 * 1024)
    tracemalloc.start()
    try:
        decoders = [FrameDecoder(LIMIT, scratch) for _ in range(1000)]
        for decoder in decoders:
            receive(decoder, sized(b"x" * 3000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1000 * 1000


def test_blocks_are_requested_while_large_frames_arrive_quickly() -> None:
    decoder = FrameDecoder(1 << 20, bytearray(512 * 1024))
    large, small = sized(b"c", bytes(10_000)), sized(b"c", bytes(100))

    def receive(data: bytes) -> list[bool]:
        if decoder.block_bytes:
            return [frame.owned for frame in decoder.received_block(data)]
        decoder.buffer()[: len(data)] = data
        return [frame.owned for frame in decoder.received(len(data))]

    assert receive(large * 3) == [False] * 3
    assert decoder.block_bytes == 0  # not many
    assert receive(large * 25) == [False] * 25
    assert decoder.block_bytes == BLOCK_BYTES
    assert receive(large * 25) == [True] * 25  # a full block is given away
    assert receive(large * 15) == [False] * 15  # a half empty one is not
    assert decoder.block_bytes == BLOCK_BYTES
    assert receive(small * 1_500) == [False] * 1_500
    assert decoder.block_bytes == 0  # small ones are cheaper to copy


def test_frame_across_two_blocks_is_owned() -> None:
    decoder = FrameDecoder(1 << 20, bytearray(512 * 1024))
    data = sized(b"c", bytes(range(250)) * 40) * 30
    decoder.buffer()[: len(data)] = data
    assert len(list(decoder.received(len(data)))) == 30
    first, second = data[:205_000], data[205_000:]
    kept = [*decoder.received_block(first), *decoder.received_block(second)]
    assert [bytes(frame.payload or b"") for frame in kept] == [bytes(range(250)) * 40] * 30
    assert kept[20].owned
