"""Writes ledger files behind the log, and checkpoints. Shell of `write_behind`: the event loop plus one worker thread.

A checkpoint deletes old log files in three steps: write their entries to the ledger files, sync these, delete the log
files. A log file is never deleted before the first two have succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anabranch.runtime.blocking import Worker
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger
from anabranch.storage.interface import Fenced, StorageError
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.log.append_gate import is_full
from anabranch.storage.log.commit_log import CommitLog, write_points
from anabranch.storage.log.fence import Fence
from anabranch.storage.log.group_commit import Batch
from anabranch.storage.log.write_behind import WriteBehind

log = get_logger(__name__)
PREPARE_PAUSE = 0.02


class CheckpointListener(Protocol):
    """Called on the event loop."""

    def on_written(self, ledger_id: int, entry_id: int) -> None:
        """Entries of the ledger up to this one are in its file."""

    def on_write_finished(self) -> None:
        """Called once per write or checkpoint, after `on_written` of all its ledgers."""

    def on_log_retired(self, log_number: int) -> None:
        """Log files up to this number are deleted."""

    def on_failed(self, error: BaseException) -> None: ...


class Checkpointer:
    def __init__(
        self,
        *,
        clock: Clock,
        worker: Worker,
        write_behind: WriteBehind,
        files: LedgerFiles,
        commit_log: CommitLog,
        fence: Fence,
        listener: CheckpointListener,
        pause_at: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._write_behind = write_behind
        self._files = files
        self._log = commit_log
        self._fence = fence
        self._listener = listener
        self._pause_at = pause_at
        self._unsynced: set[int] = set()  # ledgers written behind since their last sync
        self._checkpoint: int | None = None  # log files up to this number are to be deleted
        self._is_busy = False
        self._is_stuck = False
        self._is_stopped = False
        self._timer: Timer | None = None
        self._flush_requests: list[
            Callable[[BaseException | None], None]
        ] = []  # callers of `flush` whose write has not started
        self._flushing: list[Callable[[BaseException | None], None]] = []  # callers of `flush` whose write is under way
        self.checkpoints = 0

    def checkpoint(self, log_number: int) -> None:
        """Delete the log files up to this number as soon as their entries are synced in the ledger files."""
        self._checkpoint = max(log_number, self._checkpoint or 0)

    def flush(self, on_done: Callable[[BaseException | None], None]) -> None:
        """Write everything that waits now. `on_done` gets None when it is in the ledger files, otherwise the error."""
        self._flush_requests.append(on_done)
        if self._is_stuck:
            self._finish_flushes(StorageError("the ledger files cannot be written"))
        else:
            self.pump()

    def pump(self, *, everything: bool = False) -> None:
        """Start the next write-behind if one is due and none is running; otherwise set a timer for when one is due."""
        if self._is_busy or self._is_stuck:
            return
        upto = self._checkpoint
        everything = everything or bool(self._flush_requests) or upto is not None
        chosen = self._write_behind.take(self._clock.monotonic(), everything=everything)
        if everything:
            self._flushing += self._flush_requests
            self._flush_requests = []
        if not chosen and upto is None:
            self._finish_flushes(None)
            self._arm()
            return
        self._is_busy = True
        self._unsynced.update(batches[0].ledger_id for batches in chosen)
        if upto is None:
            self._worker.submit(lambda: self._write(chosen), self._written)
        else:
            ledgers = sorted(self._unsynced)
            self._worker.submit(lambda: self._write_checkpoint(chosen, ledgers, upto), self._checkpointed)

    def prepare_log(self, on_ready: Callable[[], None], place: int = 0) -> None:
        """Preallocate the next log file in the background, in steps. Without room, the log uses files that grow."""

        def prepared(after: int | None, error: BaseException | None) -> None:
            if error is None and after is None:
                on_ready()
            elif after is not None:
                self._clock.call_later(PREPARE_PAUSE, lambda: self.prepare_log(on_ready, after))
            elif error is not None and not is_full(error):
                self._listener.on_failed(error)

        if not self._is_stopped:
            self._worker.submit(lambda: self._log.prepare(place), prepared)

    def retry(self) -> None:
        """Try again after a failure, because there may be room now."""
        self._is_stuck = False
        self.pump(everything=True)

    def unstick(self) -> None:
        self._is_stuck = False

    def forget(self, ledger_id: int) -> None:
        self._write_behind.drop(ledger_id)
        self._unsynced.discard(ledger_id)

    @property
    def is_checkpoint_due(self) -> bool:
        """A checkpoint waits or is under way."""
        return self._checkpoint is not None

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    @property
    def is_idle(self) -> bool:
        return not self._is_busy and self._write_behind.is_empty and self._checkpoint is None

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due = self._write_behind.next_due()
        if due is not None and self._timer is None:
            self._timer = self._clock.call_later(max(due - self._clock.monotonic(), 0.001), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    # on the worker thread -----------------------------------------------------------------------------------------

    def _write(self, chosen: list[list[Batch]]) -> None:
        self._pause_at("before-write-behind")
        if not self._fence.is_held():
            raise Fenced("another process has taken over this broker's log")
        for batches in chosen:
            pieces = [piece for batch in batches for piece in batch.pieces]
            self._files.write(batches[0].ledger_id, pieces, batches[0].offset)
            write_points(self._files, batches)
        self._pause_at("written-behind")

    def _write_checkpoint(self, chosen: list[list[Batch]], ledgers: list[int], log_number: int) -> int:
        self._write(chosen)
        self._files.sync_many(ledgers)
        self._pause_at("checkpoint-synced")
        self._log.retire(log_number)
        return log_number

    # back on the event loop ---------------------------------------------------------------------------------------

    def _written(self, _: None, error: BaseException | None) -> None:
        self._is_busy = False
        if error is not None:
            self._fail(error)
            return
        self._finish_write()

    def _checkpointed(self, log_number: int | None, error: BaseException | None) -> None:
        self._is_busy = False
        if error is not None:
            self._fail(error)
            return
        assert log_number is not None
        if self._checkpoint == log_number:
            self._checkpoint = None
        self._listener.on_log_retired(log_number)
        self.checkpoints += 1
        self._unsynced.clear()
        self._finish_write()

    def _finish_write(self) -> None:
        for batch in self._write_behind.done():
            self._listener.on_written(batch.ledger_id, batch.last_entry_id)
        self._finish_flushes(None)
        self._listener.on_write_finished()
        self.pump()

    def _fail(self, error: BaseException) -> None:
        self._write_behind.failed(self._clock.monotonic())
        self._is_stuck = True
        self._finish_flushes(error)
        self._listener.on_failed(error)

    def _finish_flushes(self, error: BaseException | None) -> None:
        """Notify the callers of `flush` whose write is done; after a failure all callers."""
        finished, self._flushing = self._flushing, []
        if error is not None:
            finished += self._flush_requests
            self._flush_requests = []
        for on_done in finished:
            on_done(error)
