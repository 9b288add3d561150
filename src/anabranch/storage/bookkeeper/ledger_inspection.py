"""Looks at the ledgers of a BookKeeper cluster for its operators: lists, checks, recovers, deletes orphans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from anabranch.runtime.clock import Clock
from anabranch.storage.bookkeeper.bookie_connection import code_text
from anabranch.storage.bookkeeper.entry_body import read_body
from anabranch.storage.bookkeeper.errors import BookieUnreachable
from anabranch.storage.bookkeeper.ledger_check import LedgerCheck, LedgerFacts, LedgerReport
from anabranch.storage.bookkeeper.ledger_metadata import write_set
from anabranch.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from anabranch.storage.bookkeeper.packets import Code
from anabranch.storage.interface import LedgerNotFound
from anabranch.storage.topic.topic_record import LedgerUse

AT_ONCE_MAX = 64


class BookieState(StrEnum):
    WRITABLE = "writable"
    READONLY = "read-only"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Replica:
    """One bookie's copy of one segment, judged by the last entry of the segment that it should have."""

    bookie: str
    state: BookieState
    first_entry: int
    entry: int | None  # that was asked for; None: the segment has no entries, or the ledger is open
    answer: str  # "ok", or why not

    @property
    def has_it(self) -> bool:
        return self.answer == "ok"


class LedgerInspection:
    def __init__(self, store: BookKeeperLedgerStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def state_of(self, bookie: str) -> BookieState:
        directory = self._store.directory
        if bookie in directory.writable:
            return BookieState.WRITABLE
        return BookieState.READONLY if bookie in directory.readonly else BookieState.AWAY

    @property
    def registered(self) -> frozenset[str]:
        return self._store.directory.writable | self._store.directory.readonly

    @property
    def copies(self) -> int:
        return self._store.copies

    def is_own(self, facts: LedgerFacts) -> bool:
        return bool(self._store.owner) and facts.metadata.owner == self._store.owner

    async def page(self, after: int, count_max: int) -> list[LedgerFacts]:
        """Ledgers with ids above `after`, in order."""
        ids: list[int] = []
        async for ledger in self._store.nodes.ids(after):
            ids.append(ledger)
            if len(ids) == count_max:
                break
        return await self._load(ids)

    async def find(self, ledger: int) -> LedgerFacts:
        """Raises LedgerNotFound."""
        found = await self._load([ledger])
        if not found:
            raise LedgerNotFound(f"BookKeeper has no ledger {ledger}")
        return found[0]

    async def replicas(self, facts: LedgerFacts) -> list[Replica]:
        """Asks every bookie of the ledger for the last entry that it should have."""
        metadata, asked = facts.metadata, []
        for at, segment in enumerate(metadata.segments):
            is_last = at + 1 == len(metadata.segments)
            end = metadata.last_entry if is_last else metadata.segments[at + 1].first_entry - 1
            for bookie in segment.ensemble:
                entry = next(
                    (
                        one
                        for one in range(end, max(segment.first_entry, end - len(segment.ensemble) + 1) - 1, -1)
                        if bookie in write_set(segment.ensemble, one, metadata.quorums.write)
                    ),
                    None,
                )
                asked.append((bookie, segment.first_entry, entry))
        return list(await asyncio.gather(*(self._replica(facts.ledger, *one) for one in asked)))

    async def check(
        self, read_uses: Callable[[], Awaitable[Mapping[int, LedgerUse]]], *, age_min_ms: int
    ) -> LedgerReport:
        """`read_uses`: every ledger that a topic record names now."""
        check = LedgerCheck(
            self._store.owner,
            self.registered,
            copies=self._store.copies,
            now_ms=self._clock.now_ms(),
            age_min_ms=age_min_ms,
        )
        async for facts in self._all():
            check.feed(facts)
        uses = await read_uses()
        unknown = list(check.unknown(uses))
        there = {facts.ledger for facts in await self._load(unknown)}
        absent = [ledger for ledger in unknown if ledger not in there]
        still_named = await read_uses() if absent else {}
        for ledger in absent:
            if ledger in still_named:
                check.report.missing.add(ledger)
        return check.end(uses)

    async def recover(self, ledger: int) -> LedgerFacts:
        """Closes the ledger, which fences its writer. Its topic continues in a new ledger."""
        await self._store.recover(ledger)
        return await self.find(ledger)

    async def delete_orphan(self, ledger: int) -> None:
        """Fences it first, so that a writer which still knows it can confirm nothing in it."""
        await self._store.recover(ledger)
        await self._store.nodes.delete(ledger)

    # inside

    async def _all(self) -> AsyncIterator[LedgerFacts]:
        ids: list[int] = []
        async for ledger in self._store.nodes.ids():
            ids.append(ledger)
            if len(ids) == AT_ONCE_MAX:
                for facts in await self._load(ids):
                    yield facts
                ids = []
        for facts in await self._load(ids):
            yield facts

    async def _load(self, ids: list[int]) -> list[LedgerFacts]:
        """Those that exist."""
        found = []
        for at in range(0, len(ids), AT_ONCE_MAX):
            part = ids[at : at + AT_ONCE_MAX]
            nodes = await asyncio.gather(*(self._store.nodes.load(ledger) for ledger in part))
            found += [
                LedgerFacts(ledger, node.metadata, node.created_ms)
                for ledger, node in zip(part, nodes, strict=True)
                if node is not None
            ]
        return found

    async def _replica(self, ledger: int, bookie: str, first: int, entry: int | None) -> Replica:
        return Replica(bookie, self.state_of(bookie), first, entry, await self._answer(ledger, bookie, entry))

    async def _answer(self, ledger: int, bookie: str, entry: int | None) -> str:
        if entry is None:
            return "no entries"
        try:
            answer = await self._store.bookies.read(bookie, ledger, entry)
        except BookieUnreachable as error:
            return error.reason
        if answer.code != Code.OK:
            return code_text(answer.code)
        return "ok" if read_body(answer.bodies[0], ledger, entry) is not None else "damaged entry"
