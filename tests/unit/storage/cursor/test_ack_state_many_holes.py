"""An acknowledgement costs about the same with a million holes as with none; both are measured in one run."""

from __future__ import annotations

import time
from collections.abc import Callable

from anabranch.model.position import EARLIEST, Position
from anabranch.storage.cursor.ack_bitmap import CHUNK
from anabranch.storage.cursor.ack_state import AckState
from anabranch.storage.cursor.state_codec import CursorSaved, encode
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain

ENTRIES = 2_100_000


def with_holes(count: int) -> AckState:
    """Every second entry acknowledged, `count` times, from entry 101 on."""
    acks = AckState(LedgerChain([ChainLedger(1, entries=ENTRIES)]))
    pattern = b"\xaa" * (CHUNK // 8)
    index = 0
    while acks.holes < count:
        acks._restore_chunk(1, index, int.from_bytes(pattern, "little"))
        index += 1
    return acks


def fastest(work: Callable[[], None], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times)


def exercise(acks: AckState, base: int) -> Callable[[], None]:
    """New acks among the holes, in order and not, with the queries of a dispatcher."""
    entries = iter(range(base, ENTRIES, 2))

    def work() -> None:
        for _ in range(2000):
            p = Position(1, next(entries))
            acks.ack(p)
            acks.is_acked(p)
            acks.next_unacked(Position(1, p.entry - 40))
            acks.ack_set(p)

    return work


def test_a_million_holes_are_as_fast_as_a_few() -> None:
    few, many = with_holes(2000), with_holes(1_000_000)
    assert many.holes >= 1_000_000
    dense, sparse = exercise(many, 1_000_000), exercise(few, 2000)
    # Three attempts in turns: a busy machine may disturb one side of one attempt; a cost that grows with the holes all.
    assert min(fastest(dense) / fastest(sparse) for _ in range(3)) < 5


def test_a_million_holes_in_one_run_are_skipped_at_once() -> None:
    acks = AckState(LedgerChain([ChainLedger(1, entries=ENTRIES)]))
    acks.ack_range(1, 1, 2_000_000)
    assert acks.next_unacked(Position(1, 5)) == Position(1, 2_000_001)
    small = AckState(LedgerChain([ChainLedger(1, entries=ENTRIES)]))
    small.ack_range(1, 1, 2 * CHUNK)

    def ask(state: AckState) -> Callable[[], None]:
        def work() -> None:
            for _ in range(500):
                state.next_unacked(Position(1, 5))

        return work

    assert min(fastest(ask(acks)) / fastest(ask(small)) for _ in range(3)) < 5
    acks.ack(Position(1, 0))
    assert (acks.mark_delete, acks.holes) == (Position(1, 2_000_000), 0)


def test_a_million_holes_are_stored_as_bits() -> None:
    acks = with_holes(1_000_000)
    assert len(encode([CursorSaved("s", {}, acks.snapshot(), 0)])) < 300_000
    full = AckState(LedgerChain([ChainLedger(1, entries=ENTRIES)]))
    full.ack_range(1, 1, 1_000_000)
    assert len(encode([CursorSaved("s", {}, full.snapshot(), 0)])) < 2000
    assert full.mark_delete == EARLIEST
