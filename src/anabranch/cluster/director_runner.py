"""The director's office in one broker: taken when it is elected, left when it is not any more.

The shell around `director`: tells it of the table and the members, writes the tables it decides (under its term alone)
and has the logs of dead brokers recovered. Knows the election and the table's store; must not know what this broker
itself holds (`holder`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from anabranch.cluster import director
from anabranch.cluster.broker_info import BrokerInfo
from anabranch.cluster.director import (
    Director,
    MembersSeen,
    ReadTable,
    Recovered,
    RecoveryFailed,
    SaveTable,
    TableRaced,
    TableSaved,
    TableSeen,
    Waited,
)
from anabranch.cluster.slot_table import Table
from anabranch.cluster.slot_table_store import TableStore
from anabranch.metadata.recipes.election import Elected, Election
from anabranch.metadata.recipes.membership import Members
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
PATIENT_SECONDS = 3.0  # for others to register again when the store was away for all


class DirectorListener(Protocol):
    """The broker around the office."""

    def see_members(self) -> Mapping[str, BrokerInfo]:
        """Everybody who is registered, as far as is known."""

    def note_table(self, table: Table) -> None:
        """The latest table is this one."""

    def holder_saw(self, seen: TableSeen) -> None:
        """The broker's own slots are as the director wrote them."""

    def table_seen(self, seen: TableSeen) -> None:
        """A table was read: for the holder and for the director."""

    async def read_table(self) -> None: ...


class DirectorRunner:
    def __init__(
        self,
        election: Election,
        slots: TableStore,
        members: Members,
        listener: DirectorListener,
        *,
        recover: Callable[[str, int], Awaitable[object]],
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        """`recover` fences the log of a broker's incarnation and brings it into the ledger files."""
        self._election = election
        self._slots = slots
        self._members = members
        self._listener = listener
        self._recover = recover
        self._clock = clock
        self._tasks = tasks
        self._director: Director | None = None
        self._term = 0
        self._session_regained_at: float | None = None

    @property
    def is_director(self) -> bool:
        return self._director is not None

    def session_regained(self) -> None:
        """Ours was lost, and so perhaps were others': whoever is elected now waits for them to register again."""
        self._session_regained_at = self._clock.monotonic()

    # -- events

    async def follow_election(self) -> None:
        async for event in self._election.events():
            if isinstance(event, Elected):
                self._term = event.leadership.term
                regained_at = self._session_regained_at
                is_patient = regained_at is not None and self._clock.monotonic() - regained_at < PATIENT_SECONDS
                log.info("this broker directs the cluster", extra={"term": self._term, "patient": is_patient})
                self._director = Director(self._term, is_patient)
                self._tasks.spawn(self._take(self._director, is_patient), "take office")
            else:
                log.info("this broker directs no longer", extra={"reason": event.reason})
                self._director = None

    async def _take(self, by: Director, is_patient: bool) -> None:
        """The list of members must not be older than the table: its holders have registered before it was written."""
        table = await self._slots.read()
        if by is not self._director:
            return
        self._members.refresh()
        self._listener.table_seen(table)
        await self._brief(by)
        if is_patient:
            await self._clock.sleep(PATIENT_SECONDS)
            if by is self._director:
                self._perform(by.handle(Waited()))

    def table_seen(self, seen: TableSeen) -> None:
        if self._director is not None:
            self._perform(self._director.handle(seen))

    async def members_changed(self) -> None:
        await self._brief(self._director)

    async def _brief(self, by: Director | None) -> None:
        """Tell the director who is there, once nothing is known to be missing: on an old list the living look dead."""
        while by is not None and by is self._director:
            try:
                await self._members.wait_current(RETRY_SECONDS)
            except TimeoutError:
                continue
            members = {name: info.member for name, info in self._listener.see_members().items()}
            self._perform(by.handle(MembersSeen(members)))
            return

    # -- effects

    def _perform(self, effects: list[director.Effect]) -> None:
        for effect in effects:
            match effect:
                case ReadTable():
                    self._tasks.spawn(self._listener.read_table(), "read table")
                case SaveTable(_, _, reason):
                    log.info("slots change", extra={"term": self._term, "reason": reason})
                    self._tasks.spawn(self._direct(effect, self._director), "direct")
                case director.Recover(incarnation):
                    self._tasks.spawn(self._recover_log(incarnation, self._director), f"recover {incarnation}")
                case director.StepDown(term):
                    log.warning("a later director has written", extra={"term": term})
                    self._director = None

    async def _direct(self, effect: SaveTable, by: Director | None) -> None:
        outcome: TableSaved | TableRaced = TableRaced()
        leadership = self._election.leadership
        if leadership is not None and leadership.is_valid and leadership.term == effect.table.term:
            outcome = await self._slots.save(effect)
        else:
            await self._clock.sleep(RETRY_SECONDS)  # we are about to hear that it is over
        if isinstance(outcome, TableSaved):
            self._listener.note_table(effect.table)
        if by is not None and by is self._director:
            self._perform(by.handle(outcome))
        if isinstance(outcome, TableSaved):
            self._listener.holder_saw(TableSeen(effect.table, outcome.stamp))

    async def _recover_log(self, incarnation: BrokerIncarnation, by: Director | None) -> None:
        event: Recovered | RecoveryFailed = Recovered(incarnation)
        try:
            await self._recover(incarnation.broker, incarnation.number)
        except Exception as error:  # whatever it was: a recovery that fails must not be the last one that is tried
            reason = error.reason if isinstance(error, Error) else repr(error)
            log.warning("log not recovered yet", extra={"incarnation": str(incarnation), "reason": reason})
            await self._clock.sleep(RETRY_SECONDS)
            event = RecoveryFailed(incarnation)
        if by is not None and by is self._director:
            self._perform(by.handle(event))
