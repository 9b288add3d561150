"""Reads and writes the slot table in the metadata store; retries while the store is unavailable."""

from __future__ import annotations

from anabranch.cluster.director import SaveTable, TableRaced, TableSaved, TableSeen
from anabranch.cluster.slot_table import Table, decode_table, encode_table
from anabranch.metadata.interface import ABSENT, MetadataStore, Versioned, VersionMismatch
from anabranch.model.errors import Error
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS

log = get_logger(__name__)


def seen(found: Versioned | None) -> TableSeen:
    return TableSeen(Table(), None) if found is None else TableSeen(decode_table(found.value), found.version)


class TableStore:
    def __init__(self, store: MetadataStore, key: str, clock: Clock, chance: Chance) -> None:
        self._store, self._key = store, key
        self._clock, self._chance = clock, chance
        self._failures = 0

    async def read(self) -> TableSeen:
        """The latest table, including all writes confirmed before the call. Retries until the store answers."""
        while True:
            try:
                await self._store.sync()
                table = seen(await self._store.get(self._key))
            except Error as error:
                await self._rest(error, "slot table could not be read, retrying")
                continue
            self._failures = 0
            return table

    async def save(self, effect: SaveTable) -> TableSaved | TableRaced:
        """TableRaced: the outcome is unknown or another writer was first; read the table again."""
        expected = ABSENT if effect.expected is None else effect.expected
        try:
            stamp = await self._store.put(self._key, encode_table(effect.table), expected=expected)
        except VersionMismatch:
            return TableRaced()
        except Error as error:  # any error: the caller needs an outcome, otherwise it would wait for ever
            await self._rest(error, "slot table could not be written, retrying")
            return TableRaced()
        self._failures = 0
        return TableSaved(stamp)

    async def _rest(self, error: Error, what: str) -> None:
        self._failures += 1
        log.warning(what, extra={"reason": error.reason})
        await self._clock.sleep(RETRY_DELAYS.retry_after(self._failures, self._chance.random()))
