"""Replaces the compacted view of one topic: begin, then finish or abandon.

One write of the topic record decides which view is current. Before it, the record names the ledger that is being
written; after it, the ledger that is no longer needed. So a crash leaves no unlisted file behind. The content of a view
is decided by the broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from anabranch.model.errors import Error
from anabranch.storage.interface import LedgerAllocator, LedgerStore, LedgerWriter
from anabranch.storage.topic.compacted_view import CompactedRow, CompactedView
from anabranch.storage.topic.ledger_garbage import LedgerGarbage
from anabranch.storage.topic.ownership import TopicOwnership
from anabranch.storage.topic.topic_record import TopicRecord

SaveRecord = Callable[[Callable[[TopicRecord], TopicRecord]], Awaitable[None]]
"""Writes the record as it is in memory, with a change applied."""


class CompactedViewSwap:
    __slots__ = ("_check_usable", "_garbage", "_ids", "_ledgers", "_owner", "_save", "view")

    def __init__(
        self,
        owner: TopicOwnership,
        ledgers: LedgerStore,
        ids: LedgerAllocator,
        garbage: LedgerGarbage,
        *,
        save: SaveRecord,
        check_usable: Callable[[], None],
    ) -> None:
        """`check_usable` raises if the topic is closed or has another owner."""
        self._owner, self._ledgers, self._ids, self._garbage = owner, ledgers, ids, garbage
        self._save, self._check_usable = save, check_usable
        row = owner.record.compacted
        self.view = None if row is None else CompactedView(row, ledgers)

    async def begin(self) -> LedgerWriter:
        """Create a ledger for the next view; it is already listed in the record."""
        self._check_usable()
        assert self._owner.record.compacting is None, "one compaction at a time"
        ledger = await self._ids.allocate()
        await self._save(lambda record: replace(record, compacting=ledger))
        return self._ledgers.create(ledger)

    async def finish(self, row: CompactedRow) -> None:
        """Make the sealed ledger of `row` the current view, with one write, and delete the one before it."""
        self._check_usable()
        before = self._owner.record.compacted
        if before is not None:
            self._garbage.add(before.ledger)
        try:
            await self._save(lambda record: replace(record, compacted=row, compacting=None))
        except Error:
            if before is not None:
                self._garbage.take_back(before.ledger)
            raise
        self.view = CompactedView(row, self._ledgers)
        await self._garbage.delete()

    async def abandon(self) -> None:
        """Discard the view that was begun; the current one stays."""
        ledger = self._owner.record.compacting
        if ledger is not None:
            self._garbage.add(ledger)
            await self._save(lambda record: replace(record, compacting=None))
            await self._garbage.delete()
