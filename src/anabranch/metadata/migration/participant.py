"""One process in migrations: it registers itself, follows the record, and performs what its machine decides.

An answer of the store reaches its caller only if the store was still that of the cluster when it answered. The process
is *vouched for* while it is registered and has read, after it registered, that no attempt concerns it: any coordinator
then waits for it. Otherwise, for example after a stop that was longer than its session, it reads the record before
every answer.
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
    Retry,
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
    read_record,
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
        self._vouched: Lease | None = None
        self._before: _Side | None = None  # the former store, while peers may still use it
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
        self._here = side = await self._side(self._store.real)
        self._store.take_part(self)
        try:
            await self._register(side)
            await self._step()
        except BaseException:
            if self._here is side:
                self._here = None
            await self._undo_preparation()
            await self._close_side(side)
            raise
        self._tasks.spawn(self._run(), "participant")

    async def close(self) -> None:
        await self._tasks.close()
        sides, target = (self._next, self._here), self._next
        self._here = self._next = None
        for side in sides:
            if side is not None:
                await self._close_side(side)
        if target is not None:
            await target.store.close()

    async def _side(self, store: MetadataStore) -> _Side:
        keeper = SessionKeeper(
            store, name=f"migration-{self.name}", ttl_ms=self._ttl_ms, clock=self._clock, chance=self._chance
        )
        keeper.listen(self._on_session)
        watch = store.watch(ROOT)
        await keeper.__aenter__()
        self._tasks.spawn(self._follow(watch), "watch")
        return _Side(store, keeper, watch)

    async def _close_side(self, side: _Side) -> None:
        side.watch.close()
        await side.keeper.close()

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
            except (Error, TimeoutError, OSError) as error:
                log.info("metadata migration: a step is repeated", extra={"reason": str(error)})
                self._clock.call_later(BUSY_S, self._wake.set)

    async def _step(self) -> None:
        """Read the state once and act on it."""
        assert self._here is not None
        registered: Lease | None = None
        try:
            await self._register(self._here, STEP_S if self._machine.stage is Stage.IDLE else 0.0)
            registered = self._here.registered
        except (Error, TimeoutError):
            if self._machine.stage is Stage.IDLE:
                raise  # otherwise the decision may be known without the source
        record = await self._read_record()
        if record is not None and record.is_running_here and await self._is_coordinator_gone():
            await self._ask_failed(record.run, f"the coordinator {record.coordinator} has ended")
            record = await self._read_record()
        await self._post(RecordSeen(record))
        await self._post(Retry())
        if self._machine.stage is Stage.READY and self._is_target_ending():
            await self._post(StepFailed("the sessions in the target are about to end"))
            await self._post(RecordSeen(await self._read_record()))
        if registered is not None and self._here.registered is registered:
            await self._vouch(record)

    async def _is_coordinator_gone(self) -> bool:
        assert self._here is not None
        store = self._here.store
        if await store.get(COORDINATOR) is not None:
            return False
        await store.sync()
        return await store.get(COORDINATOR) is None

    async def _vouch(self, record: MigrationRecord | None) -> None:
        """`record` was read after the registration. Also finishes what a switch could not do at once."""
        assert self._here is not None
        if self._machine.stage is not Stage.IDLE or not self._is_open_store(record):
            return
        if record is not None and self._decided is not None:
            await mark_complete(self._here.store, self._decided, self._clock.now_ms())
        self._vouched = self._here.registered
        self._store.is_outdated = False

    def _is_open_store(self, record: MigrationRecord | None) -> bool:
        """Whether a store with this record is the cluster's, and its writers need not wait."""
        if record is None:
            return True
        if record.role is Role.TARGET:
            return record.phase is Phase.COMPLETED or (self._decided is not None and self._decided.run == record.run)
        return record.phase in (Phase.NOT_STARTED, Phase.FAILED)

    def _is_target_ending(self) -> bool:
        left_s = self._store.target_valid_until() - self._clock.monotonic()
        return self._store.is_target_lost or left_s < self._ttl_ms / 3000

    async def _read_record(self) -> MigrationRecord | None:
        record = await self._read()
        if record is not None and record.has_moved:
            self._decided = record
        return record

    async def _read(self) -> MigrationRecord | None:
        """From the source; from the target if the source does not answer and the target is complete."""
        assert self._here is not None
        try:
            async with asyncio.timeout(STEP_S):
                return await read_record(self._here.store)
        except (StoreUnavailable, TimeoutError):
            if self._next is None:
                raise
            found = await self._next.store.get(MIGRATION)
            record = None if found is None else MigrationRecord.from_bytes(found.value)
            if record is None or record.phase is not Phase.COMPLETED:
                raise
            return replace(record, role=Role.SOURCE)

    async def _register(self, side: _Side, seconds: float = STEP_S) -> None:
        lease = await side.keeper.wait_lease(seconds)
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
        if record is not None and record.has_moved:
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
        """From here on the target is the store. What fails afterwards is repeated by the next steps."""
        assert self._here is not None
        assert self._next is not None
        assert self._decided is not None
        decided, run = self._decided, self._next.state.run
        old, former = self._store.switch()
        self.url = decided.target_url
        before, self._here, self._next = self._here, self._next, None
        self._here.state, self._here.registered = ParticipantRecord(State.SWITCHED, run), None
        self._gate.open()
        self._unblock()
        self._before = before
        self._tasks.spawn(self._retire(before, old, former), "retire")
        log.info("metadata moved to another store; set metadata.url to it before the next restart")
        try:
            await mark_complete(self._here.store, decided, self._clock.now_ms())
            await self._register(self._here)
        except (Error, TimeoutError) as error:
            log.warning("the target does not answer after the switch; repeating", extra={"reason": str(error)})
        self._wake.set()

    async def pending_peers(self) -> list[str]:
        """Live processes that do not use the store of this process yet."""
        if self._here is None:
            return []
        switched = await read_participants(self._here.store)
        pending = {name for name, one in switched.items() if one.state is State.READY}
        if self._before is not None:
            try:
                async with asyncio.timeout(STEP_S):
                    left = await read_participants(self._before.store)
            except (Error, TimeoutError):
                left = {}
            pending |= {name for name in left if name not in switched}
        return sorted(pending)

    async def _retire(self, before: _Side, old: MetadataStore, former: list[Session]) -> None:
        """Close the source once no peer uses it."""
        end = self._clock.monotonic() + RETIRE_S
        while self._clock.monotonic() < end:
            await self._clock.sleep(BUSY_S)
            try:
                if self._before is not before or not await self.pending_peers():
                    break
            except (Error, TimeoutError):
                continue
        if self._before is before:
            self._before = None
        await self._close_side(before)
        for session in former:
            try:
                await session.close()
            except (Error, TimeoutError):
                continue
        await old.close()

    async def _undo(self) -> None:
        """Writers go on first: nothing of the target may delay them."""
        self._gate.open()
        self._unblock()
        await self._undo_preparation()
        assert self._here is not None
        await self._report(self._here, ParticipantRecord(State.JOINED))

    async def _undo_preparation(self) -> None:
        side, self._next = self._next, None
        await self._store.discard()
        if side is not None:
            await self._close_side(side)
            await side.store.close()

    def _unblock(self) -> None:
        if self.blocked_since is not None:
            self.blocked_s = self._clock.monotonic() - self.blocked_since
            self.blocked_since = None

    @property
    def is_vouched(self) -> bool:
        """Whether the store is that of the cluster, because any coordinator would wait for this process."""
        return self._here is None or (self._vouched is not None and self._vouched.is_valid)

    async def confirm(self) -> None:
        if self.is_vouched:
            return
        assert self._here is not None
        store = self._here.store
        try:
            await store.sync()
            record = await read_record(store)
        except StoreUnavailable as error:
            raise OutcomeUnknown("the metadata store may have moved: no answer") from error
        if not self._is_open_store(record):
            self._store.is_outdated = True
            self._wake.set()
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
        if found is None or record is None or not record.is_abandoned_target or record.run != decided.run:
            return
        complete = replace(decided, role=Role.TARGET, sub_phase=SubPhase.DONE, times={**decided.times, "DONE": now_ms})
        try:
            await target.put(MIGRATION, complete.to_bytes(), expected=found.version)
        except (VersionMismatch, OutcomeUnknown):
            await target.sync()
        else:
            return
