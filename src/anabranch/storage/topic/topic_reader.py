"""The read path of a topic: entries across ledgers, positions by time, message counts.

A damaged entry is logged once with its file and offset, counted, and skipped; all others stay readable.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.model.position import Position
from anabranch.runtime.logs import get_logger
from anabranch.storage.interface import CorruptEntry, LedgerNotFound, LedgerStore, StoredEntry
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain

log = get_logger(__name__)

_LOGGED_MAX = 100  # per topic, because a torn file must not flood the log; all are counted


class TopicReader:
    def __init__(self, chain: LedgerChain, ledgers: LedgerStore, on_corrupt: Callable[[Position], None]) -> None:
        """`on_corrupt` is called each time a damaged entry is skipped."""
        self._on_corrupt = on_corrupt
        self._chain = chain
        self._ledgers = ledgers
        self._corrupt: set[Position] = set()

    @property
    def corrupt_entries(self) -> int:
        return len(self._corrupt)

    def read_cached(
        self, start: Position, entries_max: int, bytes_max: int, upto: Position
    ) -> list[StoredEntry] | None:
        """Read from memory, without waiting; None if the first requested entry is not there, [] at the end."""
        start = self._chain.at_or_after(start)
        found: list[StoredEntry] = []
        while entries_max > 0 and bytes_max > 0:
            info = self._chain.get(start.ledger)
            count = self._readable(info, start, upto)
            if info is None or count <= 0:
                return found
            entries = self._ledgers.read_cached(info.id, start.entry, min(entries_max, count), bytes_max)
            if not entries:
                return found or (None if entries is None else found)
            last = entries[-1].position
            if last.entry + 1 < info.entries or not info.sealed:
                return found + entries if found else entries
            found += entries
            bytes_max -= sum(len(entry.payload) for entry in entries)
            entries_max -= len(entries)
            start = self._chain.after(last)
        return found

    def read_resident(
        self, start: Position, entries_max: int, bytes_max: int, upto: Position
    ) -> list[StoredEntry] | None:
        """`read` without waiting; None unless the last read ended here and the file is in the page cache."""
        info = self._chain.get(start.ledger)
        count = self._readable(info, start, upto)
        if info is None or count <= 0:
            return None
        return self._ledgers.read_resident(info.id, start.entry, start.entry + count, entries_max, bytes_max)

    async def read(self, start: Position, entries_max: int, bytes_max: int, upto: Position) -> list[StoredEntry]:
        """At least one entry if a sound one exists in start … upto; all from one ledger."""
        while True:
            start = self._chain.at_or_after(start)
            info = self._chain.get(start.ledger)
            count = self._readable(info, start, upto)
            if info is None or count <= 0:
                return []
            try:
                entries = await self._ledgers.read(
                    info.id, start.entry, start.entry + count, max(entries_max, 1), max(bytes_max, 1)
                )
            except CorruptEntry as error:
                self._note_corrupt(start, error)
                start = Position(start.ledger, start.entry + 1)
                continue
            except LedgerNotFound:
                if self._chain.get(info.id) is info:
                    raise
                continue  # trimmed meanwhile: continue with the next ledger
            return entries

    async def position_at_time(self, publish_ms: int) -> Position:
        """First entry published at or after the given time; the slot of the next append if all are older."""
        for info in list(self._chain):
            if not info.entries or (info.sealed and 0 < info.last_publish_ms < publish_ms):
                continue
            entry = await self._ledgers.first_entry_at(info.id, publish_ms, info.entries)
            if entry < info.entries:
                return Position(info.id, entry)
        return self._chain.after(self._chain.last)

    async def messages_upto(self, p: Position) -> int:
        """Absolute number of the last message at or before p."""
        info = self._chain.get(p.ledger)
        if info is None:
            return self._chain.messages_before_ledger(p.ledger)
        if p.entry < 0:
            return info.messages_before
        if p.entry + 1 >= info.entries:
            return info.messages_before + info.messages
        return info.messages_before + await self._ledgers.messages_before(info.id, p.entry + 1)

    def _readable(self, info: ChainLedger | None, start: Position, upto: Position) -> int:
        """How many entries may be read in the ledger of `start`, from there."""
        if info is None or start > upto:
            return 0
        end = info.entries if upto.ledger > info.id else min(info.entries, upto.entry + 1)
        return end - start.entry

    def _note_corrupt(self, p: Position, error: CorruptEntry) -> None:
        self._on_corrupt(p)
        if p in self._corrupt:
            return
        self._corrupt.add(p)
        if len(self._corrupt) <= _LOGGED_MAX:
            log.error(
                "damaged entry skipped",
                extra={"position": str(p), "file": error.path, "offset": error.offset, "reason": str(error)},
            )
