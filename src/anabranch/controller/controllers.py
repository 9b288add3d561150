"""What is asked of the scalable topics of one broker: calls of people and clients, and what segments tell.

Implements most of `face.ScalableTopics`, on the leaders that `TopicControllers` has; must not know connections or
commands.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from anabranch.controller import segment_host as host
from anabranch.controller.group.group_coordinator import GroupCoordinator, new_link
from anabranch.controller.group.sitting import Sitting
from anabranch.controller.interface import AssignedSegments, ConsumerLink, LedElsewhere, Registration
from anabranch.controller.records.subscription_registry import SubscriptionKind
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import Start
from anabranch.controller.topic import operation_events as steps
from anabranch.controller.topic import subscription_workflow as registering
from anabranch.controller.topic.operation_events import NotLeading, TopicGone
from anabranch.controller.topic.topic_controller import TopicController
from anabranch.controller.topic_controllers import TopicControllers
from anabranch.controller.topic_status import state_of
from anabranch.model.errors import BadRequest, Error, NotAllowed
from anabranch.model.layout import Layout
from anabranch.model.names import Domain, TopicName, check_subscription_name

log = logging.getLogger(__name__)


class Controllers(TopicControllers):
    """`async with Controllers(…)`: leading inside."""

    # what segments tell -----------------------------------------------------------------------------------------------
    def heard(self, event: host.HostEvent) -> None:
        topic = event.segment.name.scalable
        leader = self.leading(topic)
        if isinstance(event, host.SubscriptionSeen):
            if self._place.is_here(topic):
                self._tasks.spawn(self._seen(topic, event), "subscription seen")
        elif leader is not None:
            leader.groups.heard(event)

    async def _seen(self, topic: TopicName, event: host.SubscriptionSeen) -> None:
        kind = SubscriptionKind.QUEUE if event.is_shared else SubscriptionKind.STREAM
        try:
            await self.subscribe(topic, event.subscription, kind, event.start)
        except Error as error:
            log.warning("subscription not registered", extra={"topic": str(topic), "reason": error.reason})
            if not error.retryable:  # otherwise the owner asks again, and its client waits a little
                await self._deny(topic, event, error)

    async def _deny(self, topic: TopicName, event: host.SubscriptionSeen, error: Error) -> None:
        leader = self.leading(topic)
        try:
            if leader is not None:
                await leader.ask_host(host.DenyCursor("deny", event.segment, event.subscription, error.reason))
        except Error as missed:  # then it waits for as long as it does for a registry that says nothing
            log.info("refusal not told", extra={"topic": str(topic), "reason": missed.reason})

    # calls ------------------------------------------------------------------------------------------------------------
    async def create(self, topic: TopicName, segments: int, properties: Mapping[str, str]) -> None:
        """Exists and is led when this returns. Raises TopicExists, AlreadyExists, NotFound, TooManySegments."""
        if topic.domain is not Domain.TOPIC:
            raise BadRequest(f"{topic} is not a scalable topic")
        if not self.settings.enabled:
            raise NotAllowed("scalable topics are switched off (scalable_topics.enabled)")
        if segments < 1:
            raise NotAllowed(f"a topic begins with at least one segment, not {segments}")
        await self._place.wait_placed(topic)
        if not self._place.is_here(topic):
            raise LedElsewhere(topic, self._place.owner_address(topic))
        await self._rules.check_may_create(topic)
        policy = await self._rules.auto_scale_policy(topic.namespace_path)
        self.settings.limits(policy).check_active(segments)
        now_ms = self._clock.now_ms()
        record = TopicRecord(
            Layout.initial(segments, now_ms=now_ms),
            incarnation=(now_ms << 10) | int(self._chance.random() * 1024),
            properties=dict(properties),
        )
        await self.records.create(topic, record)
        try:
            await self.wake(topic)
        except TopicGone:
            await self._rules.check_name(topic)  # that is why, as a rule
            raise
        await self.clear_name(topic)

    async def wake(self, topic: TopicName) -> None:
        async def work(leader: TopicController) -> None:
            await leader.wait_leading()
            await leader.look()
            if leader.is_over:
                raise NotLeading(f"{topic} was led by others meanwhile")

        await self.at_leader(topic, work)

    async def delete(self, topic: TopicName) -> None:
        """The life that it has now: one that is created while this is asked again is another."""
        operation_id = self.new_id()
        incarnation = (await self.record(topic)).incarnation

        async def work(leader: TopicController) -> None:
            await leader.ask(steps.DeleteCall(operation_id, incarnation))

        try:
            await self.at_leader(topic, work)
        except TopicGone:
            return  # it is gone: that is what was asked for

    async def record(self, topic: TopicName) -> TopicRecord:
        found = await self.records.find(topic)
        if found is None:
            raise TopicGone(f"{topic} does not exist")
        return found

    async def names(self, namespace: str, filters: Mapping[str, str]) -> list[str]:
        found = await self.records.all_of(namespace)
        return [str(topic) for topic, record in found.items() if filters.items() <= record.properties.items()]

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
        call = steps.SplitCall(operation_id or self.new_id(), segment_id, ways, points, reason)
        return await self.at_leader(topic, lambda leader: leader.ask(call))

    async def merge(
        self, topic: TopicName, segment_ids: tuple[int, ...], *, operation_id: str | None = None, reason: str = ""
    ) -> int:
        call = steps.MergeCall(operation_id or self.new_id(), segment_ids, reason)
        return await self.at_leader(topic, lambda leader: leader.ask(call))

    async def subscribe(self, topic: TopicName, name: str, kind: SubscriptionKind, start: Start) -> None:
        call = registering.SubscribeCall(self.new_id(), check_subscription_name(name), kind, start)
        await self.at_leader(topic, lambda leader: leader.ask_subscription(call))

    async def unsubscribe(self, topic: TopicName, name: str) -> None:
        call = registering.UnsubscribeCall(self.new_id(), name)

        async def work(leader: TopicController) -> None:
            await leader.wait_leading()
            registry = leader.registry
            if registry is not None and name not in registry.subscriptions:
                raise registering.UnknownSubscription(f"no subscription {name} on {topic}")
            await leader.ask_subscription(call)
            await leader.groups.forget(name)

        await self.at_leader(topic, work)

    async def move(self, topic: TopicName, name: str, publish_ms: int | None) -> None:
        call = registering.MoveCall(self.new_id(), name, publish_ms)
        await self.at_leader(topic, lambda leader: leader.ask_subscription(call))

    async def state(self, topic: TopicName) -> dict[str, Any]:
        return await self.at_leader(topic, _state)

    # consumers --------------------------------------------------------------------------------------------------------
    async def register(
        self, topic: TopicName, wish: Registration, link: ConsumerLink
    ) -> tuple[AssignedSegments, Sitting]:
        """The consumer's assignment, and its seat."""
        number = new_link()

        async def work(leader: TopicController) -> tuple[AssignedSegments, GroupCoordinator]:
            members = await self._members(leader, wish)
            return await members.register(wish.consumer, link, number, wish.held, wish.generation), members

        assigned, members = await self.at_leader(topic, work)
        return assigned, Sitting(members, wish.consumer, number)

    async def _members(self, leader: TopicController, wish: Registration) -> GroupCoordinator:
        await leader.wait_leading()
        subscription = leader.groups.ordered(wish.subscription)
        if subscription is None or subscription.kind is not wish.kind:
            name = check_subscription_name(wish.subscription)
            await leader.ask_subscription(registering.SubscribeCall(self.new_id(), name, wish.kind, wish.start))
            subscription = leader.groups.ordered(name)
        if subscription is None:
            raise NotLeading(f"subscription {wish.subscription} is being changed")
        return leader.groups.of(subscription)


async def _state(leader: TopicController) -> dict[str, Any]:
    await leader.wait_leading()
    return state_of(leader)
