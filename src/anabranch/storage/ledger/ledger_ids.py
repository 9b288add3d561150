"""Allocates ledger ids. An id is never used twice, by any broker, across restarts.

Ids come from one counter in the metadata store. A broker takes blocks of them by compare-and-set; the rest of a block
is lost when it stops. A metadata store that is new or older than the data (another store, a restored backup) would
allocate ids whose files exist. Therefore no id is at or below `floor`, the highest id found on the volume.
"""

from __future__ import annotations

import asyncio

from anabranch.runtime.logs import get_logger
from anabranch.storage.record_store import RecordRaced, RecordStore

log = get_logger(__name__)


class LedgerIds:
    def __init__(
        self, records: RecordStore, key: str = "/ledgers/next-id", block: int = 256, *, floor: int = 0
    ) -> None:
        self._records = records
        self._floor = floor
        self._key = key
        self._block = block
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def allocate(self, above: int = 0) -> int:
        """A new id greater than `above`, the topic's last ledger, because ids only grow within a topic."""
        if not above < self._next < self._end:
            async with self._lock:
                while not above < self._next < self._end:
                    await self._take_block(above)
        self._next += 1
        return self._next - 1

    async def _take_block(self, above: int) -> None:
        found = await self._records.load(self._key)
        start = max(1 if found is None else int(found.value), above + 1, self._floor + 1)
        if found is None and self._floor:
            log.warning(
                "data directory holds ledgers that this metadata store did not allocate; is it the right store?",
                extra={"highest": self._floor},
            )
        try:
            await self._records.save(
                self._key, b"%d" % (start + self._block), version=None if found is None else found.version
            )
        except RecordRaced:
            return
        self._next, self._end = start, start + self._block
