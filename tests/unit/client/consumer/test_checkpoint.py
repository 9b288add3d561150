"""Message ids and checkpoints as bytes. The formats are written down here byte by byte and must never change."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from anabranch import Checkpoint, MessageId
from anabranch.client.consumer.checkpoint import After, Done, FromStart, FromTime, Kind, Mark, TopicCut
from anabranch.client.errors import BadOption

SCALABLE = "topic://public/default/t"
REGULAR = "persistent://public/default/t"

ONE = MessageId(SCALABLE, 3, 7, 1, 4, 9)
ONE_BYTES = (
    (9).to_bytes(8)
    + (8).to_bytes(4)
    + bytes.fromhex("0803100720013004")
    + (0).to_bytes(4)
    + len(SCALABLE).to_bytes(4)
    + SCALABLE.encode()
    + b"\xff\xff\xff\xff"
)
RUN = Checkpoint(
    Kind.RUN,
    (
        TopicCut(
            SCALABLE, {0: Done(), 1: After(MessageId(SCALABLE, 3, 7, lane=1)), 2: FromStart(), 3: FromTime(5)}, 6, 8
        ),
    ),
    created_ms=1000,
)
RUN_BYTES = b"".join(
    [
        b"\x00",
        (1).to_bytes(4) + (1).to_bytes(8) + (4).to_bytes(4) + bytes.fromhex("08031007"),
        b"\x01" + (1000).to_bytes(8) + (1).to_bytes(4),
        len(SCALABLE).to_bytes(4) + SCALABLE.encode() + (8).to_bytes(8) + (6).to_bytes(8) + (4).to_bytes(4),
        (0).to_bytes(8) + b"\x02",
        (1).to_bytes(8) + b"\x01" + (4).to_bytes(4) + bytes.fromhex("08031007"),
        (2).to_bytes(8) + b"\x00",
        (3).to_bytes(8) + b"\x03" + (5).to_bytes(8),
    ]
)


def test_message_id_bytes_match_v5_clients() -> None:
    assert ONE.to_bytes() == ONE_BYTES
    assert MessageId.from_bytes(ONE_BYTES) == ONE


@pytest.mark.parametrize("lane", [-1, 0, 5])
def test_message_id_of_regular_topic_keeps_partition(lane: int) -> None:
    one = MessageId(REGULAR, 1 << 40, 2, lane=lane)
    assert MessageId.from_bytes(one.to_bytes()) == one


def test_message_id_bytes_carry_covered_positions() -> None:
    other = "topic://public/default/u"
    covers = (MessageId(SCALABLE, 1, 2, lane=4), MessageId(other, 5, 6, 0, 2, 1), MessageId(other, 5, 7, lane=2))
    one = MessageId(SCALABLE, 3, 7, lane=9, covers=covers)
    assert MessageId.from_bytes(one.to_bytes()).covers == covers
    assert one == MessageId(SCALABLE, 3, 7, lane=9)


def test_bare_and_short_message_ids_are_read() -> None:
    assert MessageId.from_bytes(bytes.fromhex("080310071802")) == MessageId("", 3, 7, lane=2)
    assert MessageId.from_bytes(ONE_BYTES[:20]).place == (3, 7, 1)
    assert MessageId.from_bytes(ONE_BYTES[:24]).place == (3, 7, 1)


@pytest.mark.parametrize("size", [0, 1, 9, 19, 23, 30, len(ONE_BYTES) - 1])
def test_truncated_message_ids_are_refused(size: int) -> None:
    with pytest.raises(BadOption):
        MessageId.from_bytes(ONE_BYTES[:size])


def test_checkpoint_bytes_of_a_run() -> None:
    """Scenario 76: via bytes too."""
    assert RUN.to_bytes() == RUN_BYTES
    assert Checkpoint.from_bytes(RUN_BYTES) == RUN
    assert Checkpoint.from_bytes(RUN_BYTES).created_ms == 1000


def test_checkpoint_bytes_of_earliest_latest_and_time() -> None:
    """Scenario 85."""
    assert Checkpoint.earliest().to_bytes() == b"\x01"
    assert Checkpoint.latest().to_bytes() == b"\x02"
    assert Checkpoint.at_time(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).to_bytes() == b"\x03" + (1000).to_bytes(8)
    for one in (Checkpoint.earliest(), Checkpoint.latest(), Checkpoint.at_time(77)):
        assert Checkpoint.from_bytes(one.to_bytes()) == one
    with pytest.raises(BadOption):
        Checkpoint.at_time(datetime(2026, 1, 1))
    with pytest.raises(BadOption):
        Checkpoint.at_time(-1)


@pytest.mark.parametrize("size", [0, *range(2, len(RUN_BYTES))])
def test_corrupt_checkpoints_are_rejected(size: int) -> None:
    """Scenario 85. Only what another client would have written ends earlier."""
    is_foreign = size == 21
    if is_foreign:
        assert Checkpoint.from_bytes(RUN_BYTES[:size]).cut_of(SCALABLE) is not None
        return
    with pytest.raises(BadOption):
        Checkpoint.from_bytes(RUN_BYTES[:size])


@pytest.mark.parametrize("data", [b"\x04", b"\x01x", RUN_BYTES + b"x", RUN_BYTES[:21] + b"\x02" + RUN_BYTES[22:]])
def test_unknown_kinds_versions_and_trailing_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(BadOption):
        Checkpoint.from_bytes(data)


def test_checkpoint_of_the_java_client_is_read() -> None:
    cut = Checkpoint.from_bytes(RUN_BYTES[:21]).cut_of(SCALABLE)
    assert cut is not None and cut.epoch == -1
    (mark,) = cut.marks.values()
    assert isinstance(mark, After) and mark.id.place == (3, 7, -1)


def test_merge_takes_the_farthest_mark_of_every_segment() -> None:
    def run(marks: dict[int, Mark]) -> Checkpoint:
        return Checkpoint(Kind.RUN, (TopicCut(SCALABLE, marks, 3, 1),))

    first, second = MessageId(SCALABLE, 1, 1, lane=0), MessageId(SCALABLE, 1, 2, lane=0)
    merged = Checkpoint.merge(
        [run({0: After(first), 1: FromStart(), 2: Done()}), run({0: After(second), 2: FromStart()})]
    )
    assert merged.cuts == (TopicCut(SCALABLE, {0: After(second), 1: FromStart(), 2: Done()}, 3, 1),)
    with pytest.raises(BadOption):
        Checkpoint.merge([Checkpoint.latest()])
    with pytest.raises(BadOption):
        Checkpoint.merge([run({0: Done()}), Checkpoint(Kind.RUN, (TopicCut(SCALABLE, {0: Done()}, 3, 2),))])
