"""Acknowledgements of one cursor: a mark-delete position, holes above it, and partly acknowledged batches. No I/O.

A *hole* is an acknowledged entry above the mark-delete position. Works over the ledgers of a chain; `ack_bitmap` holds
the bits of one ledger.

Words are those of the wire: bits of the messages of a batch that are NOT acknowledged, 64 per signed integer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.model.position import EARLIEST, Position
from anabranch.storage.cursor.ack_bitmap import CHUNK, SHIFT, AckBits
from anabranch.storage.ledger.ledger_chain import LedgerChain

_U64 = (1 << 64) - 1


def mask_of(words: Sequence[int]) -> int:
    """Wire words to one integer; bit i is message i, 1 = not acknowledged."""
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & _U64) << (64 * index)
    return mask


def words_of(mask: int) -> tuple[int, ...]:
    """One integer to wire words (signed, no trailing zero word)."""
    words = []
    while mask:
        word = mask & _U64
        words.append(word - (1 << 64) if word >> 63 else word)
        mask >>= 64
    return tuple(words)


@dataclass(frozen=True, slots=True)
class LedgerAcks:
    """Holes of one ledger, as they are stored."""

    ledger: int
    full: tuple[tuple[int, int], ...]  # runs of full chunks: (first chunk, count)
    chunks: tuple[tuple[int, bytes], ...]  # (chunk, 512 bytes), least significant bit first
    partial: tuple[tuple[int, int], ...]  # (entry, mask of unacknowledged messages)


@dataclass(frozen=True, slots=True)
class AckSnapshot:
    mark_delete: Position
    ledgers: tuple[LedgerAcks, ...]


class AckState:
    """Everything <= `mark_delete` is acknowledged, and so are `holes` entries above it."""

    __slots__ = ("_chain", "_ledgers", "holes", "mark_delete")

    def __init__(self, chain: LedgerChain, mark_delete: Position = EARLIEST) -> None:
        self._chain = chain
        self.mark_delete = mark_delete
        self.holes = 0
        self._ledgers: dict[int, AckBits] = {}

    def is_acked(self, p: Position) -> bool:
        if p <= self.mark_delete:
            return True
        bits = self._ledgers.get(p[0])
        return bits is not None and bits.has(p[1])

    def is_untouched_from(self, p: Position) -> bool:
        """Nothing at or after `p` is acknowledged, not even partly."""
        return p > self.mark_delete and not self._ledgers

    def ack(self, p: Position, words: Sequence[int] | None = None, batch_size: int = 0) -> bool:
        """Acknowledge one entry, or with `words` some of its messages; True if the whole entry is acknowledged now.

        A position that does not exist is ignored, because it came from a client.
        """
        if p <= self.mark_delete or not self._chain.contains(p):
            return False
        ledger, entry = p
        bits = self._ledgers.get(ledger)
        if words is not None:
            if bits is None:
                bits = self._ledgers[ledger] = AckBits()
            elif bits.has(entry):
                return False
            if self._narrow(bits, entry, mask_of(words), batch_size):
                return False
        if bits is not None and bits.partial:
            bits.drop_mask(entry)
        if p == self._chain.after(self.mark_delete):
            self.mark_delete = p
            if bits is not None:
                bits.forget(entry, entry + 1)
            if self.holes:
                self._advance()
            self._prune()
            return True
        if bits is None:
            bits = self._ledgers[ledger] = AckBits()
        if not bits.add(entry):
            return False
        self.holes += 1
        return True

    def ack_range(self, ledger: int, first: int, count: int) -> None:
        """Acknowledge entries first … first+count-1 of one ledger, as far as they exist."""
        info = self._chain.get(ledger)
        if info is None:
            return
        stop = min(first + count, info.entries)
        start = max(first, 0)
        if self.mark_delete.ledger == ledger:
            start = max(start, self.mark_delete.entry + 1)
        elif self.mark_delete.ledger > ledger:
            return
        if start >= stop:
            return
        bits = self._ledgers.setdefault(ledger, AckBits())
        for index in range(start >> SHIFT, ((stop - 1) >> SHIFT) + 1):
            base = index << SHIFT
            low, high = max(start - base, 0), min(stop - base, CHUNK)
            self.holes += bits.add_chunk(index, ((1 << high) - 1) ^ ((1 << low) - 1))
            border = bits.partial.get(index)
            if border is not None:
                for entry in [entry for entry in border if start <= entry < stop]:
                    bits.drop_mask(entry)
        self._advance()

    def ack_up_to(self, p: Position, words: Sequence[int] | None = None) -> None:
        """Acknowledge everything up to p; with `words`, everything before p and those messages of p."""
        clipped = self._clip(p)
        if clipped != p:
            p, words = clipped, None
        if p > self.mark_delete:
            target = p if words is None else Position(p.ledger, p.entry - 1)
            if target > self.mark_delete:
                self._move_to(target)
                self._advance()
        if words is not None:
            self.ack(p, words)

    def ack_set(self, p: Position) -> tuple[int, ...] | None:
        """Unacknowledged bits of a partly acknowledged batch; None if nothing or all of it is acknowledged."""
        bits = self._ledgers.get(p[0])
        mask = None if bits is None or not bits.partial else bits.mask(p[1])
        return None if mask is None else words_of(mask)

    def next_unacked(self, p: Position) -> Position:
        """First slot >= p that is not acknowledged; may be one past the end."""
        p = self._chain.after(self.mark_delete) if p <= self.mark_delete else self._chain.at_or_after(p)
        while True:
            bits = self._ledgers.get(p.ledger)
            entry = p.entry if bits is None else bits.first_clear(p.entry)
            info = self._chain.get(p.ledger)
            if info is None or not info.sealed or entry < info.entries:
                return p if entry == p.entry else Position(p.ledger, entry)
            follower = self._chain.after(Position(p.ledger, entry - 1))
            if follower.ledger == p.ledger:
                return follower
            p = follower

    def reset(self, next_to_read: Position) -> None:
        """Reset: `next_to_read` is the next entry to deliver."""
        self._ledgers.clear()
        self.holes = 0
        self.mark_delete = (
            EARLIEST if next_to_read <= EARLIEST else Position(next_to_read.ledger, next_to_read.entry - 1)
        )

    def hole_runs(self) -> Iterator[tuple[int, int, int]]:
        """(ledger, first, count) of each run of acknowledged entries above the mark-delete position."""
        for ledger in sorted(self._ledgers):
            bits = self._ledgers[ledger]
            floor = self.mark_delete.entry + 1 if ledger == self.mark_delete.ledger else 0
            start = stop = -1
            for index in sorted(bits.chunks):
                chunk, base = bits.chunks[index], index << SHIFT
                value = (1 << CHUNK) - 1 if isinstance(chunk, int) else int.from_bytes(chunk, "little")
                if base < floor:
                    low = min(floor - base, CHUNK)
                    value = value >> low << low
                while value:
                    low = (value & -value).bit_length() - 1
                    shifted = value >> low
                    length = (~shifted & (shifted + 1)).bit_length() - 1
                    if base + low == stop:
                        stop += length
                    else:
                        if stop > start:
                            yield ledger, start, stop - start
                        start, stop = base + low, base + low + length
                    value = shifted >> length << (low + length)
            if stop > start:
                yield ledger, start, stop - start

    def snapshot(self) -> AckSnapshot:
        return AckSnapshot(self.mark_delete, tuple(self._ledger_snapshot(ledger) for ledger in sorted(self._ledgers)))

    def _ledger_snapshot(self, ledger: int) -> LedgerAcks:
        bits = self._ledgers[ledger]
        full: list[tuple[int, int]] = []
        chunks: list[tuple[int, bytes]] = []
        for index in sorted(bits.chunks):
            chunk = bits.chunks[index]
            if not isinstance(chunk, int):
                chunks.append((index, bytes(chunk)))
            elif full and sum(full[-1]) == index:
                full[-1] = (full[-1][0], full[-1][1] + 1)
            else:
                full.append((index, 1))
        partial = sorted((entry, mask) for border in bits.partial.values() for entry, mask in border.items())
        return LedgerAcks(ledger, tuple(full), tuple(chunks), tuple(partial))

    def restore(self, snapshot: AckSnapshot) -> None:
        """Restore stored acknowledgements, except those of entries that no longer exist."""
        self._ledgers.clear()
        self.holes = 0
        self.mark_delete = self._clip(snapshot.mark_delete)
        for saved in snapshot.ledgers:
            for first, count in saved.full:
                self.ack_range(saved.ledger, first << SHIFT, count << SHIFT)
            for index, raw in saved.chunks:
                self._restore_chunk(saved.ledger, index, int.from_bytes(raw, "little"))
            for entry, mask in saved.partial:
                self.set_unacked(Position(saved.ledger, entry), mask)
        self._advance()

    def _restore_chunk(self, ledger: int, index: int, value: int) -> None:
        info = self._chain.get(ledger)
        if info is None or ledger < self.mark_delete.ledger:
            return
        base = index << SHIFT
        value &= (1 << min(max(info.entries - base, 0), CHUNK)) - 1
        if ledger == self.mark_delete.ledger and base <= self.mark_delete.entry:
            low = min(self.mark_delete.entry + 1 - base, CHUNK)
            value = value >> low << low
        if value:
            self.holes += self._ledgers.setdefault(ledger, AckBits()).add_chunk(index, value)

    def set_unacked(self, p: Position, mask: int) -> None:
        """Set which messages of a batch are unacknowledged (replay)."""
        if p > self.mark_delete and self._chain.contains(p) and not self.is_acked(p):
            bits = self._ledgers.setdefault(p.ledger, AckBits())
            self._narrow(bits, p.entry, mask, 0)

    def _narrow(self, bits: AckBits, entry: int, mask: int, batch_size: int) -> int:
        known = bits.mask(entry)
        if known is not None:
            mask &= known
        elif batch_size:
            mask &= (1 << batch_size) - 1
        if mask:
            bits.set_mask(entry, mask)
        return mask

    def _clip(self, p: Position) -> Position:
        """Limits an acknowledgement to what exists."""
        info = self._chain.get(p.ledger)
        if info is not None:
            return p if p.entry < info.entries else info.end
        return min(p, self._chain.last) if p.ledger > self._chain.last.ledger else p

    def _move_to(self, target: Position) -> None:
        old = self.mark_delete
        for ledger in [ledger for ledger in self._ledgers if ledger <= target.ledger]:
            bits = self._ledgers[ledger]
            start = old.entry + 1 if ledger == old.ledger else 0
            if ledger < target.ledger:
                info = self._chain.get(ledger)
                self.holes -= bits.count(
                    start, info.entries if info is not None else (max(bits.chunks, default=-1) + 1) << SHIFT
                )
                del self._ledgers[ledger]
            else:
                self.holes -= bits.count(start, target.entry + 1)
                bits.forget(start, target.entry + 1)
        self.mark_delete = target

    def _advance(self) -> None:
        """Move the mark-delete position over the holes that follow it."""
        while self.holes:
            p = self._chain.after(self.mark_delete)
            bits = self._ledgers.get(p.ledger)
            if bits is None:
                break
            clear = bits.first_clear(p.entry)
            if clear == p.entry:
                break
            self.holes -= clear - p.entry
            self.mark_delete = Position(p.ledger, clear - 1)
            bits.forget(p.entry, clear)
        self._prune()

    def _prune(self) -> None:
        if len(self._ledgers) > 1 or (self._ledgers and not self.holes):
            floor = self.mark_delete.ledger
            for ledger in [ledger for ledger in self._ledgers if ledger < floor]:
                del self._ledgers[ledger]
