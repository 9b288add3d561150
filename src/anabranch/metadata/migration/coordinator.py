"""Carries one attempt out: performs what the coordinator's machine decides.

The coordinator holds an ephemeral key in the source. When it ends, every participant may write FAILED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, assert_never

from anabranch.metadata.interface import MetadataStore, OutcomeUnknown, Session, SessionEvent, VersionMismatch
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
from anabranch.metadata.migration.record import MIGRATION, MigrationRecord, Phase, State, SubPhase
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

WINDOW_S = 10.0
"""Longest time that an attempt blocks writers before it gives up."""
POLL_S = 0.02


class Coordinator:
    def __init__(
        self,
        source: MetadataStore,
        target: MetadataStore,
        record: MigrationRecord,
        version: int,
        lease: Session,
        pace: Pace,
        clock: Clock,
        window_s: float = WINDOW_S,
    ) -> None:
        """`record` with `version` is saved in the source, `lease` is held, the target is empty and tagged."""
        self._source, self._target, self._clock, self._window_s = source, target, clock, window_s
        self.record, self._version = record, version
        self._lease = lease
        self._pace = pace
        self._machine = CoordinatorMachine()
        self._changed: ChangedKeys | None = None
        self._copy: TreeCopy | None = None
        self._stop: asyncio.Future[str] | None = None
        self._window_until = float("inf")

    @property
    def changed(self) -> int:
        """Keys that wait to be copied again."""
        return 0 if self._changed is None else len(self._changed)

    def progress(self) -> MigrationRecord:
        return self.record if self._copy is None else replace(self.record, counts=self._copy.counts)

    async def release(self) -> None:
        """End the lease. An unreachable source ends it itself."""
        try:
            await self._lease.close()
        except Error as error:
            log.info("the lease of the coordinator will expire", extra={"reason": str(error)})

    def stop(self, reason: str) -> None:
        """End the attempt unless it is decided."""
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(reason)

    async def run(self) -> str:
        """Returns the error; empty after COMPLETED."""
        self._stop = asyncio.get_running_loop().create_future()
        unlisten = self._lease.listen(self._on_lease)
        self._changed = ChangedKeys(self._source.watch("/"))
        self._copy = TreeCopy(self._source, self._target, self._changed, self._pace)
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
            await self._changed.close()

    def _on_lease(self, event: SessionEvent) -> None:
        if event is SessionEvent.LOST:
            self.stop("the coordinator lost its lease")

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
        assert self._stop is not None
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
            await self._purge_copied()
            self._changed.restart()
        await self._source.sync()
        await self._copy.copy_tree()
        return Copied(len(self._changed), self._changed.is_lost)

    async def _purge_copied(self) -> None:
        """All but the tag of this attempt."""
        tag = await self._target.get(MIGRATION)
        await purge(self._target)
        if tag is not None:
            await self._target.bulk_write([(MIGRATION, tag)], preserve=False)

    async def _copy_changes(self) -> Event:
        assert self._copy is not None
        assert self._changed is not None
        await self._copy.copy_changes()
        return Copied(len(self._changed), self._changed.is_lost)

    async def _verify(self) -> Event:
        assert self._copy is not None
        await self._copy.verify_tree()
        return Verified()

    async def _wait_participants(self) -> Event:
        async def wait() -> Event:
            await self._source.sync()
            states = await read_participants(self._source)
            ready = {name: one.run == self.record.run and one.state is State.READY for name, one in states.items()}
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
        return LastChangesCopied(tuple(await self._copy.missing_ephemerals()))

    async def _save(self, phase: Phase, sub_phase: SubPhase) -> Event:
        """Not interrupted by `stop`: a write whose outcome is unknown is read until it is known."""
        assert self._stop is not None
        if self._stop.done():
            return Stopped(self._stop.result())
        new = self.progress().at(phase, sub_phase, self._clock.now_ms())
        while True:
            try:
                self._version = await self._source.put(MIGRATION, new.to_bytes(), expected=self._version)
                self.record = new
                return Saved()
            except (VersionMismatch, OutcomeUnknown):
                await self._source.sync()
                found = await self._source.get(MIGRATION)
            except Error as error:
                return Stopped(str(error))
            if found is not None and found.value == new.to_bytes():
                self._version, self.record = found.version, new
                return Saved()
            if found is None or found.version != self._version:
                record = None if found is None else MigrationRecord.from_bytes(found.value)
                return Raced("the record was deleted" if record is None else record.error or str(record.phase))

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
                await purge(self._target)
        except Error as failure:
            log.warning("the target of the failed migration is not purged", extra={"reason": str(failure)})
