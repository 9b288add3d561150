"""The scalable topics of one broker: the topics that it leads and the layouts that its clients watch.

Implements `interface.ScalableTopics`. Calls about one topic run on its controller (`topic_controllers.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from anabranch.controller import segment_host as host
from anabranch.controller.autoscale.policies import EffectivePolicies
from anabranch.controller.autoscale.scaling import AutoScaling
from anabranch.controller.autoscale.scaling_status import scaling_status, scaling_summary
from anabranch.controller.autoscale.scaling_totals import ScalingTotals
from anabranch.controller.events import NotLeading, TopicGone, UnknownSubscription
from anabranch.controller.group.group_coordinator import ConsumerLink, GroupCoordinator
from anabranch.controller.interface import (
    AssignedSegments,
    AssignmentListener,
    LayoutListener,
    LedTopic,
    Registration,
)
from anabranch.controller.layout_watches import LayoutWatches, TopicActivation, Watcher, check_watchable
from anabranch.controller.migration import Migrations
from anabranch.controller.namespace_rules import Rules
from anabranch.controller.operation_metrics import OperationCounts, Totals
from anabranch.controller.placement import Place
from anabranch.controller.record_store import RecordStore
from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.records.subscription_registry import SegmentPosition, SubscriptionKind
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.regular_topics import TopicNotMigrated
from anabranch.controller.segment_host import SegmentHost, SegmentStats, Start
from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.controller.topic import operation_events as operations
from anabranch.controller.topic import subscription_events as subscriptions
from anabranch.controller.topic.leader_terms import LeaderTerms
from anabranch.controller.topic.operation_progress import MigrationStep
from anabranch.controller.topic.topic_controller import Step, TopicController, new_operation_id, no_step
from anabranch.controller.topic_controllers import TopicControllers
from anabranch.controller.topic_status import led_topic, segment_stats, topic_status
from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.write_gate import WriteGate
from anabranch.model.autoscale.policy import AutoScalePolicy, BadPolicy
from anabranch.model.errors import BadRequest, Busy, Error, NotAllowed, NotReady
from anabranch.model.layout import Layout
from anabranch.model.names import Domain, TopicName, check_subscription_name
from anabranch.model.routing import Routing
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)
T = TypeVar("T")

COUNTED_MAX = 1_000
"""Topics that are led no longer and still have a state in the counters, besides as many as are led."""


class ScalableTopicService:
    """`async with ScalableTopicService(…)`: topics are led and layouts are followed inside."""

    def __init__(
        self,
        store: MetadataStore,
        place: Place,
        segments: SegmentHost,
        rules: Rules,
        activation: TopicActivation,
        *,
        broker: str,
        settings: ScalableTopicsSettings,
        clock: Clock,
        chance: Chance,
        step: Step = no_step,
        gate: WriteGate | None = None,
        cache: RecordCache | None = None,
    ) -> None:
        """`cache` may be shared with other readers of the same records on this broker."""
        self.settings = settings
        self._place, self._host, self._rules = place, segments, rules
        self._activation, self._clock, self._chance = activation, clock, chance
        self.records = RecordStore(store, terms := LeaderTerms(store, broker), cache or RecordCache())
        self.policies = EffectivePolicies(settings.auto_scale_policy, rules, self.records)
        self._scaling = AutoScaling(
            self.records, self.policies, place, clock, interval_seconds=settings.auto_scale_interval_seconds
        )
        self.controllers = TopicControllers(
            self.records,
            terms,
            place,
            segments,
            rules,
            self,
            settings=settings,
            clock=clock,
            chance=chance,
            step=step,
            gate=gate,
            scaling=self._scaling,
        )
        self.migrations = Migrations(self.records, self.controllers, clock, chance)
        self.watches = LayoutWatches(store, self.records, place, activation, clock)
        self.counts = OperationCounts()
        self._tasks = TaskOwner("scalable topics")
        self._unlisten: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        await self.watches.__aenter__()
        self._unlisten = self._host.listen(self.on_segment_event)
        await self.controllers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unlisten is not None:
            self._unlisten()
        self.controllers.stop()
        await self._tasks.close()
        await self.controllers.__aexit__(kind, error, trace)
        await self.watches.__aexit__(kind, error, trace)

    @property
    def is_enabled(self) -> bool:
        return self.settings.enabled

    @property
    def totals(self) -> Totals:
        return self.counts.totals

    @property
    def scaling_totals(self) -> ScalingTotals:
        return self._scaling.totals

    def led(self) -> list[LedTopic]:
        controllers = self.controllers.by_topic
        self.counts.keep(controllers)
        return [found for one in controllers.values() if (found := led_topic(one)) is not None]

    def new_id(self) -> str:
        return new_operation_id(self._clock, self._chance)

    # events -----------------------------------------------------------------------------------------------------------
    def topic_changed(self, topic: TopicName, record: TopicRecord | None) -> None:
        """A plan or layout of a topic that is led here; None: the topic was deleted."""
        ended = self.counts.on_record(topic, record)
        if ended is not None:
            log.info(ended.event, extra={"topic": str(topic), **ended.fields})
        elif record is None:
            log.info("scalable topic deleted", extra={"topic": str(topic)})
        if len(self.counts) > COUNTED_MAX + 2 * len(self.controllers):
            self.counts.keep(self.controllers.by_topic)
        self.watches.on_record(topic, record)

    def placement_changed(self, *, has_gained: bool) -> None:
        """With `has_gained`, this broker has new topics, which other brokers may have left unfinished."""
        self.controllers.placement_changed(has_gained=has_gained)
        self.watches.placement_changed()

    def on_segment_event(self, event: host.HostEvent) -> None:
        topic = event.segment.name.scalable
        if isinstance(event, host.SubscriptionSeen):
            if self._place.is_here(topic):
                self._tasks.spawn(self._subscription_seen(topic, event), "subscription seen")
        elif isinstance(event, host.LoadReported):
            self.controllers.load_reported(topic, event)
        elif (controller := self.controllers.leading(topic)) is not None:
            controller.groups.on_segment_event(event)

    async def _subscription_seen(self, topic: TopicName, event: host.SubscriptionSeen) -> None:
        """A client subscribed at one segment: the subscription is created on all segments."""
        kind = SubscriptionKind.QUEUE if event.is_shared else SubscriptionKind.STREAM
        try:
            await self.subscribe(topic, event.subscription, kind, event.start)
        except Error as error:
            log.warning(
                "subscription seen at a segment was not registered",
                extra={"topic": str(topic), "subscription": event.subscription, "reason": error.reason},
            )
            if not error.retryable:  # otherwise the segment's owner repeats the event while its client waits
                await self._deny(topic, event, error)

    async def _deny(self, topic: TopicName, event: host.SubscriptionSeen, error: Error) -> None:
        controller = self.controllers.leading(topic)
        try:
            if controller is not None:
                await controller.ask_host(host.DenyCursor("deny", event.segment, event.subscription, error.reason))
        except Error as failure:  # the client then waits until its own timeout
            log.info(
                "refusal of a subscription did not reach the segment's owner",
                extra={"topic": str(topic), "subscription": event.subscription, "reason": failure.reason},
            )

    def use_settings(self, settings: ScalableTopicsSettings) -> None:
        """Auto-scaling, limits of layouts and the switch of migrations; the rest is read at start."""
        self.settings = settings
        self.policies.use_base(settings.auto_scale_policy)
        self.controllers.use_settings(settings)

    # calls ------------------------------------------------------------------------------------------------------------
    def watch(self, topic: TopicName, listener: LayoutListener, *, create: bool) -> Watcher:
        """Raises NotAllowed, TopicGone for names that can have no layout."""
        check_watchable(topic)
        return self.watches.watch(topic, listener, create=create)

    async def create(self, topic: TopicName, segments: int, properties: Mapping[str, str]) -> None:
        """The topic exists and is led when this returns. Raises TopicExists, AlreadyExists, NotFound,
        TooManySegments."""
        if topic.domain is not Domain.TOPIC:
            raise BadRequest(f"{topic} is not a scalable topic")
        if not self.settings.enabled:
            raise NotAllowed("scalable topics are switched off (scalable_topics.enabled)")
        if segments < 1:
            raise NotAllowed(f"a topic needs at least one segment, not {segments}")
        await self.controllers.check_placed_here(topic)
        await self._rules.check_may_create(topic)
        policy = await self._rules.auto_scale_policy(topic.namespace_path)
        self.settings.limits(policy).check_active(segments)
        now_ms = self._clock.now_ms()
        record = TopicRecord(
            Layout.initial(segments, now_ms=now_ms, bucket_budget=self.settings.entry_bucket_budget),
            incarnation=(now_ms << 10) | int(self._chance.random() * 1024),
            properties=dict(properties),
        )
        await self.records.create(topic, record)
        try:
            await self.activate(topic)
        except TopicGone:
            await self._rules.check_name(topic)  # the usual reason: a regular topic has the name
            raise
        log.info("scalable topic created", extra={"topic": str(topic), "segments": segments})
        await self.controllers.clear_name(topic)

    @property
    def can_migrate(self) -> bool:
        return self.settings.migration_enabled

    async def migrate(
        self,
        topic: TopicName,
        old_name: TopicName,
        partitions: int,
        operation_id: str,
        *,
        routing: Routing,
        force: bool,
        kinds: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        await self.migrations.start(
            topic, old_name, partitions, operation_id, routing=routing, force=force, kinds=kinds, properties=properties
        )

    def migration_step(self, topic: TopicName) -> MigrationStep | None:
        controller = self.controllers.leading(topic)
        return None if controller is None else controller.ops.migration_step

    async def activate(self, topic: TopicName) -> None:
        async def work(controller: TopicController) -> None:
            await controller.wait_leading()
            await controller.check_leading()
            if controller.is_over:
                raise NotLeading(f"another broker has led {topic} meanwhile")

        await self.controllers.call(topic, work)

    async def delete(self, topic: TopicName) -> None:
        """Deletes the current incarnation only; a topic that is re-created while the call is retried is left alone."""
        operation_id = self.new_id()
        incarnation = (await self.record(topic)).incarnation

        async def work(controller: TopicController) -> None:
            await controller.ask(operations.DeleteCall(operation_id, incarnation))

        try:
            await self.controllers.call(topic, work)
        except TopicGone:
            return

    async def record(self, topic: TopicName) -> TopicRecord:
        found = await self.records.find(topic)
        if found is None:
            raise TopicGone(f"{topic} does not exist")
        return found

    async def names(self, namespace: str, filters: Mapping[str, str]) -> list[str]:
        found = await self.records.all_of(namespace)
        return [str(topic) for topic, record in found.items() if filters.items() <= record.properties.items()]

    async def properties_in(self, namespace: str) -> Mapping[str, Mapping[str, str]]:
        return {str(topic): record.properties for topic, record in (await self.records.all_of(namespace)).items()}

    async def properties_of(self, topic: TopicName) -> Mapping[str, str] | None:
        found = await self.records.find(topic)
        return None if found is None else found.properties

    async def split(
        self,
        topic: TopicName,
        segment_id: int,
        *,
        ways: int = 2,
        points: tuple[int, ...] | None = None,
        operation_id: str | None = None,
        reason: str = "",
    ) -> int:
        call = operations.SplitCall(operation_id or self.new_id(), segment_id, ways, points, reason)
        return await self._change(topic, call)

    async def merge(
        self, topic: TopicName, segment_ids: tuple[int, ...], *, operation_id: str | None = None, reason: str = ""
    ) -> int:
        call = operations.MergeCall(operation_id or self.new_id(), segment_ids, reason)
        return await self._change(topic, call)

    async def _change(self, topic: TopicName, call: operations.Call) -> int:
        """Under the limits that hold now: the policy of the namespace may have changed since the topic is led."""

        async def work(controller: TopicController) -> int:
            await controller.wait_leading()
            own = None if controller.record is None else controller.record.auto_scale_policy
            controller.ops.limits = self.settings.limits(own, await self._rules.auto_scale_policy(topic.namespace_path))
            return await controller.ask(call)

        return await self._led(topic, work)

    async def _led(self, topic: TopicName, work: Callable[[TopicController], Awaitable[T]]) -> T:
        """Raises TopicNotMigrated instead of TopicGone if the topic is a regular one."""
        try:
            return await self.controllers.call(topic, work)
        except TopicGone as error:
            if await self._activation.regular(topic) is None:
                raise
            raise TopicNotMigrated(topic) from error

    # auto-scale policies ----------------------------------------------------------------------------------------------
    async def auto_scale_policy(self, namespace: str, topic: TopicName | None = None) -> AutoScalePolicy:
        if topic is None:
            return await self.policies.of_namespace(namespace)
        return await self.policies.with_override(topic, (await self.record(topic)).auto_scale_policy)

    async def set_auto_scale_policy(self, topic: TopicName, override: Mapping[str, Any] | None) -> None:
        await self.policies.with_override(topic, override)
        call = operations.PolicyCall(self.new_id(), None if override is None else dict(override))
        await self.controllers.call(topic, lambda controller: controller.ask(call))

    async def auto_scale_status(self, topic: TopicName) -> dict[str, Any]:
        return await self.controllers.call(topic, self._scaling_status)

    async def _scaling_status(self, controller: TopicController) -> dict[str, Any]:
        record, scaler = await controller.wait_leading(), controller.scaler
        assert scaler is not None, "every topic has a scaler"
        override = record.auto_scale_policy
        policy = await self.policies.with_override(controller.topic, override)
        decision = await scaler.considered(policy)
        levels = (
            self.settings.auto_scale_policy,
            await self._rules.auto_scale_policy(controller.topic.namespace_path),
            override,
        )
        return scaling_status(record, scaler, policy, decision, levels)

    async def try_auto_scale(self, topic: TopicName, override: Mapping[str, Any]) -> dict[str, Any]:
        policy = await self.policies.with_override(topic, override)

        async def work(controller: TopicController) -> dict[str, Any]:
            await controller.wait_leading()
            assert controller.scaler is not None, "every topic has a scaler"
            return {**(await controller.scaler.considered(policy)).to_json(), "policy": policy.to_json()}

        return await self.controllers.call(topic, work)

    async def check_namespace_policy(self, namespace: str, override: Mapping[str, Any] | None) -> None:
        await self.policies.check_namespace(namespace, override)

    # subscriptions ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: TopicName, name: str, kind: SubscriptionKind, start: Start) -> None:
        call = await self._subscribe_call(topic, name, kind, start)
        await self.controllers.call(topic, lambda controller: controller.ask_subscription(call))

    async def _subscribe_call(
        self, topic: TopicName, name: str, kind: SubscriptionKind, start: Start
    ) -> subscriptions.SubscribeCall:
        most = await self._rules.subscriptions_max(topic) if kind.has_cursors else 0
        return subscriptions.SubscribeCall(self.new_id(), check_subscription_name(name), kind, start, most)

    async def check_unused(self, topic: TopicName, name: str, besides: str | None = None) -> None:
        async def sessions(controller: TopicController) -> int | None:
            await controller.wait_leading()
            members = controller.members.get(name)
            return None if members is None else len(members.group.sessions.names - {besides})

        used = await self.controllers.call(topic, sessions)
        if used is None:
            figures = await self.figures(topic, await self.record(topic))
            own = 0 if besides is None else 1  # a queue consumer is attached to each segment once
            attached = (one.subscriptions[name].consumers for one in figures.values() if name in one.subscriptions)
            used = max((count - own for count in attached), default=0)
        if used > 0:
            raise Busy(f"subscription {name} of {topic} is used by {used} other consumers")

    async def unsubscribe(self, topic: TopicName, name: str, operation_id: str | None = None) -> None:
        call = subscriptions.UnsubscribeCall(operation_id or self.new_id(), name)

        async def work(controller: TopicController) -> None:
            await controller.wait_leading()
            registry = controller.registry
            if registry is not None and name not in registry.subscriptions:
                raise UnknownSubscription(f"no subscription {name} on {topic}")
            await controller.ask_subscription(call)
            await controller.groups.forget(name)

        await self.controllers.call(topic, work)

    async def move(
        self,
        topic: TopicName,
        name: str,
        publish_ms: int | None,
        positions: tuple[SegmentPosition, ...] = (),
        operation_id: str | None = None,
    ) -> int:
        call = subscriptions.MoveCall(operation_id or self.new_id(), name, publish_ms, positions)

        async def work(controller: TopicController) -> int:
            await controller.ask_subscription(call)
            members = controller.members.get(name)
            return 0 if members is None else members.group.void_below

        return await self.controllers.call(topic, work)

    async def state(self, topic: TopicName) -> dict[str, Any]:
        async def work(controller: TopicController) -> dict[str, Any]:
            await controller.wait_leading()
            try:
                scaling = scaling_summary(await self._scaling_status(controller))
            except BadPolicy as error:  # the broker's settings have changed: the statistics say so
                scaling = {"error": error.reason}
            return {**topic_status(controller), "autoScale": scaling}

        return await self.controllers.call(topic, work)

    async def figures(self, topic: TopicName, record: TopicRecord) -> dict[int, SegmentStats]:
        return await segment_stats(self._host, topic, record)

    # consumers --------------------------------------------------------------------------------------------------------
    async def register(
        self, topic: TopicName, request: Registration, listener: AssignmentListener
    ) -> tuple[AssignedSegments, ConsumerLink]:
        async def work(controller: TopicController) -> tuple[AssignedSegments, ConsumerLink]:
            group = await self._group(controller, request)
            return await group.register(
                request.consumer,
                listener,
                request.held,
                request.generation,
                continues=request.continues,
                instance=request.instance,
                shares=request.shares,
            )

        return await self._led(topic, work)

    async def _group(self, controller: TopicController, request: Registration) -> GroupCoordinator:
        """The coordinator of the subscription, which is created if it does not exist."""
        await controller.wait_leading()
        record = controller.record
        if request.incarnation is not None and record is not None and record.incarnation != request.incarnation:
            # The consumer would choose its start position for another topic than it registers with.
            raise TopicGone(f"{controller.topic} was deleted and created again")
        if record is not None and record.is_migrating:
            raise NotReady(f"{controller.topic} is being migrated; try again")
        subscription = controller.groups.ordered(request.subscription)
        if subscription is None and not await self._may_subscribe(controller, request):
            raise UnknownSubscription(f"{controller.topic} has no subscription {request.subscription}")
        if subscription is None or subscription.kind is not request.kind:
            await controller.ask_subscription(
                await self._subscribe_call(controller.topic, request.subscription, request.kind, request.start)
            )
            subscription = controller.groups.ordered(request.subscription)
        if subscription is None:
            raise NotLeading(f"subscription {request.subscription} is being changed")
        return controller.groups.of(subscription)

    async def _may_subscribe(self, controller: TopicController, request: Registration) -> bool:
        """Whether the subscription exists, of another kind, or the consumer may create it. Checkpoint groups are no
        durable subscriptions."""
        if not request.kind.has_cursors:
            return True
        known = controller.registry.subscriptions if controller.registry is not None else {}
        return request.subscription in known or await self._rules.may_auto_subscribe(controller.topic)
