"""The life of a group: gathered, sent to the log thread, confirmed or failed. The event loop's shell of `group`.

Order of things when a group has landed: look at the fence, hand the batches over to the write-behind, start the next
group (the disk must not wait for Python), then tell the sinks, then `on_group_end`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from anabranch.runtime.blocking import Worker
from anabranch.runtime.clock import Clock
from anabranch.storage.interface import Fenced, StorageError
from anabranch.storage.ledger.record_format import log_stamp
from anabranch.storage.log.append_gate import Gate, is_full, translated
from anabranch.storage.log.commit_log import CommitLog
from anabranch.storage.log.fence import Fence
from anabranch.storage.log.group_commit import Batch, GroupCommit, Plan
from anabranch.storage.log.open_ledger import OpenLedger
from anabranch.storage.log.write_behind import WriteBehind

log = logging.getLogger(__name__)

CONFIRM_AGAIN_S = 0.05


class Committer:
    def __init__(
        self,
        *,
        clock: Clock,
        worker: Worker,
        group: GroupCommit,
        behind: WriteBehind,
        commit_log: CommitLog,
        fence: Fence,
        gate: Gate,
        linger: float,
        ledgers: dict[int, OpenLedger],
        on_landed: Callable[[Plan], None],
        on_told: Callable[[Plan], None],
        on_failed: Callable[[BaseException], None],
        pause_at: Callable[[str], None],
        may_confirm: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._group = group
        self._behind = behind
        self._log = commit_log
        self._fence = fence
        self._gate = gate
        self._linger = linger
        self._ledgers = ledgers
        self._on_landed = on_landed
        self._on_told = on_told
        self._on_failed = on_failed
        self._pause_at = pause_at
        self._may_confirm = may_confirm
        self._is_scheduled = False
        self.groups = 0
        self.entries = 0

    def gather(self, batch: Batch) -> None:
        self._group.gather(batch)
        self.schedule()

    def schedule(self) -> None:
        """Start a group soon: at the end of this round of the event loop, or after the linger time."""
        if not self._is_scheduled and self._group.in_flight is None:
            self._is_scheduled = True
            self._clock.call_later(self._linger, self._wake)

    @property
    def is_idle(self) -> bool:
        return self._group.in_flight is None and not self._group.has_work

    def _wake(self) -> None:
        self._is_scheduled = False
        self._start()

    def _start(self) -> None:
        group = self._group
        if group.in_flight is not None or not group.has_work or self._gate.refusal is not None:
            return
        if self._behind.is_over:
            return  # memory is bounded: `schedule` is called again when the write-behind has caught up
        for batch in group.gathered:
            self._ledgers[batch.ledger_id].close_batch()
        plan = group.start(self._behind.claim)
        self._gate.log_stamp = log_stamp(plan.log_number)
        self._worker.submit(lambda: self._log.commit(plan), self._done)

    def _done(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        if not self._fence.is_held():
            self._fail(Fenced("another process has taken over this broker's log"))
            return
        try:
            may_confirm = self._may_confirm()
        except Fenced as fenced:
            self._fail(fenced)
            return
        if not may_confirm:  # durable, but perhaps not ours to confirm: it waits, and so does all behind it
            self._clock.call_later(CONFIRM_AGAIN_S, lambda: self._done(None, None))
            return
        self._pause_at("group-confirmed")
        plan = self._group.finish()
        self._on_landed(plan)
        if self._gate.refusal is not None:
            self.fail_gathered(self._gate.refuse())
        elif self._linger and self._group.has_work:
            self.schedule()
        else:
            self._start()
        self._tell(plan)
        self._on_told(plan)

    def _tell(self, plan: Plan) -> None:
        self.groups += 1
        for batch in plan.batches:
            contexts, batch.contexts = batch.contexts, []
            entries, batch.entries = batch.entries, []
            self.entries += len(entries)
            assert batch.sink is not None
            try:
                batch.sink.appended(entries, contexts)
            except Exception:
                _log_sink_failure(batch)

    def _fail(self, error: BaseException) -> None:
        """Nothing of the group counts; neither does what was gathered behind it."""
        error = self._fence.reason(error)
        plan, gathered = self._group.abort()
        self._gate.log_stamp = log_stamp(self._group.log_number)  # a new file was not begun after all
        reason = translated(error)
        if is_full(error):
            self._gate.fill(reason)
        else:
            self._gate.shut(reason)
        now = self._clock.monotonic()
        for direct in plan.direct:
            self._behind.put_back(direct.batch.ledger_id, list(direct.carried), now)
        if not isinstance(error, Fenced):
            self._worker.submit(lambda: self._log.cut(plan), self._cut)
        self.fail_batches([*plan.batches, *gathered], reason)
        self._on_failed(error)

    def _cut(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            log.warning("a failed group could not be cut from the log", exc_info=error)

    def fail_gathered(self, reason: StorageError) -> None:
        """Appends that are in no group yet will not be in one."""
        self.fail_batches(self._group.drain(), reason)

    def fail_batches(self, batches: list[Batch], reason: StorageError) -> None:
        for batch in batches:
            self._ledgers[batch.ledger_id].fail(reason)
        for batch in batches:
            assert batch.sink is not None
            for entry, context in zip(batch.entries, batch.contexts, strict=True):
                try:
                    batch.sink.append_failed(entry, context, reason)
                except Exception:
                    _log_sink_failure(batch)


def _log_sink_failure(batch: Batch) -> None:
    """One broken owner must not keep the others from their receipts."""
    log.exception("append sink failed", extra={"ledger": batch.ledger_id, "last_entry": batch.last_entry_id})
