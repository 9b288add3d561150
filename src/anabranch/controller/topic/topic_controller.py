"""Controller of one topic: the asyncio shell around its state machines, for one leader term.

    OperationWorkflow ◀──── AnnounceSubscriptions ──── SubscriptionWorkflow
        └── AnnouncePlan, AnnounceLayout ──▶ SubscriptionWorkflow, groups

It performs each effect once and delivers the outcome as an event; it decides nothing. Every request to a segment's
owner carries the term and a growing number. Nothing starts in the constructor; every task ends with `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from logging import DEBUG, INFO
from typing import Any, Protocol, assert_never

from anabranch.controller import events
from anabranch.controller import segment_host as host
from anabranch.controller.autoscale.topic_scaler import TopicScaler
from anabranch.controller.group.topic_groups import TopicGroups
from anabranch.controller.record_store import NOW, RecordStore, has_intents, is_unfinished
from anabranch.controller.records.subscription_registry import Registry
from anabranch.controller.records.topic_record import Phase, TopicRecord
from anabranch.controller.records.topic_record_codec import RecordTooLarge, encode_record
from anabranch.controller.segment_host import FencingToken, HostError, HostOutcomeUnknown, Request, SegmentHost
from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.controller.topic import operation_events as steps
from anabranch.controller.topic import subscription_events as registering
from anabranch.controller.topic.operation_permit import OperationPermit
from anabranch.controller.topic.operation_workflow import OperationWorkflow
from anabranch.controller.topic.subscription_workflow import SubscriptionWorkflow
from anabranch.metadata.interface import VALUE_BYTES_MAX
from anabranch.metadata.write_gate import WriteGate
from anabranch.model.autoscale.decision import Action, Split
from anabranch.model.errors import Error, NotReady
from anabranch.model.layout import LayoutLimits
from anabranch.model.names import TopicName
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

UNLOADED, DELETED = "the broker unloads it", "the topic was deleted"
QUIET_REASONS = (UNLOADED, DELETED)
"""No change of leadership: nothing to see at level INFO, or logged already."""

SEGMENT_BYTES = 400
"""Upper estimate of a segment's size in the record."""

REQUESTS_TOGETHER = 64
"""Concurrent requests of the workflows to owners. The timeout of a request starts when it is sent."""

Step = Callable[[str, TopicName], None]
"""Called before and after each step, so that tests can end the process there."""


class StillRunning(NotReady):
    """The operation still runs, but the call has timed out. A repeated call with the same id does not run it twice."""

    code = "operation-running"


def new_operation_id(clock: Clock, chance: Chance) -> str:
    """Unique: time and 48 random bits."""
    return f"{clock.now_ms():x}-{int(chance.random() * (1 << 48)):012x}"


def no_step(name: str, topic: TopicName) -> None:
    """Does nothing."""


class TopicListener(Protocol):
    def topic_changed(self, topic: TopicName, record: TopicRecord | None) -> None:
        """Called with every plan and layout as it becomes valid; None: the topic was deleted."""


class TopicController:
    """For one topic and one leader term. Implements `group.topic_leader.TopicLeader`."""

    def __init__(
        self,
        topic: TopicName,
        term: int,
        *,
        records: RecordStore,
        segments: SegmentHost,
        settings: ScalableTopicsSettings,
        limits: LayoutLimits,
        clock: Clock,
        chance: Chance,
        listener: TopicListener,
        step: Step = no_step,
        gate: WriteGate | None = None,
        owner_epoch: Callable[[TopicName], int] = lambda _: 0,
        ended: Callable[[TopicName], None] = lambda _: None,
        scaler: Callable[[TopicController], TopicScaler] | None = None,
    ) -> None:
        """`ended` is called once, when this leader leads no longer. `owner_epoch`: see `Place.owner_epoch`. `gate`: see
        `OperationPermit`. `scaler` makes the topic's auto-scaler; None: the topic is not scaled automatically."""
        self.topic, self.term = topic, term
        self.settings, self.clock, self.owner_epoch = settings, clock, owner_epoch
        self.ownership_epoch: int | None = None  # of the place that made it the leader
        self.is_over = False
        self.over_because = ""
        self.is_marked_pending = False  # as the store says, as far as we know
        self.idle_since_ms = clock.now_ms()
        self._records, self._host, self._chance = records, segments, chance
        self.measure = segments.measure
        self._listener, self._step = listener, step
        self._permit, self._ended = OperationPermit(topic, gate), ended
        self._numbers = count(1)
        self._asking = asyncio.Semaphore(REQUESTS_TOGETHER)
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._pruning = ""  # the last prune's operation
        self._leading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = TaskOwner(f"leader {topic}")
        self.ops = OperationWorkflow(
            topic,
            term,
            limits=limits,
            create_ms_max=int(settings.create_seconds * 1000),
            journals_seal=not segments.capabilities.has_fencing,
        )
        self.subs = SubscriptionWorkflow(topic, term)
        self.groups = TopicGroups(self, records)
        self.members = self.groups.by_name
        self._is_restored = False
        self.scaler = None if scaler is None else scaler(self)
        self._doubts = 0  # writes of the record in a row whose fate was not known

    # leadership -------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        log.debug("topic loaded, leading it", extra={"topic": str(self.topic), "term": self.term})
        self._perform(self.ops, self.ops.begin())
        self._perform(self.subs, self.subs.begin())

    async def wait_leading(self) -> TopicRecord:
        """Waits until this term is in the record; from then on only this leader writes it. Raises NotLeading,
        TopicGone."""
        try:
            async with asyncio.timeout(self.settings.call_seconds):
                await asyncio.shield(self._leading)
        except TimeoutError as error:
            raise StillRunning(f"{self.topic} could not be taken over yet") from error
        assert self.ops.record is not None
        return self.ops.record

    async def check_leading(self) -> None:
        """Reads the record. If another broker has led the topic meanwhile, or it was created again, `is_over` is set
        when this returns."""
        event = await self._records.load(self.topic)
        self.deliver(self.ops, event)

    def stop_leading(self, reason: str) -> None:
        """Another broker leads the topic, or may lead it."""
        for machine in (self.ops, self.subs, *(one.group for one in self.members.values())):
            self.deliver(machine, events.LeadershipLost(reason))
        self._end(reason)

    async def close(self) -> None:
        self.stop_leading(UNLOADED)
        await self._tasks.close()

    def _end(self, reason: str) -> None:
        if self.is_over:
            return
        self.is_over, self.over_because = True, reason
        fields = {"topic": str(self.topic), "term": self.term, "reason": reason}
        log.log(DEBUG if reason in QUIET_REASONS else INFO, "no longer leading topic", extra=fields)
        error: Error = events.NotLeading(f"{self.topic}: {reason}")
        if not self._leading.done():
            self._leading.set_exception(error)
            self._leading.exception()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()
        self.groups.end(error)
        self.groups.clear()
        if self.scaler is not None:
            self.scaler.close()
            self.scaler = None  # it refers to this leader
        self._tasks.cancel()
        self._permit.leave()
        self._ended(self.topic)

    @property
    def record(self) -> TopicRecord | None:
        return self.ops.record

    @property
    def registry(self) -> Registry | None:
        return self.subs.registry

    @property
    def is_idle(self) -> bool:
        """No work is unfinished, no call waits and no consumer is registered, so the topic can be unloaded."""
        record, registry = self.record, self.registry
        if record is None or registry is None or not self.ops.is_idle or self._waiting or is_unfinished(record):
            return False
        if self.scaler is not None and not self.scaler.is_idle:
            return False
        return not has_intents(registry) and not self.groups.have_sessions

    @property
    def has_no_pending_calls(self) -> bool:
        """No call waits or runs, so a new call starts at once."""
        return self.ops.is_idle and not self._waiting

    # calls ------------------------------------------------------------------------------------------------------------
    async def ask(self, call: steps.Call) -> int:
        """Returns the layout epoch after the operation. Raises its refusal; NotLeading if another broker leads."""
        await self.wait_leading()
        if isinstance(call, steps.SplitCall):
            self._check_room(call)
        elif isinstance(call, steps.PruneCall):
            self._pruning = call.operation_id
        return await self._ask(self.ops, call.operation_id, steps.Asked(call))

    async def perform(self, action: Action, reason: str, limits: LayoutLimits) -> None:
        """A decision of auto-scaling, as a call. Its policy may be newer than the limits of the last call."""
        self.ops.limits = limits
        operation_id = new_operation_id(self.clock, self._chance)
        if isinstance(action, Split):
            points = action.points
            await self.ask(steps.SplitCall(operation_id, action.segment_id, len(points) + 1, points, reason))
        else:
            await self.ask(steps.MergeCall(operation_id, action.segment_ids, reason))

    async def ask_subscription(self, call: registering.SubscriptionCall) -> int:
        await self.wait_leading()
        await self._wait_pruned()
        return await self._ask(self.subs, call.operation_id, registering.SubscriptionAsked(call))

    async def _ask(self, machine: Any, operation_id: str, event: Any) -> int:
        waiting = self._waiting.get(operation_id)
        if waiting is None:
            waiting = self._waiting[operation_id] = asyncio.get_running_loop().create_future()
            waiting.add_done_callback(lambda _: self._waiting.pop(operation_id, None))
            self.deliver(machine, event)
        try:
            async with asyncio.timeout(self.settings.call_seconds):
                return await asyncio.shield(waiting)
        except TimeoutError as error:
            raise StillRunning(f"operation {operation_id} of {self.topic} is still running") from error

    async def _wait_pruned(self) -> None:
        """Subscription changes wait for a running prune, which was decided on the current subscriptions."""
        pruning = self._waiting.get(self._pruning)
        if pruning is not None:
            await asyncio.wait([pruning], timeout=self.settings.call_seconds)
            if not pruning.done():
                raise StillRunning(f"segments of {self.topic} are still being collected")
            if self.is_over:
                raise events.NotLeading(f"{self.topic}: {self.over_because}")

    def _check_room(self, call: steps.SplitCall) -> None:
        record = self.ops.record
        parts = call.ways if call.points is None else len(call.points) + 1
        if record is not None and len(record.segments) * SEGMENT_BYTES > VALUE_BYTES_MAX // 2:
            size = len(encode_record(record)) + 2 * parts * SEGMENT_BYTES
            if size > VALUE_BYTES_MAX:
                raise RecordTooLarge(
                    f"{self.topic} has {len(record.segments)} segments; its record would become too large"
                )

    # machines ---------------------------------------------------------------------------------------------------------
    def deliver(self, machine: Any, event: Any) -> None:
        if not self.is_over:
            self._perform(machine, machine.handle(event, self.clock.now_ms()))

    def _perform(self, machine: Any, effects: list[Any]) -> None:
        for effect in effects:
            if self.is_over:
                return
            self._do(machine, effect)
        self._look()

    def _look(self) -> None:
        """After every event: updates leadership, idle time and the write gate."""
        record = self.ops.record
        if record is not None and record.leader_term == self.term and not self._leading.done():
            self._leading.set_result(None)
        if self.scaler is not None and self._leading.done():
            self.scaler.look()
        if not self.is_idle:
            self.idle_since_ms = self.clock.now_ms()
        if record is not None and record.operation is None and not record.is_deleting and self.ops.is_idle:
            self._permit.leave()

    def groups_restored(self) -> None:
        if not self.is_over:
            self._look()

    def _do(self, machine: Any, effect: Any) -> None:
        match effect:
            case steps.ReadRecord():
                self.run(machine, self._records.load(self.topic), "read")
            case steps.SaveRecord():
                self.run(machine, self._save(effect), "save")
            case steps.RemoveRecord():
                self.run(machine, self._records.remove(self.topic, self.term, effect), "remove")
            case registering.ReadRegistry():
                self.run(machine, self._records.load_registry(self.topic), "read registry")
            case registering.SaveRegistry():
                self.run(machine, self._save_registry(effect), "save registry")
            case steps.Ask(request):
                self.run(machine, self._asked(request), type(request).__name__)
            case steps.Rest(what, failures):
                self.later(self._pause(failures), machine, steps.Rested(what))
            case registering.CursorRest(what, failures):
                self.later(self._pause(failures), machine, registering.CursorRested(what))
            case steps.AnnouncePlan(record) | steps.AnnounceLayout(record):
                self._tell(record)
            case steps.RegisterSubscriptions(operation_id, kinds):
                call = registering.RegisterCall(operation_id, kinds)
                self.deliver(self.subs, registering.SubscriptionAsked(call))
            case registering.Registered(operation_id):
                self.deliver(self.ops, steps.SubscriptionsRegistered(operation_id))
            case registering.AnnounceSubscriptions(names):
                self.deliver(self.ops, steps.SubscriptionsKnown(names))
                if not self._is_restored:
                    self._is_restored = True
                    self.spawn(self.groups.restore(), "restore groups")
            case events.Halt(name):
                if (found := self.groups.ordered(name)) is not None:
                    self.groups.of(found).on_seek(effect)
            case events.Resume(name):
                if (group := self.members.get(name)) is not None:
                    group.on_seek(effect)
            case steps.Reply(operation_id, error, epoch):
                self._reply(operation_id, error, epoch)
            case events.StepDown(reason):
                self.stop_leading(reason)
            case steps.AnnounceDeleted():
                self._listener.topic_changed(self.topic, None)
                self._gone()
            case _:
                assert_never(effect)

    def group_changed(self) -> None:
        if not self.is_over:
            self._look()

    def on_group_answer(self, event: events.Halted | events.Resumed) -> None:
        self.deliver(self.subs, event)

    def run(self, machine: Any, work: Any, name: str) -> None:
        """Runs `work` and delivers its outcome to the machine."""

        async def done() -> None:
            self.deliver(machine, await work)

        task = self._spawn(done(), name)
        if task is None:
            work.close()
        else:
            task.add_done_callback(lambda _: work.close())  # cancelled before its first step

    def later(self, seconds: float, machine: Any, event: Any) -> None:
        async def wait() -> None:
            await self.clock.sleep(seconds)
            self.deliver(machine, event)

        self._spawn(wait(), "wait")

    def spawn(self, work: Any, name: str) -> None:
        self._spawn(work, name)

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any] | None:
        return self._permit.spawn(self._tasks, work, name)

    def _pause(self, failures: int) -> float:
        return RETRY_DELAYS.retry_after(failures, self._chance.random())

    async def pause(self, failures: int) -> None:
        """Waits before a retry; longer after more failures."""
        await self.clock.sleep(self._pause(failures))

    # effects ----------------------------------------------------------------------------------------------------------
    async def _save(self, effect: steps.SaveRecord) -> steps.RecordSaved | steps.RecordDoubtful:
        starts = effect.record.operation is not None or effect.record.is_deleting
        if starts and not await self._permit.enter():
            return steps.RecordDoubtful()
        if is_unfinished(effect.record) and not await self.mark_pending():
            return steps.RecordDoubtful()
        word = self._word(effect.record)
        self._step(f"before-{word}", self.topic)
        saved = await self._records.save(self.topic, effect)
        self._step(f"after-{word}", self.topic)
        self._doubts = 0 if isinstance(saved, steps.RecordSaved) else self._doubts + 1
        if self._doubts > 1:
            await self.pause(self._doubts)
        return saved

    def _word(self, after: TopicRecord) -> str:
        before = self.ops.record
        if before is None or before.leader_term != after.leader_term:
            return "term"
        if after.is_deleting and after.operation is not None:
            return "undo"
        if after.operation is not None:
            return "plan" if before.operation is None else "seal-phase"
        if before.operation is not None:
            return "commit" if after.epoch > before.epoch else "abort"
        if after.auto_scale_policy != before.auto_scale_policy:
            return "policy"
        return "delete" if after.is_deleting else "prune" if after.epoch > before.epoch else "swept"

    async def mark_pending(self) -> bool:
        """Called before the first unfinished work is written. False if the store did not confirm the mark."""
        if not self.is_marked_pending:
            try:
                await self._records.mark_pending(self.topic, NOW)
            except Error as error:
                log.warning(
                    "topic could not be marked as having unfinished work",
                    extra={"topic": str(self.topic), "reason": error.reason},
                )
                return False
            self.is_marked_pending = True
        return True

    async def _save_registry(
        self, effect: registering.SaveRegistry
    ) -> registering.RegistrySaved | registering.RegistryDoubtful:
        if has_intents(effect.registry) and not await self.mark_pending():
            return registering.RegistryDoubtful()
        return await self._records.save_registry(self.topic, effect)

    async def ask_host(self, request: Request) -> host.Answer:
        """Sends the request with a new fencing token. Raises the host's errors; HostOutcomeUnknown on timeout."""
        token = FencingToken(self.term, next(self._numbers))
        try:
            async with asyncio.timeout(self.settings.seal_seconds):
                return await self._host.ask(token, request)
        except TimeoutError as error:
            raise HostOutcomeUnknown(f"{request.segment} did not answer in time") from error

    async def _asked(self, request: Request) -> steps.Answered | steps.Failed:
        word = type(request).__name__.lower()
        self._step(f"before-{word}", self.topic)
        try:
            async with self._asking:
                answer = await self.ask_host(request)
        except Error as error:
            if not isinstance(error, host.StaleRequest):
                log.info("segment request failed", extra={"request": str(request), "reason": error.reason})
            return steps.Failed(request, error)
        except Exception as error:
            log.exception("segment request failed", extra={"request": str(request)})
            return steps.Failed(request, HostError(f"{type(error).__name__}: {error}"))
        self._step(f"after-{word}", self.topic)
        return steps.Answered(request, answer)

    def _tell(self, record: TopicRecord) -> None:
        self._step("tell-plan" if record.operation is not None else "tell-layout", self.topic)
        self._listener.topic_changed(self.topic, record)
        self.deliver(self.subs, registering.LayoutKnown(record))
        for members in tuple(self.members.values()):
            members.layout_changed(record)

    def _reply(self, operation_id: str, error: Error | None, epoch: int) -> None:
        waiting = self._waiting.get(operation_id)
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(epoch)
        else:
            waiting.set_exception(error)
            waiting.exception()

    def _gone(self) -> None:
        error = events.TopicGone(f"{self.topic} was deleted")
        if not self._leading.done():
            self._leading.set_exception(error)
            self._leading.exception()
        self.groups.end(error)
        # Replies to the deletion follow in the same list of effects.
        asyncio.get_running_loop().call_soon(self._end, DELETED)

    @property
    def phase(self) -> Phase | None:
        return self.ops.phase
