"""Reads of ledgers on bookies: fall-back over replicas, digests checked, blocks read ahead.

An entry has several replicas, and each of them may lack it: a bookie that was away while it was written, or that has
lost its disk. So "no such entry" leads to the next replica, like an error. Only entries that are known to be confirmed
are read: below the durable entry of an own writer, or in a closed ledger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from anabranch.model.position import Position
from anabranch.runtime.logs import get_logger
from anabranch.storage.bookkeeper.bookie_connection import code_text
from anabranch.storage.bookkeeper.bookies import Bookies
from anabranch.storage.bookkeeper.entry_body import BODY_HEAD_BYTES, read_body
from anabranch.storage.bookkeeper.entry_head import ENTRY_HEAD_BYTES, EntryHead, split_head
from anabranch.storage.bookkeeper.errors import BookieUnreachable, NotEnoughBookies
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, write_set
from anabranch.storage.bookkeeper.packets import Answer, Code
from anabranch.storage.interface import CorruptEntry, StoredEntry

log = get_logger(__name__)

BLOCK_BYTES = 1024 * 1024
BLOCK_ENTRIES = 4096
BLOCKS_MAX = 64
"""Blocks in memory, one per ledger that is read."""

_OVERHEAD_BYTES = BODY_HEAD_BYTES + ENTRY_HEAD_BYTES + 4
_DAMAGED = "damaged entry"
_ABSENT = frozenset(code_text(code) for code in (Code.NO_LEDGER, Code.NO_ENTRY))


class LedgerReads:
    def __init__(
        self,
        bookies: Bookies,
        metadata_of: Callable[[int, bool], Awaitable[LedgerMetadata]],
        on_failed: Callable[[str], None],
    ) -> None:
        """`metadata_of(ledger, is_fresh)`: read again from ZooKeeper if `is_fresh`. `on_failed` gets bookies."""
        self._bookies, self._metadata_of, self._on_failed = bookies, metadata_of, on_failed
        self._blocks: OrderedDict[int, list[StoredEntry]] = OrderedDict()

    def buffered(self, ledger: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry] | None:
        """From the block that was read last; None if `first` is not in it."""
        block = self._blocks.get(ledger)
        if not block or not block[0].position.entry <= first <= block[-1].position.entry:
            return None
        start = first - block[0].position.entry
        found = block[start : start + min(entries_max, end - first)]
        size = 0
        for at, entry in enumerate(found):
            size += len(entry.payload)
            if size > bytes_max and at:
                return found[:at]
        return found

    async def read(self, ledger: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Entries from `first` on, below `end`, which must be confirmed. At least one."""
        found = self.buffered(ledger, first, end, entries_max, bytes_max)
        if found:
            return found
        pairs = await self._fetch(ledger, first, end, max(entries_max, BLOCK_ENTRIES), max(bytes_max, BLOCK_BYTES))
        self._blocks[ledger] = [entry for entry, _ in pairs]
        self._blocks.move_to_end(ledger)
        while len(self._blocks) > BLOCKS_MAX:
            self._blocks.popitem(last=False)
        found = self.buffered(ledger, first, end, entries_max, bytes_max)
        assert found, "at least one entry was read"
        return found

    async def head(self, ledger: int, entry: int) -> EntryHead:
        """The counters in front of one confirmed entry."""
        return (await self._fetch(ledger, entry, entry + 1, 1, 1))[0][1]

    def forget(self, ledger: int) -> None:
        self._blocks.pop(ledger, None)

    # inside

    async def _fetch(
        self, ledger: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[tuple[StoredEntry, EntryHead]]:
        failures: dict[str, str] = {}
        for is_fresh in (False, True):  # autorecovery may have moved replicas of a closed ledger
            metadata = await self._metadata_of(ledger, is_fresh)
            for bookie in _replicas(metadata, ledger, first):
                if bookie in failures:
                    continue
                try:
                    found = await self._ask(bookie, metadata, ledger, first, end, entries_max, bytes_max)
                except BookieUnreachable as error:
                    failures[bookie] = error.reason
                    self._on_failed(bookie)
                    continue
                if isinstance(found, str):
                    failures[bookie] = found
                    continue
                if failures:
                    log.info(
                        "entry read from another replica",
                        extra={"ledger": ledger, "entry": first, "bookie": bookie, "failed": failures},
                    )
                return found
        reasons = "; ".join(f"{bookie}: {reason}" for bookie, reason in failures.items())
        if _DAMAGED in failures.values() and all(one == _DAMAGED or one in _ABSENT for one in failures.values()):
            raise CorruptEntry(f"all replicas ({reasons})", 0, ledger, first)  # no time will mend it
        raise NotEnoughBookies(f"entry {ledger}:{first} cannot be read now ({reasons})")

    async def _ask(
        self,
        bookie: str,
        metadata: LedgerMetadata,
        ledger: int,
        first: int,
        end: int,
        entries_max: int,
        bytes_max: int,
    ) -> list[tuple[StoredEntry, EntryHead]] | str:
        """The entries, or why this replica has none."""
        answer: Answer
        if metadata.quorums.write == metadata.quorums.ensemble:
            following = [one.first_entry for one in metadata.segments if one.first_entry > first]
            count = min([end, *following]) - first
            count = min(count, entries_max)
            answer = await self._bookies.batch_read(
                bookie, ledger, first, count, bytes_max + min(count, BLOCK_ENTRIES) * _OVERHEAD_BYTES
            )
        else:  # ledgers of other programs: a replica has some of the entries only
            answer = await self._bookies.read(bookie, ledger, first)
        if answer.code != Code.OK or not answer.bodies:
            return code_text(answer.code) if answer.code != Code.OK else "no entries"
        found = []
        for entry_id, raw in enumerate(answer.bodies[: end - first], first):
            body = read_body(raw, ledger, entry_id)
            parts = None if body is None else split_head(body.payload)
            if parts is None:
                break
            head, payload = parts
            found.append((StoredEntry(Position(ledger, entry_id), head.messages, payload), head))
        if found:
            return found
        log.error("bookie returned a damaged entry", extra={"bookie": bookie, "ledger": ledger, "entry": first})
        return _DAMAGED


def _replicas(metadata: LedgerMetadata, ledger: int, entry: int) -> tuple[str, ...]:
    """In the order in which to ask: the same first one for all entries of a segment, another one for each ledger."""
    quorums, ensemble = metadata.quorums, metadata.segment_of(entry).ensemble
    if quorums.write != quorums.ensemble:
        return write_set(ensemble, entry, quorums.write)
    start = ledger % len(ensemble)
    return ensemble[start:] + ensemble[:start]
