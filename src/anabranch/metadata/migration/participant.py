"""One process in migrations: it registers itself, follows the record, and performs what its machine decides.

A write is confirmed to its caller only while the registration of this process is valid. A process that was stopped for
longer than its session, and that the coordinator therefore did not wait for, reads the record before it confirms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from anabranch.metadata.interface import (
    ANY,
    MetadataStore,
    OutcomeUnknown,
    Session,
    StoreUnavailable,
    VersionMismatch,
    Watch,
)
from anabranch.metadata.migration.participant_state import (
    AskFailed,
    CloseGate,
    Effect,
    Event,
    GateClosed,
    ParticipantMachine,
    Prepare,
    Prepared,
    RecordSeen,
    ReportReady,
    Stage,
    StepFailed,
    Switch,
    Switched,
    Undo,
)
from anabranch.metadata.migration.record import (
    COORDINATOR,
    MIGRATION,
    PARTICIPANTS,
    ROOT,
    MigrationRecord,
    ParticipantRecord,
    Phase,
    Role,
    State,
    SubPhase,
)
from anabranch.metadata.migration.switching_store import SwitchingStore
from anabranch.metadata.recipes.session_keeper import KeeperEvent, Lease, SessionKeeper
from anabranch.metadata.write_gate import WriteGate
from anabranch.model.errors import Error
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

TTL_MS = 5_000
STEP_S = 5.0
"""For the writes that are under way, and for opening the target."""
IDLE_S = 30.0
BUSY_S = 0.25
RETIRE_S = 30.0
"""How long the source stays open for peers that have not switched yet."""

OpenTarget = Callable[[str], MetadataStore]
"""A store for a URL, not opened yet. Raises BadRequest for a URL that names none."""


@dataclass(slots=True)
class _Side:
    """One store, with the registration of this process in it."""

    store: MetadataStore
    keeper: SessionKeeper
    watch: Watch
    registered: Lease | None = None
    state: ParticipantRecord = field(default_factory=lambda: ParticipantRecord(State.JOINED))


class Participant:
    """`start` before the first write of the process, `close` after the last one. `url` is that of the store in use."""

    def __init__(
        self,
        store: SwitchingStore,
        gate: WriteGate,
        *,
        name: str,
        url: str,
        open_target: OpenTarget,
        clock: Clock,
        chance: Chance,
        ttl_ms: int = TTL_MS,
    ) -> None:
        self.name = name
        self._store, self._gate = store, gate
        self._open_target, self._clock, self._chance, self._ttl_ms = open_target, clock, chance, ttl_ms
        self._machine = ParticipantMachine()
        self._here: _Side | None = None
        self._next: _Side | None = None
        self._wake = asyncio.Event()
        self._tasks = TaskOwner("metadata migration")
        self._decided: MigrationRecord | None = None  # the last COMPLETED record that was read
        self.url = url
        self.blocked_since: float | None = None
        self.blocked_s = 0.0

    @property
    def is_started(self) -> bool:
        return self._here is not None

    @property
    def stage(self) -> Stage:
        return self._machine.stage

    async def start(self) -> None:
        """Register, then read the record: an attempt either finds this process, or is found by it."""
        if self._here is not None:
            return
        self._here = await self._side(self._store.real)
        self._store.on_write(self._confirm)
        await self._register(self._here)
        await self._step()
        self._tasks.spawn(self._run(), "participant")

    async def close(self) -> None:
        await self._tasks.close()
        for side in (self._next, self._here):
            if side is not None:
                side.watch.close()
                await side.keeper.close()
        if self._next is not None:
            await self._next.store.close()
        self._here = self._next = None

    async def _side(self, store: MetadataStore) -> _Side:
        keeper = SessionKeeper(
            store, name=f"migration-{self.name}", ttl_ms=self._ttl_ms, clock=self._clock, chance=self._chance
        )
        keeper.listen(self._on_session)
        watch = store.watch(ROOT)
        await keeper.__aenter__()
        self._tasks.spawn(self._follow(watch), "watch")
        return _Side(store, keeper, watch)

    def _on_session(self, event: KeeperEvent) -> None:
        self._wake.set()

    async def _follow(self, watch: Watch) -> None:
        async for _ in watch:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_S if self._machine.stage is Stage.IDLE else BUSY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._step()
            except (Error, TimeoutError) as error:
                log.info("metadata migration: a step is repeated", extra={"reason": str(error)})
                self._clock.call_later(BUSY_S, self._wake.set)

    async def _step(self) -> None:
        """Read the state once and act on it."""
        assert self._here is not None
        await self._register(self._here)
        record = await self._read_record()
        if record is not None and record.is_running and await self._here.store.get(COORDINATOR) is None:
            await self._here.store.sync()
            if await self._here.store.get(COORDINATOR) is None:
                await self._ask_failed(record.run, f"the coordinator {record.coordinator} has ended")
                record = await self._read_record()
        await self._post(RecordSeen(record))
        if self._machine.stage is Stage.READY and self._is_target_ending():
            await self._post(StepFailed("the sessions in the target are about to end"))
            await self._post(RecordSeen(await self._read_record()))

    def _is_target_ending(self) -> bool:
        left_s = self._store.target_valid_until() - self._clock.monotonic()
        return self._store.is_target_lost or left_s < self._ttl_ms / 3000

    async def _read_record(self) -> MigrationRecord | None:
        record = await self._read()
        if record is not None and record.phase is Phase.COMPLETED:
            self._decided = record
        return record

    async def _read(self) -> MigrationRecord | None:
        """From the source; from the target if the source does not answer and the target is complete."""
        assert self._here is not None
        try:
            async with asyncio.timeout(STEP_S):
                found = await self._here.store.get(MIGRATION)
        except (StoreUnavailable, TimeoutError):
            if self._next is None:
                raise
            found = await self._next.store.get(MIGRATION)
            record = None if found is None else MigrationRecord.from_bytes(found.value)
            if record is None or record.phase is not Phase.COMPLETED:
                raise
            return replace(record, role=Role.SOURCE)
        return None if found is None else MigrationRecord.from_bytes(found.value)

    async def _register(self, side: _Side) -> None:
        lease = await side.keeper.wait_lease(STEP_S)
        if side.registered is not lease:
            await side.store.put(self._key, side.state.to_bytes(), expected=ANY, session=lease.session)
            side.registered = lease
            await side.store.sync()

    async def _report(self, side: _Side, state: ParticipantRecord) -> None:
        side.state, side.registered = state, None
        await self._register(side)

    @property
    def _key(self) -> str:
        return f"{PARTICIPANTS}/{self.name}"

    async def _post(self, event: Event) -> None:
        for effect in self._machine.handle(event):
            await self._perform(effect)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case CloseGate():
                await self._post(await self._close_gate())
            case Prepare(url, keeps_sessions):
                await self._post(await self._prepare(url, keeps_sessions))
            case ReportReady(run):
                assert self._here is not None
                assert self._next is not None
                await self._report(self._next, ParticipantRecord(State.READY, run))
                await self._report(self._here, ParticipantRecord(State.READY, run))
            case AskFailed(run, reason):
                await self._ask_failed(run, f"{self.name}: {reason}")
                self._wake.set()
            case Switch():
                await self._switch()
                await self._post(Switched())
            case Undo():
                await self._undo()
            case _:
                assert_never(effect)

    async def _close_gate(self) -> Event:
        if self.blocked_since is None:
            self.blocked_since = self._clock.monotonic()
        try:
            if self._gate.is_open:
                await self._gate.close(int(STEP_S * 1000))
            assert self._here is not None
            await self._here.store.sync()  # requests that were cancelled have arrived
        except Error as error:
            return StepFailed(str(error))
        return GateClosed()

    async def _prepare(self, url: str, keeps_sessions: bool) -> Event:
        try:
            async with asyncio.timeout(STEP_S):
                if self._next is None:
                    target = self._open_target(url)
                    await target.open()
                    self._next = await self._side(target)
                await self._next.store.sync()  # applies the numbering of the target
                await self._store.discard()
                await self._store.prepare(self._next.store, keeps_sessions)
                record = await self._read_record()
        except (Error, TimeoutError, OSError) as error:
            return StepFailed(f"the target cannot be prepared: {str(error) or 'no answer'}")
        if record is not None and record.phase is Phase.COMPLETED:
            self._machine.handle(RecordSeen(record))  # known before the answer, which then asks for no session
        return Prepared()

    async def _ask_failed(self, run: str, reason: str) -> None:
        """Only a record of this attempt that is not decided is changed."""
        assert self._here is not None
        store = self._here.store
        for _ in range(10):
            found = await store.get(MIGRATION)
            record = None if found is None else MigrationRecord.from_bytes(found.value)
            if found is None or record is None or record.run != run or not record.is_running:
                return
            try:
                failed = record.failed(reason, self._clock.now_ms())
                await store.put(MIGRATION, failed.to_bytes(), expected=found.version)
            except (VersionMismatch, OutcomeUnknown):
                await store.sync()

    async def _switch(self) -> None:
        """From here on the target is the store. What fails afterwards is repeated or left to expire."""
        assert self._here is not None
        assert self._next is not None
        assert self._decided is not None
        decided, run = self._decided, self._next.state.run
        old, former = self._store.switch()
        self.url = decided.target_url
        self._gate.open()
        self._unblock()
        before, self._here, self._next = self._here, self._next, None
        self._here.state, self._here.registered = ParticipantRecord(State.SWITCHED, run), None
        self._tasks.spawn(self._retire(before, old, former, run), "retire")
        try:
            await mark_complete(self._here.store, decided, self._clock.now_ms())
            await self._register(self._here)
        except (Error, TimeoutError) as error:
            log.warning("the target does not answer after the switch; repeating", extra={"reason": str(error)})
            self._clock.call_later(BUSY_S, self._wake.set)
        log.info("metadata moved to another store; set metadata.url to it before the next restart")

    async def _retire(self, before: _Side, old: MetadataStore, former: list[Session], run: str) -> None:
        """Close the source once no peer uses it."""
        end = self._clock.monotonic() + RETIRE_S
        while self._clock.monotonic() < end and self._here is not None:
            try:
                states = await read_participants(self._here.store)
            except Error:
                states = {}
            if states and all(one.state is not State.READY for one in states.values()):
                break
            await self._clock.sleep(BUSY_S)
        before.watch.close()
        await before.keeper.close()
        for session in former:
            try:
                await session.close()
            except Error:
                continue
        await old.close()

    async def _undo(self) -> None:
        await self._store.discard()
        self._gate.open()
        self._unblock()
        side, self._next = self._next, None
        if side is not None:
            side.watch.close()
            await side.keeper.close()
            await side.store.close()
        assert self._here is not None
        await self._report(self._here, ParticipantRecord(State.JOINED))

    def _unblock(self) -> None:
        if self.blocked_since is not None:
            self.blocked_s = self._clock.monotonic() - self.blocked_since
            self.blocked_since = None

    async def _confirm(self) -> None:
        side = self._here
        if side is None or (side.registered is not None and side.registered.is_valid):
            return
        try:
            await side.store.sync()
            found = await side.store.get(MIGRATION)
        except StoreUnavailable as error:
            raise OutcomeUnknown("the metadata store may have moved: no answer") from error
        record = None if found is None else MigrationRecord.from_bytes(found.value)
        if record is not None and (record.has_moved or record.phase in (Phase.PREPARATION, Phase.COPYING)):
            raise OutcomeUnknown("the metadata was moved to another store while this process did not answer")


async def read_participants(store: MetadataStore) -> dict[str, ParticipantRecord]:
    found = {}
    for name in await store.children(PARTICIPANTS):
        stored = await store.get(f"{PARTICIPANTS}/{name}")
        if stored is not None:
            found[name] = ParticipantRecord.from_bytes(stored.value)
    return found


async def mark_complete(target: MetadataStore, decided: MigrationRecord, now_ms: int) -> None:
    """Write into a target that it is the store of the cluster, by the record that decided it. Safe to repeat."""
    while True:
        found = await target.get(MIGRATION)
        record = None if found is None else MigrationRecord.from_bytes(found.value)
        if found is None or record is None or record.role is not Role.TARGET or record.phase is Phase.COMPLETED:
            return
        complete = replace(decided, role=Role.TARGET, sub_phase=SubPhase.DONE, times={**decided.times, "DONE": now_ms})
        try:
            await target.put(MIGRATION, complete.to_bytes(), expected=found.version)
        except (VersionMismatch, OutcomeUnknown):
            await target.sync()
        else:
            return
