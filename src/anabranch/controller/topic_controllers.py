"""The topics that this broker leads: loaded when needed, unloaded when idle, given up when their name moves.

A topic is led by the broker that owns its name (`placement.py`). A call, a consumer or an event of a segment loads it.
An idle topic is only a record in the store: no object, task or timer. When this broker gets new names, it finds topics
with unfinished work by an index (`RecordStore.pending_topics`), not by a scan of all records.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from anabranch.controller.autoscale.scaling import AutoScaling
from anabranch.controller.events import NotLeading, TopicGone
from anabranch.controller.interface import LedElsewhere
from anabranch.controller.namespace_rules import Rules, retention_of
from anabranch.controller.placement import Place
from anabranch.controller.record_store import NOW, RecordStore
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import LoadReported, SegmentHost
from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.controller.topic.gc_runner import collect
from anabranch.controller.topic.leader_terms import LeaderTerms
from anabranch.controller.topic.topic_controller import Step, TopicController, TopicListener, new_operation_id, no_step
from anabranch.controller.topic_status import segment_stats
from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.write_gate import WriteGate
from anabranch.model.errors import AlreadyExists, BadRequest, Error, NotAllowed
from anabranch.model.names import Domain, TopicName
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

RESUME_TOGETHER = 32  # topics activated at a time
AGAIN = 4  # a topic is led again after the retry delay of so many failures
LOOK_AGAIN = 10  # sweeps until a topic whose segments a subscription still needs is checked again
T = TypeVar("T")


class TopicControllers:
    """`async with TopicControllers(…)`: topics are led inside."""

    def __init__(
        self,
        records: RecordStore,
        terms: LeaderTerms,
        place: Place,
        segments: SegmentHost,
        rules: Rules,
        listener: TopicListener,
        *,
        settings: ScalableTopicsSettings,
        clock: Clock,
        chance: Chance,
        step: Step = no_step,
        gate: WriteGate | None = None,
        scaling: AutoScaling | None = None,
    ) -> None:
        """`listener` is called with every plan and layout of the topics that are led here. `scaling`: None if topics
        are not scaled automatically."""
        self._records, self._terms, self._place, self._host, self._rules = records, terms, place, segments, rules
        self._listener, self._settings = listener, settings
        self._clock, self._chance, self._step, self._gate = clock, chance, step, gate
        self._scaling = scaling
        self._controllers: dict[TopicName, TopicController] = {}
        self._loading: dict[TopicName, asyncio.Task[TopicController | Error]] = {}
        self._due: dict[TopicName, int] = {}  # unloaded topics of this broker, and when each needs a leader again
        self._resuming = asyncio.Event()
        self._tasks = TaskOwner("controllers")
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._controllers)

    @property
    def by_topic(self) -> Mapping[TopicName, TopicController]:
        """The topics that are led here now."""
        return self._controllers

    async def __aenter__(self) -> Self:
        self._tasks.spawn(self._resume(), "resume")
        self._tasks.spawn(self._sweep(), "sweep")
        if self._scaling is not None:
            self._tasks.spawn(self._tick(self._scaling), "auto-scale tick")
        return self

    def stop(self) -> None:
        """No topic is led anew from now on, and calls are not retried."""
        self._is_closed = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await self._tasks.close()
        controllers, self._controllers = list(self._controllers.values()), {}
        await asyncio.gather(*(one.close() for one in controllers))

    # leading ----------------------------------------------------------------------------------------------------------
    def leading(self, topic: TopicName) -> TopicController | None:
        """This broker's controller of the topic, if there is one now."""
        found = self._controllers.get(topic)
        return None if found is None or found.is_over else found

    async def lead(self, topic: TopicName) -> TopicController:
        """This broker's controller of the topic, loaded if needed. Raises LedElsewhere, TopicGone, StoreUnavailable."""
        if topic.domain is not Domain.TOPIC:
            raise BadRequest(f"{topic} is not a scalable topic")
        if not self._settings.enabled:
            raise NotAllowed("scalable topics are switched off (scalable_topics.enabled)")
        found = self.leading(topic)
        if found is not None and self._place.is_here(topic):
            return found
        await self.check_placed_here(topic)
        loading = self._loading.get(topic)
        if loading is None:
            loading = self._tasks.spawn(self._load_outcome(topic), f"load {topic}")
            if loading is None:
                raise NotLeading("the broker is stopping")
            self._loading[topic] = loading
            loading.add_done_callback(lambda task: self._loaded(topic, task))
        try:
            outcome = await asyncio.shield(loading)
        except asyncio.CancelledError:
            if loading.cancelled():
                raise NotLeading("the broker is stopping") from None
            raise
        if isinstance(outcome, Error):
            raise outcome
        return outcome

    async def check_placed_here(self, topic: TopicName) -> None:
        """Raises LedElsewhere if another broker has the name."""
        await self._place.wait_placed(topic)
        if not self._place.is_here(topic):
            raise LedElsewhere(topic, self._place.owner_address(topic))

    def _loaded(self, topic: TopicName, task: asyncio.Task[TopicController | Error]) -> None:
        self._loading.pop(topic, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller may be gone

    def use_settings(self, settings: ScalableTopicsSettings) -> None:
        """Limits of layouts, for topics that are led from now on; a split or merge reads them again."""
        self._settings = settings

    async def _load_outcome(self, topic: TopicName) -> TopicController | Error:
        """Returns refusals as values, because callers that share this task each raise them."""
        try:
            return await self._load(topic)
        except Error as error:
            return error

    async def _load(self, topic: TopicName) -> TopicController:
        found = self.leading(topic)
        if found is not None:
            return found
        record = await self._records.find(topic)
        if record is None:
            raise TopicGone(f"{topic} does not exist")
        origin = record.migrated_from
        is_held = True
        if record.is_migrating and origin is not None:
            is_held = await self._rules.hold_partitions(topic, origin.partitions)
        elif record.leader_term == 0:
            await self._settle_name(topic, record)
        else:
            await self.clear_name(topic)
        ownership_epoch = self._place.ownership_epoch(topic)
        limits = self._settings.limits(
            record.auto_scale_policy, await self._rules.auto_scale_policy(topic.namespace_path)
        )
        term = await self._terms.acquire(topic, record.leader_term)
        leader = TopicController(
            topic,
            term,
            records=self._records,
            segments=self._host,
            settings=self._settings,
            limits=limits,
            clock=self._clock,
            chance=self._chance,
            listener=self._listener,
            step=self._step,
            gate=self._gate,
            owner_epoch=self._place.owner_epoch,
            ended=self._leader_ended,
            scaler=None if self._scaling is None else self._scaling.scaler,
        )
        leader.ownership_epoch = ownership_epoch
        if not is_held:
            leader.ops.forbid_migration("the regular topic was deleted, or its number of partitions has changed")
        leader.is_marked_pending = self._due.pop(topic, None) == NOW
        if self._is_closed:
            raise NotLeading("the broker is stopping")
        self._controllers[topic] = leader
        leader.start()
        return leader

    def load_reported(self, topic: TopicName, event: LoadReported) -> None:
        """The load of a segment of a topic that this broker leads, or may lead."""
        leader, load = self.leading(topic), event.load
        if leader is not None and leader.scaler is not None:
            if leader.record is None or leader.record.incarnation == event.segment.incarnation:
                leader.scaler.on_load(event.segment.segment_id, load)
        elif self._scaling is not None and self._place.is_here(topic):
            if load.above_split_since_ms is not None:
                self._tasks.spawn(self._try_activate(topic), f"lead hot {topic}")
            elif load.below_merge_since_ms is not None and topic not in self._due:
                self._tasks.spawn(self._note_cold(self._scaling, topic, load.below_merge_since_ms), f"cold {topic}")

    async def _note_cold(self, scaling: AutoScaling, topic: TopicName, since_ms: int) -> None:
        """A topic that is not led may be merged: it needs a leader when the merge window is over."""
        try:
            at_ms = await scaling.merge_due_at_ms(topic, since_ms)
            if at_ms is not None:
                await self._records.mark_pending(topic, at_ms)
                self._due.setdefault(topic, at_ms)
        except Error as error:
            log.info("cold topic is not noted yet", extra={"topic": str(topic), "reason": error.reason})

    async def _settle_name(self, topic: TopicName, record: TopicRecord) -> None:
        """Before a topic is led for the first time: a regular topic that was created concurrently wins. The creator of
        a regular topic deletes the record until it has a leader term."""
        try:
            await self._rules.check_name(topic)
        except AlreadyExists:
            await self._records.give_way(topic, record)
            raise

    async def clear_name(self, topic: TopicName) -> None:
        """Removes leftovers of a regular topic. A failure is harmless: a regular topic of this name is refused
        anyway."""
        try:
            await self._rules.clear_name(topic)
        except Error as error:
            log.warning(
                "leftovers of a regular topic of the same name were not removed",
                extra={"topic": str(topic), "reason": error.reason},
            )

    def _leader_ended(self, topic: TopicName) -> None:
        """Leads the topic again soon if it has unfinished work and its name is still here, because no call may come."""
        leader = self._controllers.get(topic)
        if leader is None or not leader.is_over or self._is_closed:
            return
        del self._controllers[topic]
        if not leader.is_marked_pending:
            return

        async def again() -> None:
            await self._clock.sleep(RETRY_DELAYS.retry_after(AGAIN, self._chance.random()))
            if self._place.is_here(topic):
                await self._try_activate(topic)

        self._tasks.spawn(again(), f"lead {topic} again")

    async def call(self, topic: TopicName, work: Callable[[TopicController], Awaitable[T]]) -> T:
        """Runs `work` on the topic's controller; repeats it on the next one if that is here too. `work` must be
        idempotent (operations carry an id)."""
        until = self._clock.monotonic() + self._settings.call_seconds
        failures = 0
        while True:
            try:
                return await work(await self.lead(topic))
            except (NotLeading, StoreUnavailable):
                failures += 1
                if self._clock.monotonic() > until or self._is_closed:
                    raise
            await self._clock.sleep(RETRY_DELAYS.retry_after(failures, self._chance.random()))

    # placement --------------------------------------------------------------------------------------------------------
    def placement_changed(self, *, has_gained: bool) -> None:
        """Names have moved. With `has_gained`, this broker has new ones, possibly with unfinished work."""
        for topic, leader in tuple(self._controllers.items()):
            if not self._place.is_here(topic) or self._place.ownership_epoch(topic) != leader.ownership_epoch:
                del self._controllers[topic]
                leader.stop_leading("the topic's name has moved to another broker")
            else:
                leader.groups.placement_changed()
        self._due = {topic: at_ms for topic, at_ms in self._due.items() if self._place.is_here(topic)}
        if has_gained:
            self._resuming.set()

    async def _resume(self) -> None:
        """Whenever this broker has new names: leads the pending topics among them."""
        failures = 0
        while True:
            await self._resuming.wait()
            self._resuming.clear()
            try:
                pending = [
                    (topic, at_ms)
                    async for topic, at_ms in self._records.pending_topics()
                    if self._place.is_here(topic)
                ]
            except Error as error:
                failures += 1
                log.warning(
                    "topics with unfinished work could not be read yet, retrying", extra={"reason": error.reason}
                )
                await self._clock.sleep(RETRY_DELAYS.retry_after(failures, self._chance.random()))
                self._resuming.set()
                continue
            failures, now_ms = 0, self._clock.now_ms()
            self._due.update({topic: at_ms for topic, at_ms in pending if self.leading(topic) is None})
            urgent = [topic for topic, at_ms in pending if at_ms <= now_ms and self.leading(topic) is None]
            await self._resume_all(urgent, len(pending))

    async def _resume_all(self, urgent: Sequence[TopicName], pending: int) -> None:
        if not pending:
            return
        began = self._clock.monotonic()
        for start in range(0, len(urgent), RESUME_TOGETHER):
            await asyncio.gather(*map(self._try_activate, urgent[start : start + RESUME_TOGETHER]))
        log.info(
            "topics with unfinished work resumed",
            extra={
                "pending": pending,
                "resumed": sum(self.leading(topic) is not None for topic in urgent),
                "seconds": round(self._clock.monotonic() - began, 3),
            },
        )

    async def _try_activate(self, topic: TopicName) -> None:
        """Leads a pending topic; after a failure the next sweep tries again."""
        try:
            await self.lead(topic)
        except TopicGone:
            self._due.pop(topic, None)
            await self._clear_pending_mark(topic)
        except Error as error:
            log.info(
                "topic with unfinished work is not led yet, retrying at the next sweep",
                extra={"topic": str(topic), "reason": error.reason},
            )

    async def _clear_pending_mark(self, topic: TopicName) -> None:
        try:
            await self._records.clear_pending_mark(topic)
        except Error as error:
            log.info("mark of unfinished work was not removed", extra={"topic": str(topic), "reason": error.reason})

    async def _tick(self, scaling: AutoScaling) -> None:
        """Evaluates led topics from time to time, in case that an event was lost. Topics at rest are left alone, unless
        the policy of their namespace has changed: owners repeat the report of a hot segment."""
        while True:
            await self._clock.sleep(scaling.interval_seconds)
            changed = await scaling.changed_namespaces({topic.namespace_path for topic in self._controllers})
            for topic, leader in tuple(self._controllers.items()):
                scaler = leader.scaler
                if scaler is None or leader.is_over:
                    continue
                if not scaler.is_at_rest or topic.namespace_path in changed:
                    scaler.reload()

    # sweep ------------------------------------------------------------------------------------------------------------
    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(min(self._settings.sweep_seconds, self._settings.idle_seconds))
            await self.sweep()

    async def sweep(self) -> None:
        """Leads topics that are due, collects garbage, unloads idle topics. One timer serves all topics."""
        now_ms = self._clock.now_ms()
        for topic in [topic for topic, at_ms in self._due.items() if at_ms <= now_ms]:
            await self._try_activate(topic)
        for topic, leader in tuple(self._controllers.items()):
            if leader.is_over:
                if self._controllers.get(topic) is leader:
                    del self._controllers[topic]
                if self._place.is_here(topic) and leader.is_marked_pending:
                    await self._try_activate(topic)
                continue
            try:
                await self._look_after(topic, leader)
            except Error as error:
                log.info(
                    "sweep of a topic failed, retrying at the next sweep",
                    extra={"topic": str(topic), "reason": error.reason},
                )

    async def _look_after(self, topic: TopicName, leader: TopicController) -> None:
        """Collects garbage; unloads the topic if it is idle."""
        again_ms = None if leader.scaler is None else leader.scaler.due_at_ms
        record = leader.record
        if record is not None and any(True for _ in record.layout.sealed):
            again_ms = min(await self._collect(topic, leader), again_ms or sys.maxsize)
        idle_ms = int(self._settings.idle_seconds * 1000)
        if leader.is_idle and self._clock.now_ms() - leader.idle_since_ms >= idle_ms:
            await self._unload(topic, leader, again_ms)

    async def _collect(self, topic: TopicName, leader: TopicController) -> int:
        """Returns when to check the topic again."""
        retention = retention_of(self._settings, await self._rules.retention(topic))
        sizes: dict[int, int] = {}
        if retention.size_bytes >= 0 and leader.record is not None:
            figures = await segment_stats(self._host, topic, leader.record)
            sizes = {segment_id: stats.bytes for segment_id, stats in figures.items()}
        verdict = await collect(
            leader,
            self._records,
            retention=retention,
            sizes=sizes,
            operation_id=new_operation_id(self._clock, self._chance),
        )
        soon_ms = self._clock.now_ms() + int(LOOK_AGAIN * self._settings.sweep_seconds * 1000)
        if verdict is None or verdict.look_again_at_ms is None:
            return soon_ms
        return max(verdict.look_again_at_ms, self._clock.now_ms() + int(self._settings.sweep_seconds * 1000))

    async def _unload(self, topic: TopicName, leader: TopicController, again_ms: int | None) -> None:
        """Drops the controller. A topic with sealed segments is marked with the time of its next check."""
        if again_ms is not None:
            await self._records.mark_pending(topic, again_ms)
            self._due[topic] = again_ms
        elif leader.is_marked_pending:
            await self._clear_pending_mark(topic)
        leader.is_marked_pending = False
        if leader.is_idle and self._controllers.get(topic) is leader:
            del self._controllers[topic]
            await leader.close()
