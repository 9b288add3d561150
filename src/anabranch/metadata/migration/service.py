"""Migration of the metadata store, as administrators use it: start, status, abort, verify."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    ChangeKind,
    MetadataStore,
    OutcomeUnknown,
    Session,
    Version,
    VersionMismatch,
)
from anabranch.metadata.migration.coordinator import Coordinator, Leases
from anabranch.metadata.migration.copy import compare_trees, purge
from anabranch.metadata.migration.pacing import Pace
from anabranch.metadata.migration.participant import OpenTarget, Participant, read_participants
from anabranch.metadata.migration.record import (
    COORDINATOR,
    MIGRATION,
    MOVED,
    PROGRESS,
    TARGET_LEASE,
    Counts,
    MigrationRecord,
    Phase,
    Role,
    SubPhase,
    read_record,
)
from anabranch.metadata.migration.switching_store import SwitchingStore
from anabranch.metadata.transfer import TargetNotEmpty, is_empty
from anabranch.metadata.write_gate import WriteGate
from anabranch.model.errors import BadRequest, Error, NotAllowed, NotReady
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

OPEN_S = 10.0
LEASE_MS = 5_000
CLAIM_S = 7.0
"""Longer than the lease of a coordinator that has ended."""

CLAIM_POLL_S = 0.05
PROGRESS_S = 1.0
ABORT_S = 10.0
ABORT_POLL_S = 0.05
VERSION_MARGIN = 1 << 33
"""More writes than happen during a copy, and more than one ZooKeeper node can count."""


_PHASES = {phase: number for number, phase in enumerate(Phase)}


class MigrationRunning(Error):
    """Another migration of this cluster is running."""

    code = "metadata-migration-running"


class NoMigration(NotAllowed):
    """There is no migration to abort or verify."""

    code = "no-metadata-migration"


class BadTarget(BadRequest):
    """The target cannot be used: it does not answer, or it is the store in use."""

    code = "bad-migration-target"


class MetadataMigration:
    """`url` is that of the store in use at the start; `store` and `gate` are what the process uses."""

    def __init__(
        self,
        store: SwitchingStore,
        gate: WriteGate,
        url: str,
        *,
        name: str,
        open_target: OpenTarget,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._store, self._name = store, name
        self._open_target, self._clock, self._chance = open_target, clock, chance
        self.participant = Participant(
            store, gate, name=name, url=url, open_target=open_target, clock=clock, chance=chance
        )
        self._coordinator: Coordinator | None = None
        self._tasks = TaskOwner("metadata migration")

    @property
    def url(self) -> str:
        """Of the store in use."""
        return self.participant.url

    async def open(self, *, has_peers: bool) -> None:
        """Before the first write of the process. A process alone takes part when it starts a migration itself, or to
        end one that it could not end before."""
        record = await read_record(self._store.real)
        if has_peers or (record is not None and record.is_running):
            await self.participant.start()

    def gauges(self) -> dict[str, float]:
        coordinator = self._coordinator
        counts = Counts() if coordinator is None else coordinator.progress().counts
        since = self.participant.blocked_since
        return {
            "anabranch_metadata_migration_running": int(coordinator is not None and coordinator.record.is_running),
            "anabranch_metadata_migration_phase": 0 if coordinator is None else _PHASES[coordinator.record.phase],
            "anabranch_metadata_migration_records": counts.records,
            "anabranch_metadata_migration_changed_keys": 0 if coordinator is None else coordinator.changed,
            "anabranch_metadata_migration_blocked_seconds": self.participant.blocked_s
            if since is None
            else self._clock.monotonic() - since,
        }

    async def close(self) -> None:
        """An attempt that this process coordinates ends; the other participants write FAILED when the lease ends."""
        if self._coordinator is not None:
            self._coordinator.stop("the coordinator is shutting down")
            await self._tasks.drain(OPEN_S)
        await self._tasks.close()
        await self.participant.close()

    async def start(self, target_url: str, *, rate: int | None = None, purge_target: bool = False) -> None:
        """Check the target and begin; the rest goes on in the background.

        `rate` limits the copy in records per second: 0 is unlimited, None adapts. `purge_target` allows to delete what
        an earlier attempt, or an earlier use of the target by this cluster, has left there.
        """
        if not target_url:
            raise BadRequest("the URL of the target is missing")
        if rate is not None and rate < 0:
            raise BadRequest("the rate must not be negative")
        await self.participant.start()
        source = self._store.real
        self._check_startable(await read_record(source))
        target = await self._opened(target_url)
        try:
            leases = Leases(await source.open_session(LEASE_MS), await target.open_session(LEASE_MS))
            try:
                coordinator = await self._begin(source, target, leases, target_url, rate, purge_target)
            except BaseException:
                await leases.close()
                raise
        except BaseException:
            await target.close()
            raise
        self._coordinator = coordinator
        self._tasks.spawn(self._run(coordinator, source, target), "coordinator")

    async def _opened(self, url: str) -> MetadataStore:
        try:
            target = self._open_target(url)
        except Error as error:
            raise BadTarget(error.reason) from error
        try:
            async with asyncio.timeout(OPEN_S):
                await target.open()
                await target.sync()
        except (Error, TimeoutError, OSError) as error:
            await target.close()
            raise BadTarget(f"the target does not answer: {error or 'no answer in time'}") from error
        return target

    def _check_startable(self, found: MigrationRecord | None) -> None:
        """The record of the source allows another attempt."""
        if found is None:
            return
        if found.is_running:
            raise MigrationRunning(f"a migration is running, coordinated by {found.coordinator}")
        if found.has_moved:
            raise MigrationRunning("a migration has completed, and this broker is switching to its target")

    async def _begin(
        self,
        source: MetadataStore,
        target: MetadataStore,
        leases: Leases,
        target_url: str,
        rate: int | None,
        purge_target: bool,
    ) -> Coordinator:
        """Nothing is deleted in the target before it is known that no other attempt writes there."""
        run = f"{self._name}-{int(self._chance.random() * 2**48):012x}"
        held = await self._claim(source, COORDINATOR, run, leases.source, "another broker has just started a migration")
        await target.sync()
        mine = await target.get(COORDINATOR)
        if mine is not None and mine.value == run.encode():
            raise BadTarget("the target is the store in use")
        refusal = "another migration is writing to the target, or has just ended"
        await self._claim(target, TARGET_LEASE, run, leases.target, refusal)
        if await is_empty(target):
            left = await target.get(MOVED)  # by an attempt that ended while it emptied the target
            leases = replace(leases, former=None if left is None else left.value)
        else:
            leases = await self._emptied(target, leases, purge_target)
        await target.raise_versions(held + VERSION_MARGIN)
        found = await source.get(MIGRATION)
        before = None if found is None else MigrationRecord.from_bytes(found.value)
        self._check_startable(before)
        now_ms = self._clock.now_ms()
        record = MigrationRecord(
            Phase.NOT_STARTED,
            target_url,
            source_url=self.url,
            attempt=1 if before is None else before.attempt + 1,
            run=run,
            coordinator=self._name,
            sub_phase=SubPhase.PRE_COPY,
            started_ms=now_ms,
            times={str(SubPhase.PRE_COPY): now_ms},
        )
        tag = MigrationRecord(Phase.COPYING, target_url, self.url, Role.TARGET, record.attempt, run)
        await _check_apart(source, target, tag)
        version = await source.put(MIGRATION, record.to_bytes(), expected=ABSENT if found is None else found.version)
        return Coordinator(source, target, record, version, leases, Pace(self._clock, rate), self._clock)

    async def _claim(self, store: MetadataStore, key: str, run: str, session: Session, refusal: str) -> Version:
        """Take a lease. That of an attempt that has just ended goes in a moment, or with the session of a dead
        coordinator, so it is waited for."""
        until = self._clock.monotonic() + CLAIM_S
        while True:
            try:
                return await store.put(key, run.encode(), expected=ABSENT, session=session)
            except VersionMismatch as error:
                if self._clock.monotonic() >= until:
                    raise MigrationRunning(refusal) from error
            self._check_startable(await read_record(self._store.real))
            await self._clock.sleep(CLAIM_POLL_S)

    async def _emptied(self, target: MetadataStore, leases: Leases, is_allowed: bool) -> Leases:
        """Only what a migration has left may be deleted, never the data of a cluster in use."""
        found = await target.get(MIGRATION)
        record = None if found is None else MigrationRecord.from_bytes(found.value)
        if found is None or record is None or not (record.has_moved or record.is_abandoned_target):
            raise TargetNotEmpty("the target is not empty")
        if not is_allowed:
            raise TargetNotEmpty("the target holds the remains of an earlier migration: allow to purge it")
        marker = record if record.has_moved else MigrationRecord(Phase.COMPLETED, self.url, record.target_url)
        leases.check(self._clock.monotonic())
        await target.put(MOVED, marker.to_bytes(), expected=ANY)
        await purge(target, lambda: leases.check(self._clock.monotonic()), keeps_record=False)
        return replace(leases, former=found.value if record.has_moved else None)

    async def _run(self, coordinator: Coordinator, source: MetadataStore, target: MetadataStore) -> None:
        reporting = self._tasks.spawn(self._report_progress(coordinator, source), "progress")
        try:
            await coordinator.run()
        finally:
            if reporting is not None:
                reporting.cancel()
            await coordinator.leases.close()
            await target.close()

    async def _report_progress(self, coordinator: Coordinator, source: MetadataStore) -> None:
        while True:
            await self._clock.sleep(PROGRESS_S)
            try:
                await source.put(PROGRESS, coordinator.progress().to_bytes(), expected=ANY)
            except Error as error:
                log.debug("the progress was not written", extra={"reason": str(error)})

    async def status(self) -> dict[str, Any]:
        record = await read_record(self._store.real)
        if record is None:
            record = MigrationRecord(Phase.NOT_STARTED, "")
        elif self._coordinator is not None and self._coordinator.record.run == record.run and record.is_running:
            record = self._coordinator.progress()
        elif record.is_running and (copied := await self._store.real.get(PROGRESS)) is not None:
            record = record.with_progress(copied.value)
        fields = record.to_fields()
        if record.is_running_here:
            rate, rest_s = record.rate(self._clock.now_ms())
            fields["recordsPerSecond"] = round(rate, 1)
            fields["restSeconds"] = None if rest_s is None else round(rest_s, 1)
        if record.phase is Phase.COMPLETED:
            fields["pending"] = await self.participant.pending_peers()
            fields["allSwitched"] = record.role is Role.TARGET and not fields["pending"]
            if fields["allSwitched"]:
                fields["settings"] = {"metadata.url": record.target_url}
        participants = await read_participants(self._store.real)  # last, so that it agrees with `allSwitched`
        fields["participants"] = {name: str(one.state) for name, one in participants.items()}
        since = self.participant.blocked_since
        fields["blockedSeconds"] = self.participant.blocked_s if since is None else self._clock.monotonic() - since
        fields["isBlocked"] = since is not None
        fields["blockedSinceMs"] = (
            None if since is None else self._clock.now_ms() - int(fields["blockedSeconds"] * 1000)
        )
        fields["waitingKeys"] = 0 if self._coordinator is None else self._coordinator.changed
        return fields

    async def abort(self) -> None:
        """Returns once the attempt has failed. Any broker can do it. Raises NoMigration if it has completed."""
        source, reason = self._store.real, "aborted by an administrator"
        run, until = "", self._clock.monotonic() + ABORT_S
        while self._clock.monotonic() < until:
            await source.sync()
            found = await source.get(MIGRATION)
            record = None if found is None else MigrationRecord.from_bytes(found.value)
            if found is not None and record is not None and record.run == run and not record.is_running:
                if record.phase is Phase.FAILED:
                    return
                raise NoMigration("the migration has completed")
            if found is None or record is None or not record.is_running_here:
                raise NoMigration("no migration of the metadata is running")
            run = record.run
            if self._coordinator is not None and self._coordinator.record.run == run:
                self._coordinator.stop(reason)
                await self._clock.sleep(ABORT_POLL_S)
                continue
            try:
                failed = record.failed(reason, self._clock.now_ms())
                await source.put(MIGRATION, failed.to_bytes(), expected=found.version)
                return
            except (VersionMismatch, OutcomeUnknown):
                continue
        raise NotReady("the migration was aborted and has not ended yet: look at its status")

    async def verify(self) -> dict[str, Any]:
        """Compare the tree of the store in use with that of the other side of the last migration."""
        here = self._store.real
        record = await read_record(here)
        other_url = "" if record is None else record.target_url if record.role is Role.SOURCE else record.source_url
        if record is None or not other_url or record.phase is Phase.FAILED:
            raise NoMigration("there is no migration of the metadata to verify")
        other = await self._opened(other_url)
        try:
            pair = (here, other) if record.role is Role.SOURCE else (other, here)
            return asdict(await compare_trees(*pair, Pace(self._clock, None)))
        finally:
            await other.close()


async def _check_apart(source: MetadataStore, target: MetadataStore, tag: MigrationRecord) -> None:
    """Write the tag, and raise BadTarget if the source shows it: the target lies below the source."""
    watch = source.watch("/")
    try:
        await target.put(MIGRATION, tag.to_bytes(), expected=ABSENT)
        await source.put(PROGRESS, tag.to_bytes(), expected=ANY)
        async with asyncio.timeout(OPEN_S):
            async for change in watch:
                if change.key.endswith(MIGRATION) and change.key != MIGRATION:
                    found = await source.get(change.key)
                    if found is not None and found.value == tag.to_bytes():
                        await target.delete(MIGRATION, expected=ANY)
                        raise BadTarget(
                            f"the target lies inside the store in use, below {change.key[: -len(MIGRATION)]}"
                        )
                if change.key == PROGRESS or change.kind is ChangeKind.INVALIDATED:
                    return
    except TimeoutError as error:
        raise BadTarget("the watch of the store in use did not deliver in time") from error
    finally:
        watch.close()
