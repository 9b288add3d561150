"""Auto-scaling of one led topic: collects what the evaluator needs, evaluates, and performs its decision.

    load report, consumer joins or leaves, layout, tick ──▶ wake ──▶ decide ──▶ split or merge ──▶ decide again
                                                                        └──▶ timer, if a rule ends by time

There is one evaluation at a time, and no task or timer while nothing is due. Decisions are performed as ordinary calls
of the leader, so a crash at any point is that of a manual split or merge. The record of the topic keeps the cooldown
stamps; past decisions and failures are stored, so a new leader goes on with them: with each action, and of decisions
without one, those that say something new, at most once in `SAVE_MS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from anabranch.controller.autoscale.scaling_records import ScalingRecords
from anabranch.controller.autoscale.scaling_totals import ScalingTotals
from anabranch.controller.group.topic_groups import TopicGroups
from anabranch.controller.interface import ScalingCounts
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.metadata.interface import Expected
from anabranch.model.autoscale.decision import Action, ActionKind, Decision, Merge, Reason, Suppression
from anabranch.model.autoscale.evaluator import decide
from anabranch.model.autoscale.history import History
from anabranch.model.autoscale.load import SegmentLoad
from anabranch.model.autoscale.policy import AutoScalePolicy
from anabranch.model.errors import Error
from anabranch.model.layout import LayoutLimits
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

ROUNDS_MAX = 64
"""Actions in one evaluation. The next tick goes on; a policy without cooldowns cannot keep the leader busy for ever."""


TIMER_MS_MIN = 50

SAVE_MS = 1_000
"""Between two writes of decisions without action. What a leader decides within it before a crash is lost."""

SAVE_AGAIN_MS = 10_000

RETRY_MS, RETRY_MS_MAX = 1_000, 60_000
"""After an evaluation that failed because the store is away; twice as long each time."""


class ScaledTopic(Protocol):
    """The leader, as its scaler needs it. `topic/topic_controller.py` implements it."""

    topic: TopicName

    @property
    def record(self) -> TopicRecord | None: ...

    @property
    def is_over(self) -> bool: ...

    groups: TopicGroups

    async def perform(self, action: Action, reason: str, limits: LayoutLimits) -> None:
        """Splits or merges under these limits; returns when it is done. Raises as the calls of an administrator do."""

    async def mark_pending(self) -> bool:
        """Marks the topic in the store as one that needs a leader. False if the store did not confirm it."""

    def spawn(self, work: Awaitable[object], name: str) -> None: ...


class TopicScaler:
    def __init__(
        self,
        leader: ScaledTopic,
        records: ScalingRecords,
        policy: Callable[[TopicRecord], Awaitable[AutoScalePolicy | None]],
        unowned: Callable[[TopicRecord], Collection[int]],
        totals: ScalingTotals,
        clock: Clock,
    ) -> None:
        """`policy`: the effective one, None if it is invalid. `unowned`: active segments that no broker owns now."""
        self._leader, self._records, self._policy, self._unowned = leader, records, policy, unowned
        self._totals, self._clock = totals, clock
        self._loads: dict[int, SegmentLoad] | None = None  # None: not read yet
        self._history = History()
        self._stored: tuple[History, Expected] | None = None  # the history in the store; None: not read yet
        self._save_at_ms = 0
        self._failures = 0  # evaluations in a row
        self._retry_at_ms: int | None = None
        self._early: dict[int, SegmentLoad] = {}  # reported before the stored ones were read
        self._is_running = self._is_wanted = False
        self._timer: Timer | None = None
        self._seen: object = None
        self.policy: AutoScalePolicy | None = None
        self.decision: Decision | None = None
        self.counts = ScalingCounts()

    @property
    def is_idle(self) -> bool:
        return not self._is_running and not self._is_unsaved

    @property
    def _is_unsaved(self) -> bool:
        return self._stored is not None and self._stored[0] is not self._history

    @property
    def due_at_ms(self) -> int | None:
        """When the topic is to be evaluated again although nothing happens; None: never."""
        return None if self.decision is None or self.decision.action is not None else self.decision.due_at_ms

    @property
    def is_at_rest(self) -> bool:
        """All segments are reported and without load, and no rule that ends by time forbids anything: the topic is as
        small as it may be. Then only events change anything, or a policy."""
        record, decision = self._leader.record, self.decision
        if record is None or decision is None or decision.action is not None or decision.due_at_ms is not None:
            return False
        loads = [self.loads.get(one.segment_id) for one in record.layout.active]
        return all(one is not None and one.is_idle for one in loads)

    @property
    def loads(self) -> dict[int, SegmentLoad]:
        return self._loads or {}

    @property
    def history(self) -> History:
        return self._history

    # events -----------------------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Called after every event of the leader: evaluates if layout, number of consumers or policy have changed."""
        record = self._leader.record
        if record is None:
            return
        groups = self._leader.groups
        seen = record.epoch, record.operation is None, groups.are_known, groups.counts, record.auto_scale_policy
        if seen != self._seen:
            self._seen = seen
            if record.operation is None:
                self.wake()

    def wake(self) -> None:
        """Something may have changed: evaluates soon."""
        self._is_wanted = True
        if not self._is_running and not self._leader.is_over:
            self._is_running = True
            self._leader.spawn(self._run(), "auto-scale")

    def reload(self) -> None:
        """Reads the stored reports again, because a report may not have arrived, and evaluates."""
        self._loads, self._early = None, {}
        self.wake()

    def on_load(self, segment_id: int, load: SegmentLoad) -> None:
        (self._early if self._loads is None else self._loads)[segment_id] = load
        self.wake()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # evaluation -------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        try:
            for _ in range(ROUNDS_MAX):
                self._is_wanted = False
                if await self._evaluate() or self._is_wanted:
                    continue
                await self._settle()
                if not self._is_wanted:  # an event that comes while it settles is evaluated, too
                    break
            else:
                await self._settle()
            self._failures, self._retry_at_ms = 0, None
        except Error as error:
            self._failures += 1
            pause_ms = min(RETRY_MS << min(self._failures - 1, 6), RETRY_MS_MAX)
            self._retry_at_ms = self._clock.now_ms() + pause_ms
            log.info(
                "auto-scaling could not be evaluated, retrying",
                extra={"topic": str(self._leader.topic), "reason": error.reason},
            )
        finally:
            self._is_running = False
            self._set_timer()

    async def _settle(self) -> None:
        await self._save_decisions()
        if self.due_at_ms is not None:  # a leader that crashes would take its timer with it
            await self._leader.mark_pending()

    async def _evaluate(self) -> bool:
        """True if something was split or merged, or could not be."""
        record = self._leader.record
        if record is None or record.is_deleting or not self._leader.groups.are_known:
            return False  # `look` wakes it when the consumers are restored: without them segments look superfluous
        policy = self.policy = await self._policy(record)
        if policy is None:
            self.decision = None
            return False
        if policy.enabled:  # otherwise the decision needs nothing from the store
            await self._read()
            await self._forget_sealed(record)
        decision = self._decide(record, policy)
        if isinstance(decision.action, Merge):
            await self._read_loads()
            decision = self._decide(record, policy)
        self.decision = decision
        self._count(decision)
        if self._stored is not None:  # otherwise auto-scaling has been off since this leader began
            self._history = self._history.without_sealed({one.segment_id for one in record.layout.active})
            self._history = self._history.with_decision(decision, self._clock.now_ms(), record.epoch)
        if decision.action is None:
            return False
        await self._perform(decision, decision.action, policy)
        return True

    async def _read(self) -> None:
        if self._stored is None:
            self._stored = await self._records.history(self._leader.topic)
            self._history = self._stored[0]
        if self._loads is None:
            self._loads = await self._records.loads(self._leader.topic) | self._early

    async def _read_loads(self) -> None:
        """Before a merge: the segments were cold by the reports that have arrived, and one may have been lost."""
        self._loads, self._early = None, {}
        self._loads = await self._records.loads(self._leader.topic) | self._early

    async def considered(self, policy: AutoScalePolicy) -> Decision:
        """What this policy would do now. Nothing is done and nothing is remembered."""
        await self._read()
        record = self._leader.record
        assert record is not None, "the topic is led"
        return self._decide(record, policy)

    def _decide(self, record: TopicRecord, policy: AutoScalePolicy) -> Decision:
        now_ms, running = self._clock.now_ms(), record.operation
        history = self.history.without_sealed({one.segment_id for one in record.layout.active}).at(
            last_split_at_ms=record.last_split_at_ms,
            last_merge_at_ms=record.last_merge_at_ms,
            operation=None if running is None else f"{running.plan.kind.lower()} {running.operation_id}",
        )
        demands = self._leader.groups.demands()
        return decide(record.layout, self.loads, demands, policy, history, now_ms, unowned=self._unowned(record))

    def _count(self, decision: Decision) -> None:
        by = {(one.kind, one.suppressed_by) for one in decision.suppressed}
        self.counts.split_suppressed_max_segments += (ActionKind.SPLIT, Suppression.MAX_SEGMENTS) in by
        self.counts.merge_suppressed_max_depth += (ActionKind.MERGE, Suppression.MAX_DEPTH) in by
        self._totals.decided(decision)

    async def _forget_sealed(self, record: TopicRecord) -> None:
        """Reports of segments that are not active any more are removed. The layout of a leader that was frozen may be
        old: newer segments are left alone, because their owners would not report again."""
        active = {one.segment_id for one in record.layout.active}
        planned = {one.segment_id for one in record.planned_children}
        past = range(record.layout.next_segment_id)
        gone = [number for number in self.loads if number in past and number not in active and number not in planned]
        if gone:
            await self._records.forget_loads(self._leader.topic, gone)
            for number in gone:
                self.loads.pop(number, None)

    async def _perform(self, decision: Decision, action: Action, policy: AutoScalePolicy) -> None:
        fields = {
            "topic": str(self._leader.topic),
            "action": action.kind.value,
            "segments": list(action.segment_ids),
            "reason": decision.reason.value,
            "detail": decision.detail,
        }
        log.info("auto-scaling", extra=fields)
        failure: str | None = None
        try:
            crossed_ms = self._crossed_ms(decision)
            await self._leader.perform(action, f"auto: {decision.reason.value}", policy.limits)
            if action.kind is ActionKind.SPLIT:
                self.counts.splits += 1
                if crossed_ms is not None:
                    self._totals.reacted(crossed_ms, self._clock.now_ms())
            else:
                self.counts.merges += 1
        except Error as error:
            failure = error.reason
            log.warning("auto-scaling failed, paused for these segments", extra={**fields, "error": failure})
        self._history = self._history.with_outcome(action, self._clock.now_ms(), failure)
        await self._save()

    async def _save_decisions(self) -> None:
        """Decisions without action are stored, too, but not each of them at once."""
        if self._is_unsaved and self._clock.now_ms() >= self._save_at_ms:
            await self._save()

    async def _save(self) -> None:
        """A failure delays it, and nothing else."""
        assert self._stored is not None, "it is read before each decision that acts"
        now_ms = self._clock.now_ms()
        self._save_at_ms = now_ms + SAVE_AGAIN_MS
        try:
            self._stored = await self._records.save_history(self._leader.topic, self._history, self._stored[1])
        except Error as error:
            log.info(
                "decisions of auto-scaling are not stored yet, retrying",
                extra={"topic": str(self._leader.topic), "reason": error.reason},
            )
            return
        self._save_at_ms = now_ms + SAVE_MS
        self._history = self._stored[0]

    def _crossed_ms(self, decision: Decision) -> int | None:
        """When the load passed the threshold for which the segment is to be split."""
        if decision.action is None or decision.reason is Reason.CONSUMER_COUNT:
            return None
        load = self.loads.get(decision.action.segment_ids[0])
        return None if load is None else load.above_split_since_ms

    def _set_timer(self) -> None:
        self.close()
        times = (self.due_at_ms, self._retry_at_ms, self._save_at_ms if self._is_unsaved else None)
        due_ms = min((one for one in times if one is not None), default=None)
        if due_ms is not None and not self._leader.is_over:
            seconds = max(due_ms - self._clock.now_ms(), TIMER_MS_MIN) / 1000
            self._timer = self._clock.call_later(seconds, self.wake)
