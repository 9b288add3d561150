"""A ledger that is allocated and not announced yet. It is kept for the next attempt to write the topic record."""

from __future__ import annotations

from anabranch.storage.interface import LedgerAllocator


class NextLedger:
    __slots__ = ("_allocator", "_id")

    def __init__(self, allocator: LedgerAllocator) -> None:
        self._allocator = allocator
        self._id: int | None = None

    async def allocate(self, above: int = 0) -> int:
        """The same one until it is announced. Where ledgers exist at once, each attempt would leave one behind."""
        if self._id is None or self._id <= above:
            self._id = await self._allocator.allocate(above)
        return self._id

    def announced(self) -> None:
        self._id = None
