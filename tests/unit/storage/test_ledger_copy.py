"""Copies of ledgers: same ids, every entry compared, repeated after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from anabranch.storage.interface import StorageError, StoredEntry
from anabranch.storage.ledger_copy import BLOCK_ENTRIES, CopyFailed, LedgerCopy
from tests.support.in_memory.topic_log import publish_time_of
from tests.support.models.memory_ledger_store import MemoryLedgerStore

MANY = 2 * BLOCK_ENTRIES + 7


class Target(MemoryLedgerStore):
    def __init__(self) -> None:
        super().__init__(publish_time_of=publish_time_of)
        self.closed: set[int] = set()
        self.damaged: int | None = None

    async def reserve(self, ledger_id: int) -> bool:
        if ledger_id in self.closed:
            return False
        await self.delete(ledger_id)  # what an interrupted copy has left
        self.closed.add(ledger_id)
        return True

    async def read(self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        found = await super().read(ledger_id, first, end, entries_max, bytes_max)
        return [one._replace(payload=b"?") if one.position.entry == self.damaged else one for one in found]


class Ignore:
    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None: ...

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None: ...


async def fill(store: MemoryLedgerStore, ledger: int, count: int) -> None:
    writer = store.create(ledger)
    payloads, messages = [b"%d" % at for at in range(count)], [1 + at % 3 for at in range(count)]
    writer.append_run(payloads, messages, Ignore(), [None] * count)
    await writer.seal()


async def source() -> MemoryLedgerStore:
    made = MemoryLedgerStore(publish_time_of=publish_time_of)
    for ledger, count in ((3, 10), (4, 1), (9, MANY)):
        await fill(made, ledger, count)
    return made


async def test_ledgers_are_copied_under_their_ids_with_all_counts() -> None:
    files, bookies = await source(), Target()
    progress = await LedgerCopy(files, bookies).run([3, 4, 9, 12])
    assert (progress.done, progress.skipped, progress.entries) == (4, 0, 11 + MANY)
    for ledger in (3, 4, 9, 12):
        assert await bookies.summarize(ledger) == await files.summarize(ledger)
    assert await bookies.read(9, 0, MANY, MANY, 1 << 30) == await files.read(9, 0, MANY, MANY, 1 << 30)


async def test_a_repeated_copy_skips_what_is_complete() -> None:
    files, bookies = await source(), Target()
    await LedgerCopy(files, bookies).run([3, 4])
    await fill(bookies, 9, 5)  # an interrupted copy: open, and shorter
    progress = await LedgerCopy(files, bookies).run([3, 4, 9])
    assert (progress.done, progress.skipped) == (3, 2)
    assert await bookies.summarize(9) == await files.summarize(9)


async def test_a_copy_that_differs_is_an_error() -> None:
    files, bookies = await source(), Target()
    bookies.damaged = 4
    with pytest.raises(CopyFailed, match="entry 3:4 differs"):
        await LedgerCopy(files, bookies).run([3])


async def test_a_closed_ledger_with_other_content_is_an_error() -> None:
    files, bookies = await source(), Target()
    await fill(bookies, 3, 9)
    bookies.closed.add(3)
    with pytest.raises(CopyFailed, match="ledger 3 has 10 entries"):
        await LedgerCopy(files, bookies).run([3])


async def test_an_entry_that_the_target_does_not_store_ends_the_copy() -> None:
    files, bookies = await source(), Target()
    bookies.fail_groups = StorageError("no bookies")
    with pytest.raises(CopyFailed, match="no bookies"):
        await LedgerCopy(files, bookies).run([3, 4, 9])
