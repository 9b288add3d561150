"""Numbers that are shared by all: exact counters, and ids that are never given twice.

| | after a lost answer | costs |
|---|---|---|
| `Counter.add` | decided by the record, which remembers its last writers; exact | a read and a write each |
| `IdBlocks.take` | the block in doubt is left unused: numbers may be skipped, never repeated | a write per block |

The values are in records of ours, so a move to another store keeps them. (`storage/ledger/ledger_ids.py` is the same as
IdBlocks on storage's own port, which must not know this floor; the record looks alike.)
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from anabranch.metadata.interface import (
    ABSENT,
    Expected,
    MetadataStore,
    OutcomeUnknown,
    StoreUnavailable,
    VersionMismatch,
)
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays

RECENT = 32
"""So many writers are remembered in a counter's record."""


@dataclass(frozen=True, slots=True)
class CounterRecord:
    """The value, how often it was written, and the last writers with the value each of them made."""

    value: int = 0
    writes: int = 0
    recent: tuple[tuple[str, int], ...] = ()

    def add(self, amount: int, mark: str) -> CounterRecord:
        value = self.value + amount
        return CounterRecord(value, self.writes + 1, (*self.recent, (mark, value))[-RECENT:])

    def value_of(self, mark: str) -> int | None:
        """What the writer with this mark made of it, if it is among the last."""
        return dict(self.recent).get(mark)

    def remembers(self, earlier: CounterRecord) -> bool:
        """Would a write after `earlier` still be among the last ones?"""
        return 0 <= self.writes - earlier.writes <= len(self.recent)

    def encode(self) -> bytes:
        return json.dumps({"value": self.value, "writes": self.writes, "recent": self.recent}).encode()

    @classmethod
    def decode(cls, stored: bytes) -> CounterRecord:
        found = json.loads(stored)
        return cls(found["value"], found["writes"], tuple((mark, value) for mark, value in found["recent"]))


class Counter:
    """`owner` is a name that no other Counter object ever has (a keeper's `ticket()`)."""

    def __init__(
        self,
        store: MetadataStore,
        key: str,
        *,
        owner: str,
        clock: Clock,
        chance: Chance,
        patience: RetryDelays = RETRY_DELAYS,
    ) -> None:
        self._store, self._key, self._owner = store, key, owner
        self._clock, self._chance, self._patience = clock, chance, patience
        self._marks = 0

    async def read(self) -> int:
        found = await self._store.get(self._key)
        return 0 if found is None else CounterRecord.decode(found.value).value

    async def add(self, amount: int, *, seconds: float) -> int:
        """Add exactly once and return the sum.

        OutcomeUnknown when the store stays away, or when very many others wrote after a lost answer.
        """
        self._marks += 1
        try:
            async with asyncio.timeout(seconds):
                return await self._add(amount, f"{self._owner}.{self._marks}")
        except TimeoutError as error:  # what was just being written may still happen
            raise OutcomeUnknown(f"{self._key}: not decided in {seconds} s") from error

    async def _add(self, amount: int, mark: str) -> int:
        tries = 0
        doubtful: CounterRecord | None = None  # the record as it was before our first write in doubt
        while True:
            record, expected = await self._load(sync=tries > 0)
            if (made := record.value_of(mark)) is not None:
                return made
            if doubtful is not None and not record.remembers(doubtful):
                raise OutcomeUnknown(f"{self._key}: added or not, too many others have written since")
            new = record.add(amount, mark)
            try:
                await self._store.put(self._key, new.encode(), expected=expected)
            except VersionMismatch:
                pass
            except StoreUnavailable:
                doubtful = doubtful or record
            else:
                return new.value
            tries += 1
            await self._clock.sleep(self._patience.scatter(self._chance.random()) * min(tries - 1, 10))

    async def _load(self, *, sync: bool) -> tuple[CounterRecord, Expected]:
        failures = 0
        while True:
            try:
                if sync:
                    await self._store.sync()
                found = await self._store.get(self._key)
            except StoreUnavailable:
                failures += 1
                await self._clock.sleep(self._patience.retry_after(failures, self._chance.random()))
            else:
                return (
                    (CounterRecord(), ABSENT) if found is None else (CounterRecord.decode(found.value), found.version)
                )


class IdBlocks:
    """Ids in ascending order from blocks of `block`; what is left of a block at a stop is lost."""

    def __init__(
        self,
        store: MetadataStore,
        key: str,
        *,
        clock: Clock,
        chance: Chance,
        block: int = 256,
        first: int = 1,
        patience: RetryDelays = RETRY_DELAYS,
    ) -> None:
        self._store, self._key, self._block, self._first = store, key, block, first
        self._clock, self._chance, self._patience = clock, chance, patience
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def take(self, *, seconds: float) -> int:
        """A fresh id: nobody has had it, nobody will."""
        while self._next == self._end:
            async with asyncio.timeout(seconds), self._lock:
                if self._next == self._end:
                    self._next, self._end = await self._reserve()
        self._next += 1
        return self._next - 1

    async def _reserve(self) -> tuple[int, int]:
        tries = 0
        while True:
            try:
                found = await self._store.get(self._key)
                start = self._first if found is None else int(found.value)
                expected = ABSENT if found is None else found.version
                await self._store.put(self._key, b"%d" % (start + self._block), expected=expected)
            except VersionMismatch:
                tries += 1
                await self._clock.sleep(self._patience.scatter(self._chance.random()) * min(tries - 1, 10))
            except StoreUnavailable:  # perhaps reserved, perhaps not: never used, so never given twice
                tries += 1
                await self._clock.sleep(self._patience.retry_after(tries, self._chance.random()))
            else:
                return start, start + self._block
