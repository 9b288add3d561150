"""A read-through cache of decoded records, kept coherent by a watch. The machine is `cachetable.CacheTable`.

It never serves a value older than one it has served or written already. What it serves may be as old as a hint needs
to travel; `get_fresh` reads past it. Records that are not there are remembered as well.

`read_modify_write` is how a record is changed: compare-and-set, tried again when somebody was faster. When the answer
to a write got lost, the record is read again and decides; it is never written twice on suspicion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Generic, Self, TypeVar, assert_never

from anabranch.metadata.interface import (
    ABSENT,
    BadKey,
    ChangeKind,
    MetadataStore,
    OutcomeUnknown,
    StoreUnavailable,
    Version,
    VersionMismatch,
    Watch,
    check_key,
    check_tree,
    is_within,
)
from anabranch.metadata.recipes.cache_table import CacheTable, Flight
from anabranch.metadata.recipes.session_keeper import (
    ConnectionChanged,
    KeeperEvent,
    SessionDown,
    SessionKeeper,
    SessionUp,
)
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cached(Generic[T]):
    value: T
    version: Version


class Verdict(Enum):
    APPLIED = "applied"
    NOT_APPLIED = "not applied"  # so far: trying again is safe, the same compare-and-set cannot succeed twice
    UNDECIDABLE = "undecidable"


def judge(before: Cached[T] | None, after: Cached[T] | None, contains: Callable[[T], bool] | None) -> Verdict:
    """What became of a write without an answer, by the record before it and the record now."""
    if contains is not None:
        return Verdict.APPLIED if after is not None and contains(after.value) else Verdict.NOT_APPLIED
    return Verdict.NOT_APPLIED if _is_same(before, after) else Verdict.UNDECIDABLE


def _is_same(before: Cached[T] | None, after: Cached[T] | None) -> bool:
    """Has nobody written between the two?"""
    return (before and before.version) == (after and after.version)


class MetadataCache(Generic[T]):
    """Records below `prefix`. With a `keeper` it forgets everything while the store is out of reach."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        *,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes],
        clock: Clock,
        chance: Chance,
        keeper: SessionKeeper | None = None,
        entries_max: int = 10_000,
        patience: RetryDelays = RETRY_DELAYS,
    ) -> None:
        self._store = store
        self._tree = check_tree(prefix)
        self._prefix = prefix
        self._decode, self._encode = decode, encode
        self._clock, self._chance, self._patience = clock, chance, patience
        self._keeper = keeper
        self._table: CacheTable[Cached[T]] = CacheTable(entries_max)
        self._entries = self._table.entries
        self._answers: dict[Flight, asyncio.Future[Cached[T] | None]] = {}
        self._tasks = TaskOwner("metadata-cache")
        self._watch: Watch | None = None
        self._unlisten: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    async def __aenter__(self) -> Self:
        self._watch = self._store.watch(self._prefix)
        self._tasks.spawn(self._follow(self._watch), "watch")
        if self._keeper is not None:
            self._unlisten = self._keeper.listen(self._on_session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unlisten is not None:
            self._unlisten()
        if self._watch is not None:
            self._watch.close()
        await self._tasks.close()
        self._table.forget()

    async def get(self, key: str) -> Cached[T] | None:
        """The record, from memory if it is there; None when it does not exist."""
        try:
            found = self._entries[key]
        except KeyError:
            return await self._read(key, sync=False)
        self._entries.move_to_end(key)
        return found

    async def get_fresh(self, key: str) -> Cached[T] | None:
        """The record as of now: nothing that anyone got confirmed before is missed."""
        self._table.overtake(key)
        return await self._read(key, sync=True)

    async def read_modify_write(
        self,
        key: str,
        change: Callable[[T | None], T],
        *,
        seconds: float,
        contains: Callable[[T], bool] | None = None,
    ) -> Cached[T]:
        """Replace the record by what `change` makes of it (None: it is absent), and return the new one.

        `change` may be called several times, must not await, and stops everything by raising. `contains` says whether
        a record has this very change in it; without it a lost answer followed by somebody else's write cannot be
        decided and is raised as OutcomeUnknown.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._replace(key, change, contains)
        except TimeoutError as error:  # what was just being written may still happen
            raise OutcomeUnknown(f"{key}: not decided in {seconds} s") from error

    async def _replace(
        self, key: str, change: Callable[[T | None], T], contains: Callable[[T], bool] | None
    ) -> Cached[T]:
        record = await self.get(key)
        failures = 0
        in_doubt = False  # a write on this very version had no answer, and may still land
        while True:
            new = change(record.value if record is not None else None)
            expected = ABSENT if record is None else record.version
            try:
                version = await self._store.put(key, self._encode(new), expected=expected)
            except VersionMismatch:
                failures += 1
                if failures > 1:  # the first time it was only the cache that was behind
                    await self._clock.sleep(self._patience.scatter(self._chance.random()) * min(failures, 10))
            except StoreUnavailable:
                failures += 1
                in_doubt = True
            else:
                self._table.overtake(key)
                return Cached(new, version)
            after = await self._reread(key, failures)
            if in_doubt:
                match judge(record, after, contains):
                    case Verdict.APPLIED:
                        assert after is not None
                        return after
                    case Verdict.UNDECIDABLE:
                        raise OutcomeUnknown(f"{key}: written or not, others have written since")
                    case Verdict.NOT_APPLIED:
                        in_doubt = _is_same(record, after)
                    case other:
                        assert_never(other)
            record = after

    async def _reread(self, key: str, failures: int) -> Cached[T] | None:
        """The record as of now, however long the store needs to come back (the caller has a deadline)."""
        while True:
            try:
                return await self.get_fresh(key)
            except StoreUnavailable:
                failures += 1
                await self._clock.sleep(self._patience.retry_after(failures, self._chance.random()))

    async def _read(self, key: str, *, sync: bool) -> Cached[T] | None:
        before_us = self._table.flight(key)
        while True:
            flight = self._table.flight(key)
            if flight is None:
                flight = self._depart(key, sync)
            elif flight.is_stale or (sync and (flight is before_us or not flight.is_synced)):
                await asyncio.wait([self._answers[flight]])  # its answer is for those who asked earlier
                continue
            found = await asyncio.shield(self._answers[flight])
            if not flight.is_overtaken:
                return found

    def _depart(self, key: str, sync: bool) -> Flight:
        check_key(key)
        if not is_within(key, self._tree):
            raise BadKey(f"{key} is not below {self._prefix}, which this cache watches")
        flight = self._table.begin(key, sync)
        answer: asyncio.Future[Cached[T] | None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_look_at)
        self._answers[flight] = answer
        if self._tasks.spawn(self._fly(flight, answer), "read") is None:
            self._land(flight)
            raise StoreUnavailable("the cache is closed")
        return flight

    async def _fly(self, flight: Flight, answer: asyncio.Future[Cached[T] | None]) -> None:
        """Read once for everybody who waits. The table is told before they are."""
        try:
            async with asyncio.timeout(self._patience.answer_s):
                if flight.is_synced:
                    await self._store.sync()
                stored = await self._store.get(flight.key)
            found = None if stored is None else Cached(self._decode(stored.value), stored.version)
        except BaseException as error:
            self._land(flight)
            if isinstance(error, TimeoutError):
                answer.set_exception(StoreUnavailable(f"{flight.key}: no answer in {self._patience.answer_s} s"))
            elif isinstance(error, Exception):
                answer.set_exception(error)
            else:
                answer.set_exception(StoreUnavailable("the cache is closed"))
                raise
        else:
            del self._answers[flight]
            self._table.finish(flight, found)
            answer.set_result(found)

    def _land(self, flight: Flight) -> None:
        del self._answers[flight]
        self._table.fail(flight)

    async def _follow(self, watch: Watch) -> None:
        try:
            async for change in watch:
                if change.kind is ChangeKind.INVALIDATED:
                    self._table.forget()
                else:
                    self._table.changed(change.key)
        finally:
            self._table.trust(False)  # nobody tells us of changes any more

    def _on_session(self, event: KeeperEvent) -> None:
        match event:
            case ConnectionChanged(_, is_connected):
                self._table.trust(is_connected)
            case SessionUp() | SessionDown():
                self._table.trust(isinstance(event, SessionUp))
            case _:
                assert_never(event)


def _look_at(answer: asyncio.Future[Cached[T] | None]) -> None:
    """An error that nobody waits for any more is not worth a warning."""
    if not answer.cancelled():
        answer.exception()
