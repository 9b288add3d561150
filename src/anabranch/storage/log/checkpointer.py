"""Writing ledger files behind the log, and checkpoints: the shell around `behind`. Event loop plus one worker thread.

A checkpoint frees old log files: everything they hold is written to the ledger files, those are synced, then the log
files go. A log file is never given up before that, whatever fails in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from anabranch.runtime.blocking import Worker
from anabranch.runtime.clock import Clock, Timer
from anabranch.storage.interface import Fenced, StorageError
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.log.append_gate import is_full
from anabranch.storage.log.commit_log import CommitLog, write_points
from anabranch.storage.log.fence import Fence
from anabranch.storage.log.group_commit import Batch
from anabranch.storage.log.write_behind import WriteBehind

log = logging.getLogger(__name__)
PREPARE_PAUSE = 0.02


class Checkpointer:
    def __init__(
        self,
        *,
        clock: Clock,
        worker: Worker,
        behind: WriteBehind,
        files: LedgerFiles,
        commit_log: CommitLog,
        fence: Fence,
        on_written: Callable[[int, int], None],
        on_settled: Callable[[], None],
        on_retired: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        pause_at: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._behind = behind
        self._files = files
        self._log = commit_log
        self._fence = fence
        self._on_written = on_written
        self._on_settled = on_settled
        self._on_retired = on_retired
        self._on_failed = on_failed
        self._pause_at = pause_at
        self._unsynced: set[int] = set()  # ledgers written behind since their last sync
        self._checkpoint: int | None = None  # log files up to this number are to be freed
        self._is_busy = False
        self._is_stuck = False
        self._is_stopped = False
        self._timer: Timer | None = None
        self._asked: list[Callable[[BaseException | None], None]] = []  # by `settle`
        self._answering: list[Callable[[BaseException | None], None]] = []  # when the write that is under way is done
        self.checkpoints = 0

    def checkpoint(self, log_number: int) -> None:
        """Free the log files up to this number, as soon as what they hold is safe elsewhere."""
        self._checkpoint = max(log_number, self._checkpoint or 0)

    def settle(self, on_done: Callable[[BaseException | None], None]) -> None:
        """Write everything that waits now; `on_done` hears when it is in the ledger files, or why not."""
        self._asked.append(on_done)
        if self._is_stuck:
            self._answer(StorageError("the ledger files cannot be written"))
        else:
            self.pump()

    def pump(self, *, everything: bool = False) -> None:
        """Start the next write-behind if one is due and none is running; otherwise look again in time."""
        if self._is_busy or self._is_stuck:
            return
        upto = self._checkpoint
        everything = everything or bool(self._asked) or upto is not None
        chosen = self._behind.take(self._clock.monotonic(), everything=everything)
        if everything:
            self._answering += self._asked
            self._asked = []
        if not chosen and upto is None:
            self._answer(None)
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
        """Make a spare log file in the background, step by step. Without room the log goes on in growing files."""

        def prepared(after: int | None, error: BaseException | None) -> None:
            if error is None and after is None:
                on_ready()
            elif after is not None:
                self._clock.call_later(PREPARE_PAUSE, lambda: self.prepare_log(on_ready, after))
            elif error is not None and not is_full(error):
                self._on_failed(error)

        if not self._is_stopped:
            self._worker.submit(lambda: self._log.prepare(place), prepared)

    def retry(self) -> None:
        """After a failure: there may be room again."""
        self._is_stuck = False
        self.pump(everything=True)

    def unstick(self) -> None:
        self._is_stuck = False

    def forget(self, ledger_id: int) -> None:
        self._behind.drop(ledger_id)
        self._unsynced.discard(ledger_id)

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    @property
    def is_idle(self) -> bool:
        return not self._is_busy and self._behind.is_empty and self._checkpoint is None

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due = self._behind.next_due()
        if due is not None and self._timer is None:
            self._timer = self._clock.call_later(max(due - self._clock.monotonic(), 0.001), self._ring)

    def _ring(self) -> None:
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
        self._settle()

    def _checkpointed(self, log_number: int | None, error: BaseException | None) -> None:
        self._is_busy = False
        if error is not None:
            self._fail(error)
            return
        assert log_number is not None
        if self._checkpoint == log_number:
            self._checkpoint = None
        self._on_retired(log_number)
        self.checkpoints += 1
        self._unsynced.clear()
        self._settle()

    def _settle(self) -> None:
        for batch in self._behind.done():
            self._on_written(batch.ledger_id, batch.last_entry_id)
        self._answer(None)
        self._on_settled()
        self.pump()

    def _fail(self, error: BaseException) -> None:
        self._behind.failed(self._clock.monotonic())
        self._is_stuck = True
        self._answer(error)
        self._on_failed(error)

    def _answer(self, error: BaseException | None) -> None:
        """Those whose write is done; after a failure everybody."""
        answering, self._answering = self._answering, []
        if error is not None:
            answering += self._asked
            self._asked = []
        for on_done in answering:
            on_done(error)
