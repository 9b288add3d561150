"""Packets of protocol version 2. The expected bytes are written by hand from the format's description."""

from __future__ import annotations

import pytest

from anabranch.storage.bookkeeper import packets
from anabranch.storage.bookkeeper.entry_body import body_head, read_body
from anabranch.storage.bookkeeper.errors import EntryTooLarge, MalformedPacket
from anabranch.storage.bookkeeper.packets import PAYLOAD_BYTES_MAX, Answer, AnswerDecoder, Code, Flag, Op, master_key

KEY = master_key(b"")


def words(*numbers: tuple[int, int]) -> bytes:
    return b"".join(number.to_bytes(size, "big", signed=True) for number, size in numbers)


def test_add_is_length_word_key_and_body() -> None:
    head = body_head(7, 3, 2, 40, b"hello")
    front, payload = packets.add(KEY, head, b"hello", Flag.RECOVERY | Flag.HIGH_PRIORITY)
    assert payload == b"hello"
    assert front == words((4 + 20 + 36 + 5, 4)) + bytes([2, 1, 0, 6]) + KEY + head
    assert head[:32] == words((7, 8), (3, 8), (2, 8), (40, 8))


def test_master_key_is_a_digest_of_the_password() -> None:
    assert KEY.hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"  # SHA-1 of "ledger"
    assert master_key(b"a") != KEY


def test_read_has_a_key_only_when_it_fences() -> None:
    assert packets.read(7, -1) == words((20, 4)) + bytes([2, 2, 0, 0]) + words((7, 8), (-1, 8))
    fenced = packets.read(7, -1, Flag.FENCE, KEY)
    assert fenced == words((40, 4)) + bytes([2, 2, 0, 1]) + words((7, 8), (-1, 8)) + KEY
    with pytest.raises(AssertionError):
        packets.read(7, 0, Flag.FENCE)


def test_batch_read_names_its_request() -> None:
    expected = words((40, 4)) + bytes([2, 7, 0, 0]) + words((7, 8), (5, 8), (99, 8), (100, 4), (1 << 20, 8))
    assert packets.batch_read(7, 5, 99, 100, 1 << 20) == expected


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_answers_are_decoded_however_they_are_cut(step: int) -> None:
    added = words((24, 4)) + bytes([2, 1, 0, 0]) + words((0, 4), (7, 8), (3, 8))
    absent = words((24, 4)) + bytes([2, 2, 0, 0]) + words((2, 4), (7, 8), (4, 8))
    read = words((24 + 5, 4)) + bytes([2, 2, 0, 0]) + words((0, 4), (7, 8), (5, 8)) + b"BODY!"
    several = words((2, 4)) + b"aa" + words((3, 4)) + b"bbb"
    batch = words((32 + len(several), 4)) + bytes([2, 7, 0, 0]) + words((0, 4), (7, 8), (5, 8), (99, 8)) + several
    stream, decoder, found = added + absent + read + batch, AnswerDecoder(), []
    for at in range(0, len(stream), step):
        found += list(decoder.feed(stream[at : at + step]))
    assert found == [
        Answer(Op.ADD, Code.OK, 7, 3, 0, ()),
        Answer(Op.READ, Code.NO_ENTRY, 7, 4, 0, ()),
        Answer(Op.READ, Code.OK, 7, 5, 0, (memoryview(b"BODY!"),)),
        Answer(Op.BATCH_READ, Code.OK, 7, 5, 99, (memoryview(b"aa"), memoryview(b"bbb"))),
    ]


@pytest.mark.parametrize(
    "sent",
    [
        words((4, 4)) + b"abcd",
        words((1 << 30, 4)),
        words((24, 4)) + bytes([3, 1, 0, 0]) + bytes(20),
        words((24, 4)) + bytes([2, 9, 0, 0]) + bytes(20),
        words((24 + 4, 4)) + bytes([2, 7, 0, 0]) + bytes(24),
        words((32 + 6, 4)) + bytes([2, 7, 0, 0]) + bytes(28) + words((9, 4)) + b"ab",
        words((32 + 6, 4)) + bytes([2, 7, 0, 0]) + bytes(28) + words((-1, 4)) + b"ab",
        words((32 + 2, 4)) + bytes([2, 7, 0, 0]) + bytes(28) + b"ab",
    ],
)
def test_bytes_that_are_no_answer_are_refused(sent: bytes) -> None:
    with pytest.raises(MalformedPacket):
        list(AnswerDecoder().feed(sent))


def test_payload_above_the_frame_limit_is_refused_before_it_is_sent() -> None:
    for size in (PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1):
        payload = bytes(size)
        head = body_head(1, 0, -1, size, payload)
        if size <= PAYLOAD_BYTES_MAX:
            assert len(packets.add(KEY, head, payload)[0]) + size == packets.FRAME_BYTES_MAX
        else:
            with pytest.raises(EntryTooLarge):
                packets.add(KEY, head, payload)


def test_damaged_or_foreign_body_is_no_body() -> None:
    raw = body_head(7, 3, 2, 40, b"hello") + b"hello"
    body = read_body(raw, 7, 3)
    assert body is not None
    assert (body.last_confirmed, body.length, bytes(body.payload)) == (2, 40, b"hello")
    assert read_body(raw, 7, None) == body
    assert read_body(raw, 8, 3) is None
    assert read_body(raw, 7, 4) is None
    assert read_body(raw[:30], 7, 3) is None
    for at in range(len(raw)):
        assert read_body(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :], 7, 3) is None
