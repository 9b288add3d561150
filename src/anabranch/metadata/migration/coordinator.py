"""Carries one attempt out: performs what the coordinator's machine decides.

The coordinator holds an ephemeral key in the source. When it ends, every participant may write FAILED. Another one in
the target keeps other attempts from writing there; it is checked before every page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, assert_never

from anabranch.metadata.interface import (
    ANY,
    MetadataStore,
    OutcomeUnknown,
    Session,
    SessionEvent,
    StoreUnavailable,
    VersionMismatch,
    Watch,
)
from anabranch.metadata.migration.coordinator_state import (
    Began,
    CoordinatorMachine,
    Copied,
    CopyChanges,
    CopyLastChanges,
    CopyTree,
    Effect,
    End,
    Event,
    LastChangesCopied,
    MarkTarget,
    ParticipantsSeen,
    Raced,
    Save,
    Saved,
    SaveFailed,
    Stopped,
    Verified,
    VerifyTree,
    WaitEnded,
    WatchParticipants,
)
from anabranch.metadata.migration.copy import ChangedKeys, TreeCopy, purge
from anabranch.metadata.migration.pacing import Pace
from anabranch.metadata.migration.participant import mark_complete, read_participants
from anabranch.metadata.migration.record import (
    MIGRATION,
    MOVED,
    MigrationFailed,
    MigrationRecord,
    Phase,
    Role,
    State,
    SubPhase,
)
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

WINDOW_S = 10.0
"""Longest time that an attempt blocks writers before it gives up."""
POLL_S = 0.02
SAVE_S = 10.0
CLOSE_S = 5.0
LEASE_LOST = "the coordinator lost its lease"
TARGET_LEASE_LOST = "the coordinator lost its session in the target"


@dataclass(frozen=True, slots=True)
class Leases:
    """What the coordinator holds: the right to decide in the source, and to write in the target."""

    source: Session
    target: Session
    former: bytes | None = None
    """The record that the target had before, if it had been a source; it is left there again after a failure."""

    def listen(self, stop: Callable[[str], None]) -> Callable[[], None]:
        def on_source(event: SessionEvent) -> None:
            if event is SessionEvent.LOST:
                stop(LEASE_LOST)

        def on_target(event: SessionEvent) -> None:
            if event is SessionEvent.LOST:
                stop(TARGET_LEASE_LOST)

        ends = self.source.listen(on_source), self.target.listen(on_target)

        def end() -> None:
            for one in ends:
                one()

        return end

    def check(self, now: float) -> None:
        if self.source.is_lost or now >= self.source.valid_until:
            raise MigrationFailed(LEASE_LOST)
        self.check_target(now)

    def check_target(self, now: float) -> None:
        if self.target.is_lost or now >= self.target.valid_until:
            raise MigrationFailed(TARGET_LEASE_LOST)

    async def close_source(self) -> None:
        """The attempt is decided: the next one may begin, while the target of this one is purged."""
        await _close(self.source)

    async def close(self) -> None:
        await asyncio.gather(_close(self.source), _close(self.target))


async def _close(session: Session) -> None:
    """A store that does not answer ends its session itself."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await session.close()
    except (Error, TimeoutError) as error:
        log.info("a lease of the coordinator will expire", extra={"reason": str(error) or "no answer"})


class Coordinator:
    def __init__(
        self,
        source: MetadataStore,
        target: MetadataStore,
        record: MigrationRecord,
        version: int,
        leases: Leases,
        pace: Pace,
        clock: Clock,
        window_s: float = WINDOW_S,
    ) -> None:
        """`record` with `version` is saved in the source, the leases are held, the target is empty and tagged."""
        self._source, self._target, self._clock, self._window_s = source, target, clock, window_s
        self.record, self._version = record, version
        self.leases = leases
        self._pace = pace
        self._machine = CoordinatorMachine()
        self._changed: ChangedKeys | None = None
        self._copy: TreeCopy | None = None
        self._stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._window_until = float("inf")

    @property
    def changed(self) -> int:
        """Keys that wait to be copied again."""
        return 0 if self._changed is None else len(self._changed)

    def progress(self) -> MigrationRecord:
        return self.record if self._copy is None else replace(self.record, counts=self._copy.counts)

    def stop(self, reason: str) -> None:
        """End the attempt unless it is decided."""
        if not self._stop.done():
            self._stop.set_result(reason)

    async def run(self) -> str:
        """Returns the error; empty after COMPLETED."""
        unlisten = self.leases.listen(self.stop)
        following = TaskOwner("migration record")
        following.spawn(self._follow_record(self._source.watch(MIGRATION)), "watch")
        self._changed = ChangedKeys(self._source.watch("/"))
        self._copy = TreeCopy(self._source, self._target, self._changed, self._pace, self._check_held)
        try:
            effects = self._machine.handle(Began())
            while True:
                for effect in effects:
                    if isinstance(effect, End):
                        await self._end(effect.error)
                        return effect.error
                    event = await self._perform(effect)
                effects = [] if event is None else self._machine.handle(event)
                if not effects:
                    effects = self._machine.handle(await self._wait_participants())
        finally:
            unlisten()
            await following.close()
            await self._changed.close()

    async def _follow_record(self, watch: Watch) -> None:
        """Another process ends the attempt by writing FAILED. Without this the coordinator would learn it when it saves
        its next phase, which a slow copy reaches after minutes, and its leases would keep off the next attempt."""
        try:
            async for _ in watch:
                try:
                    found = await self._source.get(MIGRATION)
                except StoreUnavailable:
                    continue  # the next change, or the next save
                record = None if found is None else MigrationRecord.from_bytes(found.value)
                if record is None or record.run != self.record.run or record.phase is Phase.FAILED:
                    self.stop("the record was deleted" if record is None else record.error or "another attempt")
        finally:
            watch.close()

    def _check_held(self) -> None:
        self.leases.check(self._clock.monotonic())

    def _check_target_held(self) -> None:
        self.leases.check_target(self._clock.monotonic())

    async def _perform(self, effect: Effect) -> Event | None:
        assert self._copy is not None
        assert self._changed is not None
        match effect:
            case CopyTree(is_repeated):
                return await self._or_stop(self._copy_tree(is_repeated))
            case CopyChanges():
                return await self._or_stop(self._copy_changes())
            case VerifyTree():
                return await self._or_stop(self._verify())
            case Save(phase, sub_phase):
                return await self._save(phase, sub_phase)
            case SaveFailed(reason):
                await self._save_failed(reason)
                return None
            case WatchParticipants():
                self._window_until = self._clock.monotonic() + self._window_s
                return await self._wait_participants()
            case CopyLastChanges(is_repeated):
                return await self._or_stop(self._copy_last(is_repeated))
            case MarkTarget():
                await self._mark()
                return None
            case End():
                return None
            case _:
                assert_never(effect)

    async def _or_stop(self, work: Coroutine[None, None, Event]) -> Event:
        """The answer of a step; Stopped if it fails or the attempt is stopped; WaitEnded if the window is over."""
        task = asyncio.ensure_future(work)
        waited: tuple[asyncio.Future[Any], ...] = (task, self._stop)
        left_s = self._window_until - self._clock.monotonic()
        timeout = None if left_s == float("inf") else max(left_s, 0.0)
        try:
            await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.done():
                return Stopped(self._stop.result())
            if not task.done():
                return WaitEnded()
            return task.result()
        except (Error, OSError) as error:
            return Stopped(str(error) or type(error).__name__)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _copy_tree(self, is_repeated: bool) -> Event:
        assert self._copy is not None
        assert self._changed is not None
        if is_repeated:
            await purge(self._target, self._check_held, keeps_record=True)
            self._changed.restart()
        await self._source.sync()
        await self._copy.copy_tree()
        return Copied(len(self._changed), self._changed.is_lost)

    async def _copy_changes(self) -> Event:
        assert self._copy is not None
        assert self._changed is not None
        await self._copy.copy_changes()
        return Copied(len(self._changed), self._changed.is_lost)

    async def _verify(self) -> Event:
        assert self._copy is not None
        now_ms = self._clock.now_ms()  # for display only: no other process acts on this step
        self.record = self.record.at(self.record.phase, SubPhase.VERIFY_TREE, now_ms)
        await self._copy.verify_tree()
        return Verified()

    async def _wait_participants(self) -> Event:
        async def wait() -> Event:
            await self._source.sync()
            states = await read_participants(self._source)
            ready = {name: one.run == self.record.run and one.state is State.READY for name, one in states.items()}
            ready.setdefault(self.record.coordinator, False)  # it is registered unless its session was lost
            if not all(ready.values()):
                await self._clock.sleep(POLL_S)
            return ParticipantsSeen(ready)

        return await self._or_stop(wait())

    async def _copy_last(self, is_repeated: bool) -> Event:
        assert self._copy is not None
        assert self._changed is not None
        if is_repeated:
            await self._clock.sleep(POLL_S)
        await self._source.sync()
        await self._changed.wait_barrier(self._source, self._window_s)
        while len(self._changed):
            await self._copy.copy_changes(is_last=True)
        await self._copy.copy_sequences()
        await self._check_tag()
        return LastChangesCopied(tuple(await self._copy.missing_ephemerals()))

    async def _check_tag(self) -> None:
        """The target still belongs to this attempt."""
        found = await self._target.get(MIGRATION)
        tag = None if found is None else MigrationRecord.from_bytes(found.value)
        if tag is None or tag.role is not Role.TARGET or tag.run != self.record.run:
            raise MigrationFailed("another migration has taken the target")

    async def _save(self, phase: Phase, sub_phase: SubPhase) -> Event:
        """Not interrupted by `stop`: a write whose outcome is unknown is read until it is known."""
        if self._stop.done():
            return Stopped(self._stop.result())
        new = self.progress().at(phase, sub_phase, self._clock.now_ms())
        until = self._clock.monotonic() + SAVE_S
        while True:
            try:
                self._version = await self._source.put(MIGRATION, new.to_bytes(), expected=self._version)
                self.record = new
                return Saved()
            except (VersionMismatch, StoreUnavailable) as error:
                reason = error.reason
            except Error as error:
                return Stopped(error.reason)
            try:
                await self._source.sync()
                found = await self._source.get(MIGRATION)
            except Error as error:
                if self._clock.monotonic() >= until:
                    return Stopped(f"the source does not answer: {error.reason}")
                await self._clock.sleep(POLL_S)
                continue
            if found is not None and found.value == new.to_bytes():
                self._version, self.record = found.version, new
                return Saved()
            if found is None or found.version != self._version:
                record = None if found is None else MigrationRecord.from_bytes(found.value)
                return Raced("the record was deleted" if record is None else record.error or str(record.phase))
            if self._clock.monotonic() >= until:
                return Stopped(f"the state was not saved: {reason}")
            await self._clock.sleep(POLL_S)

    async def _save_failed(self, reason: str) -> None:
        """If the source does not answer, the participants write it when the lease ends."""
        try:
            for _ in range(10):
                found = await self._source.get(MIGRATION)
                record = None if found is None else MigrationRecord.from_bytes(found.value)
                if found is None or record is None or record.run != self.record.run or not record.is_running:
                    return
                failed = replace(self.progress(), phase=record.phase).failed(reason, self._clock.now_ms())
                try:
                    await self._source.put(MIGRATION, failed.to_bytes(), expected=found.version)
                except (VersionMismatch, OutcomeUnknown):
                    await self._source.sync()
        except Error as error:
            log.warning("metadata migration failed, and the source does not answer", extra={"reason": str(error)})

    async def _mark(self) -> None:
        try:
            await mark_complete(self._target, self.record, self._clock.now_ms())
        except Error as error:  # the participants do it too
            log.warning("the target was not marked complete yet", extra={"reason": str(error)})

    async def _end(self, error: str) -> None:
        """The target of a failed attempt is purged, unless the record does not prove that it failed."""
        if not error:
            log.info("metadata migration completed", extra={"records": self.progress().counts.records})
            return
        log.warning("metadata migration failed; the source is unchanged", extra={"reason": error})
        try:
            found = await self._source.get(MIGRATION)
            record = None if found is None else MigrationRecord.from_bytes(found.value)
            if record is not None and record.run == self.record.run and record.phase is Phase.FAILED:
                self.record = record
                await self.leases.close_source()
                await self._leave_target()
        except Error as failure:
            log.warning("the target of the failed migration is not purged", extra={"reason": str(failure)})

    async def _leave_target(self) -> None:
        """The target is as it was: empty, or with the record that names the store that its metadata moved to."""
        await purge(self._target, self._check_target_held, keeps_record=True)
        await self._check_tag()
        self._check_target_held()
        if self.leases.former is None:
            await self._target.bulk_delete([MIGRATION])
            await self._target.bulk_delete([MOVED])  # last: it stands for the other
        else:
            await self._target.put(MIGRATION, self.leases.former, expected=ANY)
