"""What Apache Pulsar says of a topic, and what follows from it for reading: where it begins and ends, what may be lost,
how many entries lie between two positions. Pure.

A broker of Apache Pulsar does not say how far retention has deleted. It says where its oldest entry is, and the last
entry that it ever confirmed. So a position before the oldest entry is

| position                          | meaning                                                                        |
|-----------------------------------|--------------------------------------------------------------------------------|
| after the last confirmed entry    | nothing is lost: the ledgers between are empty                                 |
| the end of a ledger that is known | nothing is lost: reading goes on in the next ledger                            |
| any other                         | entries may be lost: the cluster does not say whether there were any           |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anabranch.model.position import EARLIEST, Position
from anabranch.spark.offsets.topic_view import LedgerSum


@dataclass(frozen=True, slots=True)
class Heads:
    """Answers about one topic at one moment."""

    first: Position  # where a reader begins that asks for the earliest entry
    last: Position  # the last entry that readers get; EARLIEST: none is retained
    confirmed: Position  # the last entry ever confirmed, deleted or not; (ledger, -1): none that is known


class Bounds(NamedTuple):
    first: Position
    end: Position
    trimmed_to: Position  # at or before this, entries may have been deleted


def after(position: Position) -> Position:
    return Position(position.ledger, position.entry + 1)


def bounds(heads: Heads, ledgers: Sequence[LedgerSum] = (), empty_from: Position | None = None) -> Bounds:
    """`ledgers` are those that exist, oldest first, the open one last; none: they are not known. `empty_from`: no entry
    was ever stored from there up to the first one."""
    confirmed = max(heads.confirmed, heads.last)
    end = after(confirmed) if heads.last == EARLIEST else after(heads.last)
    if ledgers:
        first = max(heads.first, Position(ledgers[0].ledger, 0))
    else:
        first = max(heads.first, end) if heads.last == EARLIEST else heads.first
    trimmed_to = min(Position(first.ledger, first.entry - 1), confirmed)
    if empty_from is not None:
        trimmed_to = min(trimmed_to, Position(empty_from.ledger, empty_from.entry - 1))
    return Bounds(first, end, trimmed_to)


@dataclass(frozen=True, slots=True)
class EmptyRun:
    """A topic without entries, seen again and again. Each load of an empty topic gives it another ledger: if none of
    these had an entry, a position in an earlier one of them is as good as the first."""

    since: Position  # beginning of the ledger that was open when the topic was first seen empty
    ledger: int  # the open one now
    seen_at: float  # seconds on a clock that only goes forward


def empty_run(known: EmptyRun | None, heads: Heads, now: float, within_s: float) -> EmptyRun | None:
    """After another look. The run goes on if this look follows soon on the last one: a ledger cannot have been filled,
    closed and deleted between. It ends when the topic begins in a ledger of which this is not known."""
    if heads.last == EARLIEST and heads.confirmed.entry < 0:
        ledger = heads.confirmed.ledger
        if known is not None and now - known.seen_at <= within_s:
            return EmptyRun(known.since, ledger, now)
        return EmptyRun(Position(ledger, 0), ledger, now)
    return known if known is not None and heads.first.ledger == known.ledger else None


def entries_between(ledgers: Sequence[LedgerSum], start: Position, end: Position) -> int:
    return sum(_inside(one, start, end) for one in ledgers)


def bytes_between(ledgers: Sequence[LedgerSum], start: Position, end: Position) -> int:
    """By the mean size of each ledger's entries."""
    return sum(one.bytes * _inside(one, start, end) // one.entries for one in ledgers if one.entries)


def after_entries(ledgers: Sequence[LedgerSum], start: Position, count: int) -> Position:
    """One past the entry that comes this number of entries after `start`, or one past the last one."""
    reached = start
    for one in ledgers:
        if count <= 0:
            break
        begin = max(start, Position(one.ledger, 0))
        inside = _inside(one, start, Position(one.ledger, one.entries))
        if inside:
            taken = min(inside, count)
            reached, count = Position(one.ledger, begin.entry + taken), count - taken
    return reached


def _inside(one: LedgerSum, start: Position, end: Position) -> int:
    """How many entries of the ledger lie in [start, end)."""
    low = start.entry if start.ledger == one.ledger else (0 if start.ledger < one.ledger else one.entries)
    high = end.entry if end.ledger == one.ledger else (one.entries if end.ledger > one.ledger else 0)
    return max(min(high, one.entries) - max(low, 0), 0)


def read_ledgers(stats: Mapping[str, Any]) -> tuple[LedgerSum, ...]:
    """The ledgers in Pulsar's internal stats. The open one is listed without its entries, which stand beside."""
    listed = sorted(stats["ledgers"], key=lambda one: int(one["ledgerId"]))
    sums = [LedgerSum(int(one["ledgerId"]), int(one["entries"]), None, int(one["size"])) for one in listed]
    if sums and not sums[-1].entries:
        open_entries, open_bytes = int(stats["currentLedgerEntries"]), int(stats["currentLedgerSize"])
        sums[-1] = LedgerSum(sums[-1].ledger, open_entries, None, open_bytes)
    return tuple(sums)


def read_position(text: str) -> Position:
    """`ledger:entry`, as internal stats write it."""
    ledger, _, entry = text.partition(":")
    return Position(int(ledger), int(entry))


def grown(ledgers: Sequence[LedgerSum], last: Position) -> tuple[LedgerSum, ...]:
    """The ledgers, when the open one has entries up to `last` by now; its size grows in proportion."""
    if not ledgers or ledgers[-1].ledger != last.ledger or ledgers[-1].entries > last.entry:
        return tuple(ledgers)
    known = ledgers[-1]
    entries = last.entry + 1
    size = known.bytes * entries // known.entries if known.entries else 0
    return (*ledgers[:-1], LedgerSum(known.ledger, entries, None, size))
