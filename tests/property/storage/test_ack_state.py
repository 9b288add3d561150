"""The fast acknowledgement state against a naive one made of sets, under any order of operations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.position import EARLIEST, Position
from anabranch.storage.cursor.ack_bitmap import CHUNK
from anabranch.storage.cursor.ack_state import AckState, mask_of, words_of
from anabranch.storage.cursor.state_codec import CursorSaved, decode, encode
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain

LEDGERS = ((3, 40), (5, 0), (8, 3 * CHUNK + 30), (9, 25))
BATCH = 5
ALL = [Position(ledger, entry) for ledger, count in LEDGERS for entry in range(count)]


def chain() -> LedgerChain:
    return LedgerChain(ChainLedger(ledger, entries=count, sealed=ledger != 9) for ledger, count in LEDGERS)


class Naive:
    """One set of acknowledged positions and one mask per started batch."""

    def __init__(self) -> None:
        self.acked: set[Position] = set()
        self.masks: dict[Position, int] = {}

    def ack(self, p: Position, mask: int | None) -> bool:
        if p in self.acked or p not in ALL_SET:
            return False
        if mask is not None:
            left = self.masks.get(p, (1 << BATCH) - 1) & mask
            if left:
                self.masks[p] = left
                return False
        self.masks.pop(p, None)
        self.acked.add(p)
        return True

    def ack_up_to(self, p: Position, mask: int | None) -> None:
        for each in ALL:
            if each < p or (each == p and mask is None):
                self.ack(each, None)
        if mask is not None:
            self.ack(p, mask)

    def reset(self, p: Position) -> None:
        self.acked = {each for each in ALL if each < p}
        self.masks = {}

    def first_unacked(self, p: Position) -> Position | None:
        return next((each for each in ALL if each >= p and each not in self.acked), None)


ALL_SET = frozenset(ALL)
NEAR = [p for p in ALL if p.ledger != 8 or p.entry < 20 or min(p.entry % CHUNK, -p.entry % CHUNK) < 4]
positions = st.one_of(
    st.sampled_from(NEAR), st.builds(Position, st.sampled_from((3, 4, 5, 8, 9, 10)), st.integers(0, 45))
)
masks = st.one_of(st.none(), st.integers(0, (1 << BATCH) - 1))
operations = st.one_of(
    st.tuples(st.just("ack"), positions, masks),
    st.tuples(st.just("ack"), positions, st.none()),
    st.tuples(st.just("range"), positions, st.integers(1, 2 * CHUNK + 9)),
    st.tuples(st.just("cumulative"), st.sampled_from(NEAR), masks),
    st.tuples(st.just("reset"), st.sampled_from(NEAR), st.none()),
    st.tuples(st.just("restore"), st.just(EARLIEST), st.none()),
)


def agree(fast: AckState, naive: Naive) -> None:
    pending = [p for p in ALL if p not in naive.acked]
    assert [p for p in ALL if not fast.is_acked(p)] == pending
    first = pending[0] if pending else Position(9, 25)
    assert fast.next_unacked(EARLIEST) == first
    assert fast.holes == sum(1 for p in naive.acked if p > fast.mark_delete)
    assert fast.mark_delete < first
    for p in NEAR:
        mask = naive.masks.get(p)
        assert fast.ack_set(p) == (None if mask is None else words_of(mask))
    for p in NEAR[::2]:
        expected = naive.first_unacked(p)
        assert fast.next_unacked(p) == (Position(9, 25) if expected is None else expected)
    runs = [Position(ledger, first + i) for ledger, first, count in fast.hole_runs() for i in range(count)]
    assert runs == sorted(p for p in naive.acked if p > fast.mark_delete)


@given(st.lists(operations, max_size=25))
def test_fast_equals_naive(steps: list[tuple[str, Position, int | None]]) -> None:
    fast, naive = AckState(chain()), Naive()
    for kind, p, mask in steps:
        match kind:
            case "ack":
                words = None if mask is None else words_of(mask)
                assert fast.ack(p, words, BATCH if words is not None else 0) == naive.ack(p, mask)
            case "range":
                assert mask is not None
                fast.ack_range(p.ledger, p.entry, mask)
                for entry in range(p.entry, p.entry + mask):
                    naive.ack(Position(p.ledger, entry), None)
            case "cumulative":
                if mask is not None:  # as the broker does: the batch size is known from its first ack
                    fast.ack(p, words_of((1 << BATCH) - 1), BATCH)
                    naive.ack(p, (1 << BATCH) - 1)
                fast.ack_up_to(p, None if mask is None else words_of(mask))
                naive.ack_up_to(p, mask)
            case "reset":
                fast.reset(p)
                naive.reset(p)
            case _:
                (record,) = decode(encode([CursorSaved("s", {}, fast.snapshot(), 0)]))
                assert isinstance(record, CursorSaved)
                fast = AckState(chain())
                fast.restore(record.acks)
    agree(fast, naive)


@given(st.integers(0, 1 << 200))
def test_words_and_masks_are_inverse(mask: int) -> None:
    words = words_of(mask)
    assert mask_of(words) == mask
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
