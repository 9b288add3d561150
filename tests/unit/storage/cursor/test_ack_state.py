"""Acknowledgement state by example: borders of ledgers, batches, cumulative acks, seeks, invalid positions."""

from __future__ import annotations

import pytest

from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.storage.cursor.ack_bitmap import CHUNK
from anabranch.storage.cursor.ack_state import AckState, mask_of, words_of
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain


def chain(*lengths: int, is_open: bool = True) -> LedgerChain:
    """Ledgers 10, 20, 30 … of the lengths given; the last one is open."""
    last = len(lengths) - 1
    return LedgerChain(
        ChainLedger(10 * (index + 1), entries=count, messages=count, sealed=index < last or not is_open)
        for index, count in enumerate(lengths)
    )


def test_in_order_acks_move_the_mark_delete_position() -> None:
    acks = AckState(chain(3))
    assert [acks.ack(Position(10, entry)) for entry in range(3)] == [True, True, True]
    assert acks.mark_delete == Position(10, 2)
    assert acks.holes == 0
    assert acks.next_unacked(EARLIEST) == Position(10, 3)


def test_a_hole_waits_until_the_gap_before_it_closes() -> None:
    acks = AckState(chain(5))
    assert acks.ack(Position(10, 1))
    assert acks.ack(Position(10, 3))
    assert (acks.mark_delete, acks.holes) == (EARLIEST, 2)
    assert acks.next_unacked(Position(10, 1)) == Position(10, 2)
    assert acks.ack(Position(10, 0))
    assert (acks.mark_delete, acks.holes) == (Position(10, 1), 1)
    assert acks.ack(Position(10, 2))
    assert (acks.mark_delete, acks.holes) == (Position(10, 3), 0)


def test_acking_twice_counts_once() -> None:
    acks = AckState(chain(5))
    assert acks.ack(Position(10, 2))
    assert not acks.ack(Position(10, 2))
    acks.ack_up_to(Position(10, 3))
    assert not acks.ack(Position(10, 1))
    assert acks.holes == 0


def test_mark_delete_crosses_ledgers_and_gaps() -> None:
    acks = AckState(chain(2, 0, 3))
    acks.ack(Position(30, 0))
    acks.ack(Position(10, 0))
    acks.ack(Position(10, 1))
    assert acks.mark_delete == Position(30, 0)
    assert acks.next_unacked(Position(10, 0)) == Position(30, 1)


def test_next_unacked_jumps_from_the_end_of_a_sealed_ledger() -> None:
    acks = AckState(chain(3, 2))
    acks.ack(Position(10, 2))
    acks.ack(Position(20, 0))
    assert acks.next_unacked(Position(10, 2)) == Position(20, 1)
    acks.ack(Position(20, 1))
    assert acks.next_unacked(Position(10, 2)) == Position(20, 2), "one past the end"


def test_next_unacked_after_a_sealed_last_ledger_is_past_its_end() -> None:
    acks = AckState(chain(2, is_open=False))
    acks.ack_up_to(Position(10, 1))
    assert acks.next_unacked(EARLIEST) == Position(10, 2)
    assert acks.next_unacked(LATEST) == LATEST


def test_a_position_that_does_not_exist_is_ignored() -> None:
    acks = AckState(chain(2, 2))
    for lie in (Position(10, 2), Position(15, 0), Position(20, 2), Position(1 << 60, 5), Position(20, -1)):
        assert not acks.ack(lie)
    assert (acks.mark_delete, acks.holes) == (EARLIEST, 0)


def test_a_cumulative_ack_beyond_the_end_stops_at_the_end() -> None:
    acks = AckState(chain(2, 2))
    acks.ack_up_to(Position(99, 7))
    assert acks.mark_delete == Position(20, 1)
    acks = AckState(chain(2, 2))
    acks.ack_up_to(Position(10, 1000))
    assert acks.mark_delete == Position(10, 1)


def test_cumulative_never_moves_back() -> None:
    acks = AckState(chain(9))
    acks.ack_up_to(Position(10, 5))
    acks.ack_up_to(Position(10, 2))
    assert acks.mark_delete == Position(10, 5)


def test_batch_acks_combine_until_the_entry_is_done() -> None:
    acks = AckState(chain(2))
    p = Position(10, 0)
    assert not acks.ack(p, [0b1110], 4)
    assert acks.ack_set(p) == (0b1110,)
    assert not acks.ack(p, [0b0111], 4)
    assert acks.ack_set(p) == (0b0110,)
    assert acks.ack(p, [0b1001], 4)
    assert acks.ack_set(p) is None
    assert acks.mark_delete == p


def test_bits_beyond_the_batch_are_ignored() -> None:
    acks = AckState(chain(1))
    assert acks.ack(Position(10, 0), [-1 << 3], 3)


def test_cumulative_batch_ack() -> None:
    acks = AckState(chain(5))
    acks.ack_up_to(Position(10, 3), [0b1100])
    assert acks.mark_delete == Position(10, 2)
    assert acks.ack_set(Position(10, 3)) == (0b1100,)
    acks.ack_up_to(Position(10, 3))
    assert acks.ack_set(Position(10, 3)) is None


def test_cumulative_ack_counts_the_holes_it_passes() -> None:
    acks = AckState(chain(3 * CHUNK, 10))
    for entry in (1, 5, CHUNK - 1, CHUNK, CHUNK + 7, 3 * CHUNK - 1):
        acks.ack(Position(10, entry))
    acks.ack(Position(20, 3))
    acks.ack_up_to(Position(10, CHUNK + 1))
    assert acks.holes == 3
    acks.ack_up_to(Position(20, 0))
    assert acks.holes == 1


def test_reset_drops_all_acks() -> None:
    acks = AckState(chain(5, 5))
    acks.ack(Position(10, 3))
    acks.ack(Position(10, 1), [1], 2)
    acks.reset(Position(20, 0))
    assert acks.is_acked(Position(10, 4))
    assert not acks.is_acked(Position(20, 0))
    acks.reset(EARLIEST)
    assert (acks.mark_delete, acks.holes, acks.ack_set(Position(10, 1))) == (EARLIEST, 0, None)
    assert not acks.is_acked(Position(10, 3))


def test_full_chunks_collapse_and_can_be_queried() -> None:
    acks = AckState(chain(4 * CHUNK))
    for entry in range(1, 3 * CHUNK):
        acks.ack(Position(10, entry))
    assert acks.holes == 3 * CHUNK - 1
    assert acks.next_unacked(Position(10, 1)) == Position(10, 3 * CHUNK)
    assert not acks.ack(Position(10, CHUNK + 5))
    (saved,) = acks.snapshot().ledgers
    assert saved.full == ((1, 2),)
    acks.ack(Position(10, 0))
    assert (acks.mark_delete, acks.holes) == (Position(10, 3 * CHUNK - 1), 0)


def test_restore_skips_trimmed_entries() -> None:
    acks = AckState(chain(10, 10))
    for p in (Position(10, 3), Position(20, 2), Position(20, 9)):
        acks.ack(p)
    acks.ack(Position(20, 5), [1], 2)
    shorter = AckState(LedgerChain([ChainLedger(20, entries=6, sealed=True)]))
    shorter.restore(acks.snapshot())
    assert shorter.holes == 1
    assert shorter.is_acked(Position(20, 2))
    assert not shorter.is_acked(Position(20, 9))
    assert shorter.ack_set(Position(20, 5)) == (1,)


@pytest.mark.parametrize(
    ("mask", "words"), [(0, ()), (1, (1,)), (1 << 63, (-(1 << 63),)), ((1 << 70) | 5, (5, 64)), ((1 << 64) - 1, (-1,))]
)
def test_words_are_signed_64_bit(mask: int, words: tuple[int, ...]) -> None:
    assert words_of(mask) == words
    assert mask_of(words) == mask
