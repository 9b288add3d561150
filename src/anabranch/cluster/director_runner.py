"""Runs the director while this broker is elected.

The asyncio shell around `Director`: passes it table and members, writes the tables that it decides (only under its own
term), and recovers the logs of dead brokers. It does not know which slots this broker holds.
"""

from __future__ import annotations

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
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

RETRY_SECONDS = 0.5
PATIENT_SECONDS = 3.0  # for others to register again after the store was unavailable for all


class DirectorListener(Protocol):
    """The broker that runs the director."""

    def see_members(self) -> Mapping[str, BrokerInfo]:
        """The registered brokers, as far as is known."""

    def note_table(self, table: Table) -> None:
        """This is the latest table."""

    def holder_saw(self, seen: TableSeen) -> None:
        """The director has written this table: the broker follows it for its own slots."""

    def table_seen(self, seen: TableSeen) -> None:
        """A table was read: for the slots of this broker and for the director."""

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
        """`recover` fences the log of a broker incarnation and writes it to the ledger files."""
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
        """The session was lost, and perhaps those of other brokers too: a director elected now waits until they have
        registered again."""
        self._session_regained_at = self._clock.monotonic()

    # -- events

    async def follow_election(self) -> None:
        async for event in self._election.events():
            if isinstance(event, Elected):
                self._term = event.leadership.term
                regained_at = self._session_regained_at
                is_patient = regained_at is not None and self._clock.monotonic() - regained_at < PATIENT_SECONDS
                log.info("elected as director of the cluster", extra={"term": self._term, "patient": is_patient})
                self._director = Director(self._term, is_patient)
                self._tasks.spawn(self._take(self._director, is_patient), "start director")
            else:
                log.info("no longer director of the cluster", extra={"reason": event.reason})
                self._director = None

    async def _take(self, by: Director, is_patient: bool) -> None:
        """Reads the table before the members: the list of members must not be older than the table, whose holders had
        registered before it was written."""
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
        """Passes the members to the director once the list is current; on an old list a new broker would look dead."""
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
                    log.info("writing slot table", extra={"term": self._term, "reason": reason})
                    self._tasks.spawn(self._direct(effect, self._director), "direct")
                case director.Recover(incarnation):
                    self._tasks.spawn(self._recover_log(incarnation, self._director), f"recover {incarnation}")
                case director.StepDown(term):
                    log.warning("director replaced by one with a later term", extra={"term": term})
                    self._director = None

    async def _direct(self, effect: SaveTable, by: Director | None) -> None:
        outcome: TableSaved | TableRaced = TableRaced()
        leadership = self._election.leadership
        if leadership is not None and leadership.is_valid and leadership.term == effect.table.term:
            outcome = await self._slots.save(effect)
        else:
            await self._clock.sleep(RETRY_SECONDS)  # the end of the term is about to be reported
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
        except Exception as error:  # any error: a failed recovery is tried again
            reason = error.reason if isinstance(error, Error) else repr(error)
            log.warning(
                "log of a dead broker not recovered yet, retrying",
                extra={"incarnation": str(incarnation), "reason": reason},
            )
            await self._clock.sleep(RETRY_SECONDS)
            event = RecoveryFailed(incarnation)
        if by is not None and by is self._director:
            self._perform(by.handle(event))
