"""The ledgers of one topic in order, with running totals. No I/O, no clock.

The chain answers three questions about a position: does it exist, which slot follows, how many entries or messages lie
up to it. A position may be in a gap (a trimmed ledger, the end of a sealed one). `at_or_after` moves it forward to the
next slot that has or will have data.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from anabranch.model.position import EARLIEST, Position


@dataclass(slots=True)
class ChainLedger:
    """One ledger of a topic. Only the last one may be unsealed; only its durable entries are counted."""

    id: int
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    file_bytes: int = 0
    sealed: bool = False
    sealed_at_ms: int = 0
    last_publish_ms: int = 0
    entries_before: int = 0  # entries of the retained ledgers before this one
    messages_before: int = 0  # messages stored before this one since the topic exists, including trimmed ones

    @property
    def end(self) -> Position:
        """Last entry; (id, -1) if the ledger is empty."""
        return Position(self.id, self.entries - 1)


class LedgerChain:
    def __init__(
        self,
        ledgers: Iterable[ChainLedger] = (),
        *,
        trimmed_messages: int = 0,
        trimmed_to: Position = EARLIEST,
        last: Position = EARLIEST,
    ) -> None:
        self._order: list[ChainLedger] = list(ledgers)
        self.trimmed_messages = trimmed_messages
        self.trimmed_to = trimmed_to  # last dropped entry; a reader that is past it has lost nothing
        self.last = last  # last durable entry; stays when its ledger is trimmed
        self._restate()
        for info in self._order:
            if info.entries:
                self.last = max(self.last, info.end)

    def __iter__(self) -> Iterator[ChainLedger]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def get(self, ledger: int) -> ChainLedger | None:
        return self._by_id.get(ledger)

    @property
    def tail(self) -> ChainLedger | None:
        """The open ledger, or None."""
        return self._order[-1] if self._order and not self._order[-1].sealed else None

    @property
    def entries(self) -> int:
        return self._order[-1].entries_before + self._order[-1].entries if self._order else 0

    @property
    def messages_ever(self) -> int:
        """Messages stored since the topic exists: the absolute number of the last message."""
        if not self._order:
            return self.trimmed_messages
        return self._order[-1].messages_before + self._order[-1].messages

    @property
    def messages(self) -> int:
        return self.messages_ever - self.trimmed_messages

    @property
    def bytes(self) -> int:
        return sum(info.bytes for info in self._order)

    def contains(self, p: Position) -> bool:
        info = self._by_id.get(p[0])
        return info is not None and 0 <= p[1] < info.entries

    def after(self, p: Position) -> Position:
        """The next slot after p: an existing entry, or the slot of the next append; one past p if nothing follows."""
        ledger, entry = p
        info = self._by_id.get(ledger)
        if info is not None and (entry + 1 < info.entries or not info.sealed):
            return Position(ledger, entry + 1)
        for index in range(bisect_right(self._ids, ledger), len(self._order)):
            follower = self._order[index]
            if follower.entries or not follower.sealed:
                return Position(follower.id, 0)
        return Position(ledger, entry + 1)

    def at_or_after(self, p: Position) -> Position:
        """p if it is a slot, else the next slot."""
        return self.after(Position(p.ledger, max(p.entry, 0) - 1))

    def first(self) -> Position:
        return self.at_or_after(Position(EARLIEST.ledger, 0))

    def ordinal(self, p: Position) -> int:
        """Number of retained entries at or before p."""
        info = self._by_id.get(p[0])
        if info is not None:
            return info.entries_before + min(max(p[1] + 1, 0), info.entries)
        index = bisect_right(self._ids, p[0])
        return self._order[index].entries_before if index < len(self._order) else self.entries

    def messages_before_ledger(self, ledger: int) -> int:
        """Absolute number of the last message before the first retained ledger with an id >= `ledger`."""
        index = bisect_right(self._ids, ledger - 1)
        return self._order[index].messages_before if index < len(self._order) else self.messages_ever

    def open(self, ledger: int) -> ChainLedger:
        """Append a new open ledger; the one before it must be sealed."""
        assert self.tail is None, "one open ledger at a time"
        assert not self._order or self._order[-1].id < ledger, "ledger ids only grow"
        info = ChainLedger(ledger)
        self._order.append(info)
        self._restate()
        return info

    def drop_head(self, count: int) -> list[ChainLedger]:
        """Remove the first `count` ledgers; their messages stay counted as trimmed."""
        dropped, self._order = self._order[:count], self._order[count:]
        self.trimmed_messages += sum(info.messages for info in dropped)
        self.trimmed_to = max((info.end for info in dropped if info.entries), default=self.trimmed_to)
        self._restate()
        return dropped

    def drop_empty(self) -> list[ChainLedger]:
        """Remove sealed ledgers without entries."""
        dropped = [info for info in self._order if info.sealed and not info.entries]
        if dropped:
            self._order = [info for info in self._order if info.entries or not info.sealed]
            self._restate()
        return dropped

    def _restate(self) -> None:
        entries, messages = 0, self.trimmed_messages
        for info in self._order:
            info.entries_before, info.messages_before = entries, messages
            entries += info.entries
            messages += info.messages
        self._ids = [info.id for info in self._order]
        self._by_id = {info.id: info for info in self._order}
