"""Messages of an entry as bits: what a cumulative ack covers, and the ack set of partial acks."""

from __future__ import annotations

import pytest

from anabranch.client.consumer.segment.batch_bits import ack_of, all_of, bits_of, covered, words_of

AT = (7, 3)


@pytest.mark.parametrize(
    ("floor", "bits"),
    [
        (None, 0b0000),
        ((7, 2, -1), 0b0000),  # an entry before it
        ((6, 9, 3), 0b0000),
        ((7, 3, 0), 0b0001),
        ((7, 3, 2), 0b0111),
        ((7, 3, 3), 0b1111),
        ((7, 3, -1), 0b1111),  # the entry as a whole
        ((7, 4, 0), 0b1111),  # one behind it
        ((8, 0, 0), 0b1111),
    ],
)
def test_what_a_cumulative_ack_covers(floor: tuple[int, int, int] | None, bits: int) -> None:
    assert covered(floor, AT, 4) == bits
    assert covered(floor, AT, 0) == (bits & 1)  # not a batch: one message


def test_ack_set_lists_unacknowledged_messages_of_a_batch() -> None:
    whole = ack_of(AT, -1, 0, 4)
    assert (whole.ledgerId, whole.entryId, list(whole.ack_set), whole.HasField("batch_size")) == (7, 3, [], False)
    part = ack_of(AT, 2, 0b1010, 4)
    assert (part.partition, bits_of(part.ack_set), part.batch_size) == (2, 0b1010, 4)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_ack_set_words_and_bits_convert_both_ways(size: int) -> None:
    for bits in (0, 1, all_of(size), all_of(size) ^ 1, 1 << (size - 1)):
        assert bits_of(words_of(bits, size)) == bits
