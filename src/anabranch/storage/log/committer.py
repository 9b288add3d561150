"""Commits groups: gathers batches, sends them to the log thread, confirms or fails them. Shell of `group_commit`.

When a group is durable, in this order:

1. check the fence and `may_confirm`;
2. `on_durable`: entries become readable and enter the write-behind queue;
3. start the next group, because the disk must not wait for Python;
4. notify the sinks;
5. `on_confirmed`, which ends the group for the broker (receipts are flushed, dispatch runs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anabranch.runtime.blocking import Worker
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.storage.interface import Fenced, StorageError
from anabranch.storage.ledger.record_format import log_stamp
from anabranch.storage.log.append_gate import AppendGate, is_full, translated
from anabranch.storage.log.commit_log import CommitLog
from anabranch.storage.log.fence import Fence
from anabranch.storage.log.group_commit import Batch, GroupCommit, GroupPlan
from anabranch.storage.log.open_ledger import OpenLedger
from anabranch.storage.log.write_behind import WriteBehind

log = get_logger(__name__)

CONFIRM_AGAIN_S = 0.05


class CommitListener(Protocol):
    """Called on the event loop."""

    def may_confirm(self) -> bool:
        """False delays the confirmation of a durable group; raises Fenced when it must never be confirmed."""

    def on_durable(self, plan: GroupPlan) -> None:
        """Called before the next group starts and before any sink is notified."""

    def on_confirmed(self, plan: GroupPlan) -> None:
        """Called after all sinks of the group were notified."""

    def on_failed(self, error: BaseException) -> None:
        """Called after the sinks of a failed group were notified."""


class Committer:
    def __init__(
        self,
        *,
        clock: Clock,
        worker: Worker,
        group: GroupCommit,
        write_behind: WriteBehind,
        commit_log: CommitLog,
        fence: Fence,
        gate: AppendGate,
        linger: float,
        ledgers: dict[int, OpenLedger],
        listener: CommitListener,
        pause_at: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._group = group
        self._write_behind = write_behind
        self._log = commit_log
        self._fence = fence
        self._gate = gate
        self._linger = linger
        self._ledgers = ledgers
        self._listener = listener
        self._pause_at = pause_at
        self._is_scheduled = False
        self.groups = 0
        self.entries = 0

    def gather(self, batch: Batch) -> None:
        self._group.gather(batch)
        self.schedule()

    def schedule(self) -> None:
        """Start a group soon: at the end of this turn of the event loop, or after the linger time."""
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
        if self._write_behind.is_over:
            return  # memory is bounded: `schedule` is called again when the write-behind has caught up
        for batch in group.gathered:
            self._ledgers[batch.ledger_id].close_batch()
        plan = group.start(self._write_behind.claim)
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
            may_confirm = self._listener.may_confirm()
        except Fenced as fenced:
            self._fail(fenced)
            return
        if not may_confirm:  # the group is durable, but ownership is in doubt: it waits, and so do all later groups
            self._clock.call_later(CONFIRM_AGAIN_S, lambda: self._done(None, None))
            return
        self._pause_at("group-confirmed")
        plan = self._group.finish()
        self._listener.on_durable(plan)
        if self._gate.refusal is not None:
            self.fail_gathered(self._gate.refuse())
        elif self._linger and self._group.has_work:
            self.schedule()
        else:
            self._start()
        self._notify_sinks(plan)
        self._listener.on_confirmed(plan)

    def _notify_sinks(self, plan: GroupPlan) -> None:
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
        """Fail all entries of the group, and those gathered after it."""
        error = self._fence.reason(error)
        plan, gathered = self._group.abort()
        self._gate.log_stamp = log_stamp(self._group.log_number)  # a new file was not started
        reason = translated(error)
        if is_full(error):
            self._gate.fill(reason)
        else:
            self._gate.shut(reason)
        now = self._clock.monotonic()
        for direct in plan.direct:
            self._write_behind.put_back(direct.batch.ledger_id, list(direct.carried), now)
        if not isinstance(error, Fenced):
            self._worker.submit(lambda: self._log.cut(plan), self._cut)
        self.fail_batches([*plan.batches, *gathered], reason)
        self._listener.on_failed(error)

    def _cut(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            log.warning("failed group not truncated from the log; recovery may restore its entries", exc_info=error)

    def fail_gathered(self, reason: StorageError) -> None:
        """Fail the appends that are in no group yet."""
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
    """The error of one sink must not keep the other sinks from being notified."""
    log.exception("append sink raised an error", extra={"ledger": batch.ledger_id, "last_entry": batch.last_entry_id})
