"""The embedded ledger store: one commit log per broker, ledger files written behind it, entries cached at the tail.

This module wires the parts and holds no rule of its own: `group` plans, `committer` confirms, `settler` writes behind
and checkpoints, `reads` finds entries in memory or in files, `tailcache` bounds memory, `shortage` lives with a full
device, `loggedledgers` knows what the log holds, `recovery` opens after a crash. It lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from anabranch.runtime.blocking import Blocking
from anabranch.runtime.clock import Clock
from anabranch.runtime.disk import Disk, Lock
from anabranch.storage import volume
from anabranch.storage.interface import Fenced, LedgerWriter, Payload, StorageError
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.ledger.ledger_reader import LedgerReader
from anabranch.storage.ledger.sparse_index import SparseIndex
from anabranch.storage.ledger_reads import LedgerReads
from anabranch.storage.log.append_gate import Gate, is_full, translated
from anabranch.storage.log.checkpointer import Checkpointer
from anabranch.storage.log.commit_log import CommitLog
from anabranch.storage.log.committer import Committer
from anabranch.storage.log.disk_full import Shortage
from anabranch.storage.log.fence import Fence, log_dir
from anabranch.storage.log.group_commit import GroupCommit, Plan
from anabranch.storage.log.logged_ledgers import LoggedLedgers
from anabranch.storage.log.open_ledger import OpenLedger
from anabranch.storage.log.peer_recovery import recover_peer, report, seize_log
from anabranch.storage.log.recovery import Recovery, take_over
from anabranch.storage.log.released_ledgers import Released
from anabranch.storage.log.reserve import Reserve
from anabranch.storage.log.write_behind import WriteBehind
from anabranch.storage.settings import StorageSettings
from anabranch.storage.tail_cache import TailCache

log = logging.getLogger(__name__)

BUSY_AGAIN_S = 0.05


def _ignored(_: int) -> None:
    """Nobody counts them."""


def _nothing() -> None:
    """Nobody listens."""


def _always() -> bool:
    return True


def _no_pause(_: str) -> None:
    """Steps are named for tests that stop a process there; otherwise nothing happens."""


class _Told:
    """What a worker tells when it is done, for one who waits (and may have gone)."""

    def __init__(self) -> None:
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(self, error: BaseException | None) -> None:
        if self.told.done():
            return
        if error is None:
            self.told.set_result(None)
        else:
            self.told.set_exception(translated(error))


@dataclass(frozen=True, slots=True)
class StorageStats:
    volume_id: str
    state: str  # "open" or the code of the error that appends get
    groups: int
    entries: int
    checkpoints: int
    log_number: int
    log_bytes: int
    unwritten_bytes: int
    cached_bytes: int
    ledgers_in_memory: int


class EmbeddedLedgerStore(LedgerReads):
    """`async with EmbeddedLedgerStore(…) as store`. Implements `port.LedgerStore`."""

    def __init__(
        self,
        settings: StorageSettings,
        disk: Disk,
        blocking: Blocking,
        clock: Clock,
        publish_time_of: Callable[[Payload], int],
        *,
        busy_seconds: float = 0.0,
        pause_at: Callable[[str], None] = _no_pause,
    ) -> None:
        """`busy_seconds`: how long to wait for another process to let go of our log; a peer may be recovering it."""
        self.on_group_end: Callable[[], None] = _nothing
        self.on_batches: Callable[[int], None] = _ignored  # how many a group had that became durable
        self.on_fenced: Callable[[], None] = _nothing
        self.on_resumed: Callable[[], None] = _nothing  # a full device has room again
        # In a cluster: while our session can still be valid. Raises Fenced once there is no hope.
        self.may_confirm: Callable[[], bool] = _always
        self.volume_id = ""
        self.highest_id = 0  # of the ledgers found on the volume when it was opened
        self.recovery: Recovery | None = None
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._pause_at = pause_at
        self._root = str(settings.dir)
        self._gate = Gate()
        self._files = LedgerFiles(disk, self._root, settings.open_files_max)
        reader = LedgerReader(self._files, settings.index_step_bytes, settings.index_step_entries, publish_time_of)
        super().__init__(reader, blocking, publish_time_of)
        self._cache = TailCache(settings.cache_bytes, self._release)
        self._behind = WriteBehind(
            settings.write_behind_bytes, settings.write_behind_bytes_max, settings.write_behind_ms / 1000
        )
        self._group = GroupCommit(settings.log_bytes_max, settings.direct_bytes_min)
        self._shortage = Shortage(
            self._gate,
            Reserve(disk, volume.broker_dir(self._root, settings.broker_id), settings.reserve_bytes),
            clock,
            settings.probe_ms / 1000,
            on_room=self._has_room,
            on_over=self._resumed,
            on_failed=self._failed,
        )
        self._is_fenced = False
        self._logged = LoggedLedgers()

    # opening and closing ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        lock, fence = await self._open_patiently()
        settings = self._settings
        self._lock, self._fence = lock, fence
        directory = log_dir(volume.broker_dir(self._root, settings.broker_id), fence.generation)
        self._released = Released(self._disk, directory)
        self._log = CommitLog(
            self._disk,
            directory,
            self._files,
            bytes_max=settings.log_bytes_max,
            is_synced=settings.is_synced,
            pause_at=self._pause_at,
        )
        self._log_worker = self._blocking.worker("storage-log")
        self._settle_worker = self._shortage.worker = self._blocking.worker("storage-settle")
        self._settler = Checkpointer(
            clock=self._clock,
            worker=self._settle_worker,
            behind=self._behind,
            files=self._files,
            commit_log=self._log,
            fence=fence,
            on_written=self._written,
            on_settled=self._settled,
            on_retired=self._logged.retired,
            on_failed=self._failed,
            pause_at=self._pause_at,
        )
        self._committer = Committer(
            clock=self._clock,
            worker=self._log_worker,
            group=self._group,
            behind=self._behind,
            commit_log=self._log,
            fence=fence,
            gate=self._gate,
            linger=settings.linger_ms / 1000,
            ledgers=self._ledgers,
            on_landed=self._landed,
            on_told=self._told,
            on_failed=self._failed,
            pause_at=self._pause_at,
            may_confirm=self._may_confirm,
        )
        self._shortage.probe_soon()
        return self

    async def _open_patiently(self) -> tuple[Lock, Fence]:
        until = self._clock.monotonic() + self._busy_seconds
        while True:
            try:
                return await self._blocking.run(self._open)
            except volume.VolumeBusy:
                if self._clock.monotonic() >= until:
                    raise
            await self._clock.sleep(BUSY_AGAIN_S)

    def _open(self) -> tuple[Lock, Fence]:
        try:
            self.volume_id = volume.open_volume(self._disk, self._root)
            lock = volume.lock_broker(self._disk, self._root, self._settings.broker_id)
            try:
                directory = volume.broker_dir(self._root, self._settings.broker_id)
                self._shortage.reserve.release()  # recovery may need the room
                fence, self.recovery = take_over(self._disk, directory, self._files, self._pause_at)
                self.highest_id = self._files.highest_id()
                self._shortage.fill_reserve()
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise translated(error) from error
        report(self.recovery, self._settings.broker_id)
        return lock, fence

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let queued appends become durable, bring everything into the ledger files, and leave no log behind."""
        while not self._committer.is_idle and self._gate.refusal is None:
            await self._turn()
        self._gate.shut(StorageError("the store is closed"))
        self._committer.fail_gathered(self._gate.refuse())
        while self._group.in_flight is not None:
            await self._turn()
        self._shortage.close()
        self._settler.checkpoint(self._group.log_number)
        self._settler.retry()
        while self._settler.is_busy:
            await self._turn()
        self._settler.stop()
        is_clean = self._settler.is_idle and self._fence.is_held()
        await self._log_worker.close()
        await self._settle_worker.close()
        await self._blocking.run(self._shut, is_clean)

    async def _turn(self) -> None:
        await self._clock.sleep(0.001)

    def _shut(self, is_clean: bool) -> None:
        if is_clean:
            self._log.remove()
        else:
            self._log.close()
        self._files.close()
        self._fence.close()
        self._lock.release()

    # writing ------------------------------------------------------------------------------------------------------

    def _may_confirm(self) -> bool:
        return self.may_confirm()  # whoever it is by now

    @property
    def generation(self) -> int:
        """Of this process among all that ever ran as this broker: grows with every start."""
        return self._fence.generation

    async def recover_peer(self, broker_id: str, incarnation: int) -> Recovery:
        """Fence another broker of the volume and bring its log into the ledger files; BeingRecovered: it does so."""
        try:
            found = await self._blocking.run(recover_peer, self._disk, self._root, broker_id, incarnation)
        except OSError as error:
            raise translated(error) from error
        report(found, broker_id)
        return found

    async def settle(self) -> None:
        """What is durable by now is in the ledger files when this returns: another broker may read all of it there, and
        delete what it does not need: no recovery of our log brings it back."""
        done = _Told()
        self._settler.settle(done.tell)
        await done.told
        closed = self._logged.release(self._is_closed)
        if closed:
            await self._on_settle_thread(lambda: self._list_released(closed))

    def _is_closed(self, ledger_id: int) -> bool:
        ledger = self._ledgers.get(ledger_id)
        return ledger is None or ledger.is_closed

    def _list_released(self, ledger_ids: list[int]) -> None:
        self._files.sync_names(ledger_ids)
        self._released.add(ledger_ids)

    def check_fence(self) -> None:
        """Notice that another process has taken over though nothing is written here."""
        if not self._is_fenced and not self._fence.is_held():
            self._failed(Fenced("another process has taken over this broker's log"))

    def check_writable(self) -> None:
        """Raises what an append would be refused with now: StorageFull, Fenced, StorageError."""
        if self._gate.refusal is not None:
            raise self._gate.refuse()

    def create(self, ledger_id: int) -> LedgerWriter:
        assert ledger_id not in self._ledgers, f"ledger {ledger_id} is written already"
        if self._gate.refusal is not None:
            self._shortage.probe_soon()
            raise self._gate.refuse()
        index = SparseIndex(self._settings.index_step_bytes, self._settings.index_step_entries)
        ledger = OpenLedger(ledger_id, self._gate, self._committer.gather, index, self._publish_time_of)
        self._ledgers[ledger_id] = ledger
        return ledger

    def _landed(self, plan: Plan) -> None:
        """A group is durable: its entries become readable and wait for their files."""
        now, last_log = self._clock.monotonic(), self._logged.last_log
        for batch in plan.logged:
            ledger = self._ledgers[batch.ledger_id]
            self._cache.add(ledger, batch.last_entry_id, len(batch.entries), batch.size)
            ledger.landed(batch)
            self._behind.add(batch, now)
            last_log[batch.ledger_id] = plan.log_number
        for direct in plan.direct:
            batch = direct.batch
            ledger = self._ledgers[batch.ledger_id]
            self._cache.add(ledger, batch.last_entry_id, len(batch.entries), batch.size)
            ledger.landed(batch)
            ledger.written_entry_id = batch.last_entry_id
            self._cache.written(ledger)
        if plan.is_checkpoint:
            self._settler.checkpoint(plan.log_number - 1)

    def _told(self, plan: Plan) -> None:
        self.on_group_end()
        self._cache.trim()
        self.on_batches(len(plan.batches))
        if self._group.asks_for_spare():
            self._settler.prepare_log(self._group.spare_ready)
        self._settler.pump()

    def _written(self, ledger_id: int, entry_id: int) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            ledger.written_entry_id = max(ledger.written_entry_id, entry_id)
            self._cache.written(ledger)
            self._release(ledger)

    def _settled(self) -> None:
        self._cache.trim()
        self._shortage.settled()
        self._committer.schedule()

    def _release(self, ledger: OpenLedger) -> None:
        """A sealed ledger that is in its file and out of the cache needs no object any more."""
        if ledger.is_spent and not self._behind.holds(ledger.ledger_id):
            self._ledgers.pop(ledger.ledger_id, None)

    # trouble ------------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """A group or a write-behind failed; the gate may know already."""
        error = self._fence.reason(error)
        reason = translated(error)
        was_fenced = self._is_fenced
        self._is_fenced = isinstance(error, Fenced)
        if is_full(error):
            self._shortage.begin(reason)
        else:
            self._shortage.give_up()
            self._gate.shut(reason)
            log.error("storage stopped", extra={"reason": str(error)})
        if self._group.in_flight is None:
            self._committer.fail_gathered(reason)
        if self._is_fenced and not was_fenced:
            self.on_fenced()
        self.on_group_end()

    def _has_room(self) -> bool:
        """Is nothing waiting for it? Otherwise that is written first."""
        if self._behind.is_empty:
            return True
        self._settler.retry()
        return False

    def _resumed(self) -> None:
        self._settler.unstick()
        self._gate.reopen()
        self.on_resumed()

    # the rest -----------------------------------------------------------------------------------------------------

    async def delete(self, ledger_id: int) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            await ledger.seal()
            self._ledgers.pop(ledger_id, None)
            ledger.is_deleted = True
            ledger.cache.clear()
            self._cache.written(ledger)
        self._settler.forget(ledger_id)
        self._reader.forget(ledger_id)
        is_logged = self._logged.forget(ledger_id)
        await self._on_settle_thread(lambda: self._drop(ledger_id, is_logged))

    def _drop(self, ledger_id: int, is_logged: bool) -> None:
        """Behind a write of the same ledger that was on its way."""
        if is_logged:
            try:
                self._released.add([ledger_id])
            except OSError as error:  # full, or fenced: the file goes all the same
                extra = {"ledger": ledger_id, "reason": str(error)}
                log.warning("recovering this log would bring a deleted ledger back", extra=extra)
        self._files.delete(ledger_id)

    async def _on_settle_thread(self, job: Callable[[], None]) -> None:
        done = _Told()
        self._settle_worker.submit(job, lambda _, error: done.tell(error))
        await done.told

    async def take_over(self, broker_id: str) -> Recovery:
        """Fence off another broker of this volume (dead or stopped) and bring its log into the ledger files."""
        if broker_id == self._settings.broker_id:
            raise StorageError(f"broker {broker_id!r} is this one")
        try:
            recovery = await self._blocking.run(
                seize_log, self._disk, self._settings.dir, broker_id, self._files, self._pause_at
            )
        except OSError as error:
            raise translated(error) from error
        report(recovery, broker_id)
        for ledger_id in recovery.ledgers:
            self._reader.forget(ledger_id)
        return recovery

    def stats(self) -> StorageStats:
        refusal = self._gate.refusal
        return StorageStats(
            volume_id=self.volume_id,
            state=refusal.code if refusal else "open",
            groups=self._committer.groups,
            entries=self._committer.entries,
            checkpoints=self._settler.checkpoints,
            log_number=self._group.log_number,
            log_bytes=self._group.log_place,
            unwritten_bytes=self._behind.bytes,
            cached_bytes=self._cache.bytes,
            ledgers_in_memory=len(self._ledgers),
        )
