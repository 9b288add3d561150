"""The write path of the embedded store: group commit, write-behind, checkpoints, and what happens between them.

    OpenLedger.append -> Committer (log, one fdatasync per group) -> on_durable: tail cache, write-behind queue
                                                                  -> sinks, then StoreListener.on_group_end
    write-behind queue -> Checkpointer (ledger files) -> on_written: entries may leave the cache
                                                      -> checkpoint: old log files are deleted
    no room on the device -> DiskFullHandler (probes) -> on_room: appends are accepted again

`Committer`, `Checkpointer` and `DiskFullHandler` report to this class, which is the listener of all three. It runs on
the event loop; the disk is touched by two worker threads, one for the log and one for everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.runtime.blocking import Blocking
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.storage.interface import Fenced, IgnoringListener, StorageError, StoreListener
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.log.append_gate import AppendGate, is_full, translated
from anabranch.storage.log.checkpointer import Checkpointer
from anabranch.storage.log.commit_log import CommitLog
from anabranch.storage.log.committer import Committer
from anabranch.storage.log.disk_full import DiskFullHandler, DiskReserve
from anabranch.storage.log.fence import Fence
from anabranch.storage.log.group_commit import GroupCommit, GroupPlan
from anabranch.storage.log.open_ledger import OpenLedger
from anabranch.storage.log.released_ledgers import LoggedLedgers, ReleasedLedgers
from anabranch.storage.log.write_behind import WriteBehind
from anabranch.storage.settings import StorageSettings
from anabranch.storage.tail_cache import TailCache

log = get_logger(__name__)


class _Completion:
    """Result of a job on a worker thread, for a caller that waits for it and may be cancelled meanwhile."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(translated(error))


class WritePipeline:
    """Implements `CommitListener`, `CheckpointListener` and `DiskFullListener`."""

    def __init__(
        self,
        settings: StorageSettings,
        *,
        clock: Clock,
        blocking: Blocking,
        files: LedgerFiles,
        commit_log: CommitLog,
        released: ReleasedLedgers,
        fence: Fence,
        gate: AppendGate,
        reserve: DiskReserve,
        ledgers: dict[int, OpenLedger],
        pause_at: Callable[[str], None],
    ) -> None:
        """`ledgers`: open ledgers, and sealed ones with entries in memory; this class removes those it has finished."""
        self._clock = clock
        self._files = files
        self._released = released
        self._fence = fence
        self._gate = gate
        self._ledgers = ledgers
        self._listener: StoreListener = IgnoringListener()
        self._is_fenced = False
        self._logged = LoggedLedgers()
        self._log_worker = blocking.worker("storage-log")
        self._files_worker = blocking.worker("storage-files")
        self.cache = TailCache(settings.cache_bytes, self._release)
        self.write_behind = WriteBehind(
            settings.write_behind_bytes, settings.write_behind_bytes_max, settings.write_behind_ms / 1000
        )
        self.group = GroupCommit(settings.log_bytes_max, settings.direct_bytes_min)
        self.disk_full = DiskFullHandler(
            gate, reserve, clock, settings.probe_ms / 1000, worker=self._files_worker, listener=self
        )
        self.checkpointer = Checkpointer(
            clock=clock,
            worker=self._files_worker,
            write_behind=self.write_behind,
            files=files,
            commit_log=commit_log,
            fence=fence,
            listener=self,
            pause_at=pause_at,
        )
        self.committer = Committer(
            clock=clock,
            worker=self._log_worker,
            group=self.group,
            write_behind=self.write_behind,
            commit_log=commit_log,
            fence=fence,
            gate=gate,
            linger=settings.linger_ms / 1000,
            ledgers=ledgers,
            listener=self,
            pause_at=pause_at,
        )
        self.disk_full.probe_soon()

    def start(self, listener: StoreListener) -> None:
        self._listener = listener

    async def drain(self) -> bool:
        """Make queued appends durable, write everything to the ledger files, stop the workers.

        True if the log is no longer needed: all of it is in the ledger files, and no other process owns it.
        """
        while not self.committer.is_idle and self._gate.refusal is None:
            await self._turn()
        self._gate.shut(StorageError("the store is closed"))
        self.committer.fail_gathered(self._gate.refuse())
        while self.group.in_flight is not None:
            await self._turn()
        self.disk_full.close()
        self.checkpointer.checkpoint(self.group.log_number)
        self.checkpointer.retry()
        while self.checkpointer.is_busy:
            await self._turn()
        self.checkpointer.stop()
        is_clean = self.checkpointer.is_idle and self._fence.is_held()
        await self._log_worker.close()
        await self._files_worker.close()
        return is_clean

    async def _turn(self) -> None:
        await self._clock.sleep(0.001)

    async def flush(self) -> None:
        """Write everything that is durable now to the ledger files, and list the closed ledgers as released."""
        completion = _Completion()
        self.checkpointer.flush(completion.finish)
        await completion.done
        closed = self._logged.release(self._is_closed)
        if closed:
            await self._run_on_files_worker(lambda: self._list_released(closed))

    def _is_closed(self, ledger_id: int) -> bool:
        ledger = self._ledgers.get(ledger_id)
        return ledger is None or ledger.is_closed

    def _list_released(self, ledger_ids: list[int]) -> None:
        self._files.sync_names(ledger_ids)
        self._released.add(ledger_ids)

    async def discard(self, ledger_id: int) -> None:
        """Forget what is in memory of a ledger that is being deleted; its last group becomes durable first."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            await ledger.seal()
            self._ledgers.pop(ledger_id, None)
            self.cache.drop(ledger)
        self.checkpointer.forget(ledger_id)

    async def delete_files(self, ledger_id: int) -> None:
        is_logged = self._logged.forget(ledger_id)
        await self._run_on_files_worker(lambda: self._delete_files(ledger_id, is_logged))

    def _delete_files(self, ledger_id: int, is_logged: bool) -> None:
        """On the worker of the write-behind, so it runs after a write of the same ledger that is under way."""
        if is_logged:
            try:
                self._released.add([ledger_id])
            except OSError as error:  # full or fenced; the file is deleted all the same
                extra = {"ledger": ledger_id, "reason": str(error)}
                log.warning("deleted ledger not listed as released; recovery of this log restores it", extra=extra)
        self._files.delete(ledger_id)

    async def _run_on_files_worker(self, job: Callable[[], None]) -> None:
        completion = _Completion()
        self._files_worker.submit(job, lambda _, error: completion.finish(error))
        await completion.done

    def check_fence(self) -> None:
        if not self._is_fenced and not self._fence.is_held():
            self.on_failed(Fenced("another process has taken over this broker's log"))

    def evict(self, ledger_id: int) -> None:
        """The topic of a sealed ledger is closed: its entries leave memory as soon as they are in its file."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            ledger.is_cached = False
            self._release(ledger)

    def _release(self, ledger: OpenLedger) -> None:
        """Drop a sealed ledger that is complete in its file and has no entry in the cache."""
        if ledger.is_closed and not ledger.is_cached:
            self.cache.drop(ledger)
        if ledger.is_spent and not self.write_behind.holds(ledger.ledger_id):
            self._ledgers.pop(ledger.ledger_id, None)
            if self._logged.finish(ledger.ledger_id) and not self.checkpointer.is_checkpoint_due:
                self.group.want_checkpoint()

    # events of the committer --------------------------------------------------------------------------------------

    def may_confirm(self) -> bool:
        return self._listener.may_confirm()

    def on_durable(self, plan: GroupPlan) -> None:
        """The entries of the group become readable, and wait in the write-behind queue."""
        now, last_log = self._clock.monotonic(), self._logged.last_log
        for batch in plan.logged:
            ledger = self._ledgers[batch.ledger_id]
            self.cache.add(ledger, batch.last_entry_id, len(batch.entries), batch.size)
            ledger.on_durable(batch)
            self.write_behind.add(batch, now)
            last_log[batch.ledger_id] = plan.log_number
        for direct in plan.direct:
            batch = direct.batch
            ledger = self._ledgers[batch.ledger_id]
            self.cache.add(ledger, batch.last_entry_id, len(batch.entries), batch.size)
            ledger.on_durable(batch)
            ledger.written_entry_id = batch.last_entry_id
            self.cache.written(ledger)
        if plan.is_checkpoint:
            self.checkpointer.checkpoint(plan.log_number - 1)

    def on_confirmed(self, plan: GroupPlan) -> None:
        self._listener.on_group_end()
        self.cache.trim()
        self._listener.on_batches(len(plan.batches))
        if self.group.asks_for_spare():
            self.checkpointer.prepare_log(self.group.spare_ready)
        self.checkpointer.pump()

    # events of the checkpointer -----------------------------------------------------------------------------------

    def on_written(self, ledger_id: int, entry_id: int) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            ledger.written_entry_id = max(ledger.written_entry_id, entry_id)
            self.cache.written(ledger)
            self._release(ledger)

    def on_write_finished(self) -> None:
        self.cache.trim()
        self.disk_full.on_write_finished()
        self.committer.schedule()

    def on_log_retired(self, log_number: int) -> None:
        self._logged.retired(log_number)

    # events of the disk-full handler ------------------------------------------------------------------------------

    def write_pending(self) -> bool:
        if self.write_behind.is_empty:
            return True
        self.checkpointer.retry()
        return False

    def on_room(self) -> None:
        self.checkpointer.unstick()
        self._gate.reopen()
        self._listener.on_room()

    def on_failed(self, error: BaseException) -> None:
        """A group, a write-behind or a probe failed. Appends are refused from now on; the gate may be shut already."""
        error = self._fence.reason(error)
        reason = translated(error)
        was_fenced = self._is_fenced
        self._is_fenced = isinstance(error, Fenced)
        if is_full(error):
            self.disk_full.begin(reason)
        else:
            self.disk_full.give_up()
            self._gate.shut(reason)
            log.error("storage stopped: appends are refused until the broker restarts", extra={"reason": str(error)})
        if self.group.in_flight is None:
            self.committer.fail_gathered(reason)
        if self._is_fenced and not was_fenced:
            self._listener.on_fenced()
        self._listener.on_group_end()
