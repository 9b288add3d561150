"""This broker as a part of the cluster: registered, watching the table, holding slots.

The shell around `holder`: it reads and writes the table, runs its effects one after the other, and asks its node
(`Serving`) to close topics. What it knows of the cluster is in its `view`; directing, when elected, is done in its
`office`. Knows the metadata port and its recipes; must not know topics or connections.
"""

from __future__ import annotations

import asyncio
import logging
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
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)

ROOT = "/cluster"
SLOTS_KEY = f"{ROOT}/slots"
BROKERS = f"{ROOT}/brokers"
DIRECTOR = f"{ROOT}/director"
JOIN_SECONDS = 30.0


class ForeignVolume(Error):
    """Brokers of one cluster share one data directory."""

    code = "foreign-volume"


class Serving(Protocol):
    """What a broker does with the slots it holds."""

    async def close(self, next_holders: Mapping[int, BrokerInfo | None]) -> Callable[[], None]:
        """Close the topics of these slots; the answer tells their clients where to go, once the heirs hold them.

        An heir of whom nothing is known (any more) is None: their clients look for themselves. Raises when it is not
        sure that all of it is durable.
        """

    def loads(self) -> Mapping[int, float]:
        """Bytes per second, in and out, by slot; slots without traffic may be missing."""

    def step_down(self, reason: str) -> None:
        """Another serves what we served: confirm nothing, tell nobody anything, end."""


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

    # -- what the node asks

    def is_here(self, topic: str) -> bool:
        return slot_of(topic) in self._holder.serving and self.is_valid

    def owner_info(self, topic: str) -> BrokerInfo | None:
        """Of the broker that serves a topic, as far as we know; None: nobody does at the moment."""
        return self._view.owner_info(topic)

    def ownership_epoch(self, topic: str) -> int | None:
        """The epoch in which we hold the topic's slot; None: we do not, as far as we know."""
        return self._view.ownership_epoch(topic, self.info.broker_incarnation)

    def is_placed(self, topic: str) -> bool:
        """Does somebody serve it, as far as we know, and keeps it?"""
        if self._view.is_moving(topic):
            return False
        return self.is_here(topic) if self.ownership_epoch(topic) is not None else self.owner_info(topic) is not None

    def owner_epoch(self, topic: str) -> int:
        """Another number whenever the topic's slot has another holder, or the same one in another life."""
        return self._view.owner_epoch(topic)

    @property
    def changes(self) -> int:
        """How often table or members have changed: read before looking at them, for `wait_changed`."""
        return self._changes.count

    async def wait_changed(self, seen: int, seconds: float) -> bool:
        """Until table or members are others than at `seen`; False when they do not change in this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._changes.wait(seen)
        except TimeoutError:
            return False
        return True

    @property
    def is_valid(self) -> bool:
        """Can nobody have declared us dead? Looked at before anything is confirmed."""
        lease = self._keeper.lease
        return not self._has_stepped_down and lease is not None and lease.is_valid

    @property
    def serving(self) -> frozenset[int]:
        """The slots that are served here, while `is_valid`."""
        return self._holder.serving

    @property
    def has_stepped_down(self) -> bool:
        return self._has_stepped_down

    @property
    def table(self) -> Table:
        return self._view.table

    @property
    def brokers(self) -> Mapping[str, BrokerInfo]:
        """Everybody who is registered."""
        return dict(self._view.brokers)

    @property
    def is_director(self) -> bool:
        """Is this broker the director, as far as it knows?"""
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
                f"broker {other.broker} works on volume {other.volume_id}, this one on {self.info.volume_id}"
            )

    async def wait_serving(self, seconds: float) -> None:
        """Until we hold something, or everything has a holder; TimeoutError otherwise."""
        async with asyncio.timeout(seconds):
            while not self._has_stepped_down and not self._holder.serving and self._view.has_free_slots:
                await self._changes.wait(self._changes.count)

    async def drain(self, seconds: float) -> bool:
        """Give everything away; True when nothing is held any more. Alone there is nobody to give to."""
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
        """Take a share again after a drain."""
        self.info = replace(self.info, is_draining=False)
        await self._registration.update(encode_broker_info(self.info), seconds)

    async def move(self, slots: Iterable[int], broker: str, seconds: float) -> bool:
        """A planned move of these slots to a broker that is registered; True once it holds them all."""
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
        """False: somebody else wrote the table meanwhile."""
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
        """For ever: what the topics of our slots carry, told when it is worth a write."""
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
                log.info("load not told yet", extra={"load": load.total})  # it goes with the next registration

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
        except BadTable as error:  # of a later release, perhaps: what we hold is ours until our log is fenced
            log.error("slot table not understood", extra={"reason": error.reason})

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
                log.warning("registration not understood", extra={"broker": name, "reason": error.reason})
        self._view.brokers = brokers
        self._changes.happened()
        return brokers

    def _hear_session(self, event: KeeperEvent) -> None:
        if isinstance(event, SessionUp):  # not the first: we heard nothing of that one
            self._director_runner.session_regained()

    # -- effects

    def _perform_holder(self, effects: list[holder.Effect]) -> None:
        for effect in effects:
            match effect:
                case Serve(slots):
                    log.info("slots served", extra={"slots": len(slots)})
                case Close(next_holders):
                    self._tasks.spawn(self._close(dict(next_holders)), "close")
                case StopServing(reason):
                    self._has_stepped_down = True
                    log.error("this broker was replaced", extra={"reason": reason})
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
        except Exception as error:  # whatever it was: what is not surely closed must never be served by another
            log.error("slots not closed", extra={"slots": len(slots)}, exc_info=error)
            self._perform_holder(self._holder.handle(CloseFailed("slots could not be closed")))
            return
        self._close_notifications.append((slots, say))
        self._perform_holder(self._holder.handle(Closed(slots)))

    def _send_close_notifications(self) -> None:
        """To clients of slots that others hold now, or that are served here again because the heir has gone."""
        if self._has_stepped_down:
            return  # their connections end with us
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
