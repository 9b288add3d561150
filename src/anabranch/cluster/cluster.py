"""This broker as a member of the cluster: it registers, follows the slot table and holds slots.

The asyncio shell around `SlotHolder`: reads and writes the table, runs the effects in order, and asks its node
(`Serving`) to close topics. `ClusterView` keeps what is known of the cluster; `DirectorRunner` directs it while this
broker is elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from anabranch.cluster import slot_holder as holder
from anabranch.cluster.broker_info import BadBrokerInfo, BrokerInfo, decode_broker_info, encode_broker_info
from anabranch.cluster.cluster_view import ClusterView
from anabranch.cluster.director import ReadTable, SaveTable, TableSaved, TableSeen
from anabranch.cluster.director_runner import DirectorRunner
from anabranch.cluster.load_report import LOOK_SECONDS, LoadReporter
from anabranch.cluster.planned_moves import plan_move
from anabranch.cluster.slot_holder import Close, Closed, CloseFailed, Serve, SlotHolder, StopServing
from anabranch.cluster.slot_table import BadTable, Table
from anabranch.cluster.slot_table_store import TableStore, seen
from anabranch.cluster.slots import slot_of
from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.recipes.election import Election
from anabranch.metadata.recipes.membership import Members, Registration
from anabranch.metadata.recipes.session_keeper import KeeperEvent, SessionKeeper, SessionUp
from anabranch.metadata.recipes.subtree_mirror import Mirror
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import Error
from anabranch.runtime.chance import Chance
from anabranch.runtime.changes import Changes
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

ROOT = "/cluster"
SLOTS_KEY = f"{ROOT}/slots"
BROKERS = f"{ROOT}/brokers"
DIRECTOR = f"{ROOT}/director"
JOIN_SECONDS = 30.0


class ForeignVolume(Error):
    """The brokers of one cluster must share one data directory."""

    code = "foreign-volume"


class Serving(Protocol):
    """What a broker does with the slots it holds."""

    async def close(self, next_holders: Mapping[int, BrokerInfo | None]) -> Callable[[], None]:
        """Closes the topics of these slots. The returned function sends the clients to the next holders; it is called
        once these hold the slots.

        None: the next holder is not registered any more; clients look the topic up. Raises unless everything is
        certainly durable.
        """

    def loads(self) -> Mapping[int, float]:
        """Bytes per second, in and out, by slot; slots without traffic may be missing."""

    def step_down(self, reason: str) -> None:
        """Another broker serves the slots of this one: confirm nothing, send nothing to clients, end."""


class Cluster:
    def __init__(
        self,
        store: MetadataStore,
        info: BrokerInfo,
        *,
        serving: Serving,
        recover: Callable[[str, int], Awaitable[object]],
        clock: Clock,
        chance: Chance,
        session_ms: int,
    ) -> None:
        """`recover` fences the log of a broker's incarnation and brings it into the ledger files."""
        self.info = info
        self._store = store
        self._slots = TableStore(store, SLOTS_KEY, clock, chance)
        self._serving = serving
        self._clock = clock
        self._keeper = SessionKeeper(store, name=f"broker-{info.broker}", ttl_ms=session_ms, clock=clock, chance=chance)
        self._registration = Registration(self._keeper, BROKERS, info.broker, encode_broker_info(info))
        self._members = Members(store, BROKERS, clock=clock, chance=chance)
        self._mirror = Mirror(store, SLOTS_KEY, clock=clock, chance=chance)
        self._election = Election(self._keeper, DIRECTOR, info.broker.encode())
        self._holder = SlotHolder(info.broker_incarnation)
        self._view = ClusterView()
        self._close_notifications: list[tuple[frozenset[int], Callable[[], None]]] = []
        self._changes = Changes()
        self._has_stepped_down = False
        self._tasks = TaskOwner("cluster")
        self._director_runner = DirectorRunner(
            self._election, self._slots, self._members, self, recover=recover, clock=clock, tasks=self._tasks
        )
        self._stack = AsyncExitStack()

    # -- queries of the node

    def is_here(self, topic: str) -> bool:
        return slot_of(topic) in self._holder.serving and self.is_valid

    def owner_info(self, topic: str) -> BrokerInfo | None:
        """The broker that serves the topic, as far as is known here; None: no broker does at the moment."""
        return self._view.owner_info(topic)

    def ownership_epoch(self, topic: str) -> int | None:
        """Epoch of the topic's slot if this broker holds it, as far as is known here; else None."""
        return self._view.ownership_epoch(topic, self.info.broker_incarnation)

    def is_placed(self, topic: str) -> bool:
        """Whether a broker serves the topic and no move of its slot is planned, as far as is known here."""
        if self._view.is_moving(topic):
            return False
        return self.is_here(topic) if self.ownership_epoch(topic) is not None else self.owner_info(topic) is not None

    def owner_epoch(self, topic: str) -> int:
        """Epoch of the topic's slot: it changes with every change of the holding broker incarnation."""
        return self._view.owner_epoch(topic)

    @property
    def changes(self) -> int:
        """Number of changes of table and members. Read it before you read these; pass it to `wait_changed`."""
        return self._changes.count

    async def wait_changed(self, seen: int, seconds: float) -> bool:
        """Waits until table or members have changed since `seen`; False after a timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._changes.wait(seen)
        except TimeoutError:
            return False
        return True

    @property
    def is_valid(self) -> bool:
        """Whether the session is certainly alive, so no director can have declared this broker dead. Checked before
        anything is confirmed."""
        lease = self._keeper.lease
        return not self._has_stepped_down and lease is not None and lease.is_valid

    @property
    def serving(self) -> frozenset[int]:
        """Slots that this broker serves while `is_valid`."""
        return self._holder.serving

    @property
    def has_stepped_down(self) -> bool:
        return self._has_stepped_down

    @property
    def table(self) -> Table:
        return self._view.table

    @property
    def brokers(self) -> Mapping[str, BrokerInfo]:
        """The registered brokers, by id."""
        return dict(self._view.brokers)

    @property
    def is_director(self) -> bool:
        """Whether this broker is the director, as far as it knows."""
        return self._director_runner.is_director

    # -- joining and leaving

    async def __aenter__(self) -> Self:
        stack = self._stack
        try:
            for part in (self._keeper, self._members, self._mirror):
                await stack.enter_async_context(part)
            await self._keeper.wait_lease(JOIN_SECONDS)
            await self._members.wait_ready(JOIN_SECONDS)
            await self._mirror.wait_ready(JOIN_SECONDS)
            self.see_members()
            self._check_volume()
            await stack.enter_async_context(self._registration)
            await self._registration.wait_registered(JOIN_SECONDS)
            stack.callback(self._keeper.listen(self._hear_session))
            stack.push_async_callback(self._tasks.close)
            self._tasks.spawn(self._follow_table(), "table")
            self._tasks.spawn(self._follow_members(), "members")
            self._tasks.spawn(self._director_runner.follow_election(), "election")
            self._tasks.spawn(self._report_load(), "load")
            await stack.enter_async_context(self._election)
        except BaseException:
            await stack.aclose()
            raise
        self._perform_holder(self._holder.begin())
        return self

    def _check_volume(self) -> None:
        other = self._view.broker_on_other_volume(self.info.volume_id)
        if other is not None:
            raise ForeignVolume(
                f"broker {other.broker} uses volume {other.volume_id}, this broker uses {self.info.volume_id};"
                " all brokers of a cluster must share one data directory"
            )

    async def wait_serving(self, seconds: float) -> None:
        """Waits until this broker holds a slot or every slot has a holder; TimeoutError."""
        async with asyncio.timeout(seconds):
            while not self._has_stepped_down and not self._holder.serving and self._view.has_free_slots:
                await self._changes.wait(self._changes.count)

    async def drain(self, seconds: float) -> bool:
        """Moves all slots to other brokers; True when none is left. Without another broker nothing moves."""
        self.info = replace(self.info, is_draining=True)
        try:
            async with asyncio.timeout(seconds):
                await self._registration.update(encode_broker_info(self.info), seconds)
                while (
                    not self._holder.is_empty
                    and self._view.are_others_able(self.info.broker)
                    and not self._has_stepped_down
                ):
                    await self._changes.wait(self._changes.count)
        except TimeoutError:
            return False
        return self._holder.is_empty

    async def resume(self, seconds: float) -> None:
        """Takes slots again after a drain."""
        self.info = replace(self.info, is_draining=False)
        await self._registration.update(encode_broker_info(self.info), seconds)

    async def move(self, slots: Iterable[int], broker: str, seconds: float) -> bool:
        """Plans a move of these slots to a registered broker; True once it holds all of them."""
        to, wanted = self._view.brokers[broker].broker_incarnation, frozenset(slots)
        try:
            async with asyncio.timeout(seconds):
                while not await self._plan_move(wanted, to):
                    pass
                while any(slot.next_holder == to for number, slot in enumerate(self.table.slots) if number in wanted):
                    await self._changes.wait(self._changes.count)
        except TimeoutError:
            return False
        return wanted <= self.table.held_by(to)

    async def _plan_move(self, slots: frozenset[int], to: BrokerIncarnation) -> bool:
        """False: another writer changed the table first."""
        found = await self._slots.read()
        planned = plan_move(found.table, slots, to)
        if found.stamp is None or planned == found.table:
            return True
        effect = SaveTable(replace(planned, serial=found.table.serial + 1), found.stamp, f"moved to {to}")
        outcome = await self._slots.save(effect)
        if isinstance(outcome, TableSaved):
            self.table_seen(TableSeen(effect.table, outcome.stamp))
        return isinstance(outcome, TableSaved)

    async def _report_load(self) -> None:
        """Runs for ever: measures the load of the held slots, and registers it when it has changed enough."""
        reporter = LoadReporter()
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            table = self._view.table
            held = table.held_by(self.info.broker_incarnation)
            load = reporter.looked(self._clock.monotonic(), table.serial, held, self._serving.loads())
            if load is None:
                continue
            self.info = self.info.with_load(load)
            try:
                await self._registration.update(encode_broker_info(self.info), LOOK_SECONDS)
            except TimeoutError:
                log.info("load report delayed", extra={"load": load.total})  # part of the next registration

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # -- watching

    async def _follow_table(self) -> None:
        changes = self._mirror.changes()
        try:
            self._see_table()
            async for _ in changes:
                self._see_table()
        finally:
            changes.close()

    def _see_table(self) -> None:
        found = self._mirror.now.get(SLOTS_KEY)
        if found is None:
            return
        try:
            self.table_seen(seen(found))
        except BadTable as error:  # of a later release, perhaps: held slots stay held until this broker's log is fenced
            log.error("slot table cannot be decoded; upgrade this broker", extra={"reason": error.reason})

    def table_seen(self, seen: TableSeen) -> None:
        self.note_table(seen.table)
        self.holder_saw(seen)
        self._director_runner.table_seen(seen)

    def note_table(self, table: Table) -> None:
        self._view.note_table(table)
        self._changes.happened()

    def holder_saw(self, seen: TableSeen) -> None:
        self._perform_holder(self._holder.handle(seen))

    async def _follow_members(self) -> None:
        async for _ in self._members.changes():
            self.see_members()
            await self._director_runner.members_changed()

    def see_members(self) -> Mapping[str, BrokerInfo]:
        brokers: dict[str, BrokerInfo] = {}
        for name, value in self._members.now.items():
            try:
                brokers[name] = decode_broker_info(value)
            except BadBrokerInfo as error:
                log.warning(
                    "broker registration cannot be decoded, broker ignored",
                    extra={"broker": name, "reason": error.reason},
                )
        self._view.brokers = brokers
        self._changes.happened()
        return brokers

    def _hear_session(self, event: KeeperEvent) -> None:
        if isinstance(event, SessionUp):  # not the first one: the listener is added after it
            self._director_runner.session_regained()

    # -- effects

    def _perform_holder(self, effects: list[holder.Effect]) -> None:
        for effect in effects:
            match effect:
                case Serve(slots):
                    log.info("serving slots", extra={"slots": len(slots)})
                case Close(next_holders):
                    self._tasks.spawn(self._close(dict(next_holders)), "close")
                case StopServing(reason):
                    self._has_stepped_down = True
                    log.error("this broker was replaced and stops serving", extra={"reason": reason})
                    self._serving.step_down(reason)
                case ReadTable():
                    self._tasks.spawn(self.read_table(), "read table")
                case SaveTable():
                    self._tasks.spawn(self._hand_over(effect), "hand over")
        self._send_close_notifications()
        self._changes.happened()

    async def _close(self, next_holders: dict[int, BrokerIncarnation]) -> None:
        slots = frozenset(next_holders)
        try:
            say = await self._serving.close(
                {number: self._view.info_at(incarnation) for number, incarnation in next_holders.items()}
            )
        except (
            Exception
        ) as error:  # any error: a slot that is not certainly closed must never be served by another broker
            log.error("slots could not be closed", extra={"slots": len(slots)}, exc_info=error)
            self._perform_holder(self._holder.handle(CloseFailed("slots could not be closed")))
            return
        self._close_notifications.append((slots, say))
        self._perform_holder(self._holder.handle(Closed(slots)))

    def _send_close_notifications(self) -> None:
        """To clients of slots that have a new holder, or that are served here again because the next holder is gone."""
        if self._has_stepped_down:
            return  # their connections end with this process
        waiting = self._holder.unsettled
        due = [say for slots, say in self._close_notifications if not slots & waiting]
        self._close_notifications = [(slots, say) for slots, say in self._close_notifications if slots & waiting]
        for say in due:
            say()

    async def _hand_over(self, effect: SaveTable) -> None:
        outcome = await self._slots.save(effect)
        if isinstance(outcome, TableSaved):
            self.note_table(effect.table)
        self._perform_holder(self._holder.handle(outcome))
        if isinstance(outcome, TableSaved):
            self._director_runner.table_seen(TableSeen(effect.table, outcome.stamp))

    async def read_table(self) -> None:
        self.table_seen(await self._slots.read())
