"""What is wrong with the ledgers of a cluster: too few copies, missing ledgers, ledgers that no record names. Pure.

First all ledgers are fed, then the topic records are compared with them. In this order a ledger that is announced
meanwhile is found in the records, and one that is created meanwhile is not known yet.

| word | ledger |
|---|---|
| foreign | of another program, or of another Anabranch cluster: only counted, never called an orphan |
| under-replicated | some entries have fewer copies than wanted, because a bookie is away or was when the ledger began |
| orphan | of this cluster, old enough, and no topic record names it |
| missing | a topic record names it as data or cursor state, and BookKeeper does not have it |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from anabranch.storage.topic.topic_record import LedgerUse

LISTED_MAX = 1000
NEEDED = ("data", "state", "compacted")
"""Kinds of use whose ledger must exist. Earlier state ledgers are deleted before the record stops to list them."""


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    ledger: int
    metadata: LedgerMetadata
    created_ms: int

    @property
    def members(self) -> tuple[tuple[str, ...], ...]:
        """The bookies of each segment that has entries, or may get some."""
        closed, last = self.metadata.is_closed, self.metadata.last_entry
        return tuple(one.ensemble for one in self.metadata.segments if not closed or one.first_entry <= last)

    def away(self, registered: Collection[str]) -> tuple[str, ...]:
        """Bookies that should have copies and are not there."""
        return tuple(sorted({one for ensemble in self.members for one in ensemble} - set(registered)))

    def copies(self, registered: Collection[str]) -> int | None:
        """Of the entries with the fewest copies; None without entries."""
        write, size = self.metadata.quorums.write, self.metadata.quorums.ensemble
        counts = (write - sum(one not in registered for one in ensemble) * write / size for ensemble in self.members)
        return min((max(int(count), 0) for count in counts), default=None)


@dataclass(slots=True)
class Listing:
    """The first ledgers of a kind, and how many there are."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, ledger: int) -> None:
        self.count += 1
        if len(self.first) < LISTED_MAX:
            self.first.append(ledger)


@dataclass(slots=True)
class LedgerReport:
    own: int = 0
    foreign: int = 0
    open: int = 0
    entries: int = 0
    bytes: int = 0
    young: int = 0  # named by no record, and too new to be called orphans
    under_replicated: Listing = field(default_factory=Listing)
    orphans: Listing = field(default_factory=Listing)
    missing: Listing = field(default_factory=Listing)


class LedgerCheck:
    def __init__(self, owner: str, registered: Collection[str], *, copies: int, now_ms: int, age_min_ms: int) -> None:
        """`registered`: bookies that are there, writable or read-only. `copies`: wanted for each entry."""
        self._owner, self._registered, self._copies = owner, frozenset(registered), copies
        self._created_before = now_ms - age_min_ms
        self._known: dict[int, int] = {}  # ledger of this cluster -> when it was created
        self._weak: set[int] = set()
        self.report = LedgerReport()

    def feed(self, facts: LedgerFacts) -> None:
        report, metadata = self.report, facts.metadata
        if not self._owner or metadata.owner != self._owner:
            report.foreign += 1
            return
        report.own += 1
        if metadata.state is not LedgerState.CLOSED:
            report.open += 1
        report.entries += metadata.last_entry + 1
        report.bytes += metadata.length
        self._known[facts.ledger] = facts.created_ms
        copies = facts.copies(self._registered)
        if copies is not None and copies < self._copies:
            self._weak.add(facts.ledger)

    def end(self, uses: Mapping[int, LedgerUse]) -> LedgerReport:
        """`uses`: every ledger that a topic record names, read after the last `feed`."""
        for ledger in sorted(self._known):
            if ledger in self._weak:
                self.report.under_replicated.add(ledger)
            if ledger in uses:
                continue
            if self._known[ledger] <= self._created_before:
                self.report.orphans.add(ledger)
            else:
                self.report.young += 1
        return self.report

    def unknown(self, uses: Mapping[int, LedgerUse]) -> Iterator[int]:
        """Ledgers that records need and that were not fed: missing, foreign, or newer than the listing."""
        return (ledger for ledger, use in sorted(uses.items()) if ledger not in self._known and use.kind in NEEDED)
