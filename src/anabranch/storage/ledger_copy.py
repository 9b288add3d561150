"""Copies sealed ledgers from one store to another under the same ids, and compares every entry.

Ids stay, so message ids, cursors, checkpoints and offsets of readers stay valid. A copy can be repeated: a ledger that
is complete in the target is only compared by its totals, one that was interrupted is written again from its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.storage.interface import LedgerStore, LedgerSummary, StorageError, StoredEntry

AT_ONCE = 8  # ledgers
BLOCK_BYTES, BLOCK_ENTRIES = 1 << 20, 4096


class CopyFailed(StorageError):
    """A ledger cannot be copied, or its copy differs. The source is unchanged, and the copy can be repeated."""

    code = "storage-copy-failed"


class CopyTarget(LedgerStore, Protocol):
    async def reserve(self, ledger_id: int) -> bool:
        """Makes this ledger exist, so that `create` may be called; False if it is closed already. Raises StorageError
        if it belongs to others."""


@dataclass(slots=True)
class CopyProgress:
    ledgers: int = 0  # in all
    done: int = 0
    skipped: int = 0  # of those done: complete from an earlier run
    entries: int = 0  # copied now
    bytes: int = 0


class _Receipts:
    """Waits until a run of appends is durable."""

    def __init__(self) -> None:
        self._left = 0
        self._failure: StorageError | None = None
        self._done = asyncio.Event()

    def expect(self, count: int) -> None:
        self._left += count
        self._done.clear()

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        self._took(len(entries))

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        self._failure = self._failure or error
        self._took(1)

    def _took(self, count: int) -> None:
        self._left -= count
        if self._left == 0:
            self._done.set()

    async def wait(self) -> None:
        """The target bounds the time: an append is confirmed or fails."""
        await self._done.wait()
        if self._failure is not None:
            raise self._failure


class LedgerCopy:
    def __init__(self, source: LedgerStore, target: CopyTarget) -> None:
        self._source, self._target = source, target
        self.progress = CopyProgress()

    async def run(self, ledgers: Collection[int]) -> CopyProgress:
        """Raises CopyFailed or another StorageError; what was copied until then stays."""
        self.progress.ledgers = len(ledgers)
        waiting = sorted(ledgers, reverse=True)

        async def work() -> None:
            while waiting:
                await self._copy(waiting.pop())

        workers = [asyncio.ensure_future(work()) for _ in range(min(AT_ONCE, len(waiting)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return self.progress

    async def _copy(self, ledger: int) -> None:
        summary = await self._source.summarize(ledger)
        if await self._target.reserve(ledger):
            await self._write(ledger, summary)
            await self._compare(ledger, summary)
        else:
            self.progress.skipped += 1
        copied = await self._target.summarize(ledger)
        if _totals(copied) != _totals(summary):
            raise CopyFailed(
                f"ledger {ledger} has {summary.entries:,} entries and {summary.bytes:,} bytes, its copy "
                f"{copied.entries:,} and {copied.bytes:,}: the copy was written by another run or cluster"
            )
        self._target.evict(ledger)
        self.progress.done += 1

    async def _write(self, ledger: int, summary: LedgerSummary) -> None:
        writer, receipts = self._target.create(ledger), _Receipts()
        try:
            at = 0
            while at < summary.entries:
                entries = await self._read(self._source, ledger, at, summary.entries)
                receipts.expect(len(entries))
                counts = [one.messages for one in entries]
                writer.append_run([bytes(one.payload) for one in entries], counts, receipts, [None] * len(entries))
                await receipts.wait()
                at += len(entries)
                self.progress.entries += len(entries)
                self.progress.bytes += sum(len(one.payload) for one in entries)
        except StorageError as error:
            raise CopyFailed(f"ledger {ledger}: {error.reason}") from error
        await writer.seal()
        self._target.evict(ledger)  # so that the comparison reads what is stored

    async def _compare(self, ledger: int, summary: LedgerSummary) -> None:
        at = 0
        theirs: list[StoredEntry] = []
        while at < summary.entries:
            for own in await self._read(self._source, ledger, at, summary.entries):
                theirs = theirs or await self._read(self._target, ledger, at, summary.entries)
                copy = theirs.pop(0)
                if (copy.position, copy.messages, copy.payload) != (own.position, own.messages, own.payload):
                    raise CopyFailed(f"entry {ledger}:{at} differs from its copy")
                at += 1

    async def _read(self, store: LedgerStore, ledger: int, first: int, end: int) -> list[StoredEntry]:
        found = await store.read(ledger, first, end, BLOCK_ENTRIES, BLOCK_BYTES)
        if not found:
            raise CopyFailed(f"entry {ledger}:{first} cannot be read")
        return found


def _totals(summary: LedgerSummary) -> tuple[int, int, int, int]:
    return summary.entries, summary.messages, summary.bytes, summary.last_publish_ms
