"""Auto-scale policies (PIP-483) for administrators: of one topic, and of a namespace.

What is set is one level, a JSON object with some fields. What is *applied* is the policy in force, with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.scalable_topics import backlog_of, led, scalable_name
from anabranch.broker.errors import SubscriptionNotFound
from anabranch.broker.services import Services
from anabranch.controller.interface import ScalableTopics
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import NotAllowed

NAMESPACE_KEY = "scalableTopicAutoScalePolicy"


class AutoScaleAdmin:
    def __init__(self, services: Callable[[], Services], namespaces: NamespaceAdmin) -> None:
        self._services, self._namespaces = services, namespaces
        self._routing = OwnerRouting(services)

    def _topics(self) -> ScalableTopics:
        found = self._services().scalable
        if found is None:
            raise NotAllowed("scalable topics are switched off on this broker")
        return found

    # -- of a topic

    async def topic_policy(self, topic: str, applied: bool) -> dict[str, Any] | None:
        """None: the topic sets nothing."""
        name = scalable_name(topic)
        if applied:
            return (await self._topics().auto_scale_policy(name.namespace_path, name)).to_json()
        found = (await self._topics().record(name)).auto_scale_policy
        return None if found is None else dict(found)

    async def set_topic_policy(self, topic: str, policy: Mapping[str, Any] | None) -> None:
        """Replaces what the topic sets; None removes it."""
        await self._routing.call_owner(
            scalable_name(topic), self.set_topic_policy_at_leader, policy=None if policy is None else dict(policy)
        )

    @peer_call("scalable.set_auto_scale_policy_here")
    async def set_topic_policy_at_leader(self, topic: str, policy: Mapping[str, Any] | None) -> None:
        await led(topic, lambda name: self._topics().set_auto_scale_policy(name, policy))

    # -- what auto-scaling does

    async def status(self, topic: str) -> dict[str, Any]:
        """`policy`, its `levels`, `loads` by segment, what would be done `now` and why not more, the last `decisions`,
        newest first."""
        found: dict[str, Any] = await self._routing.call_owner(scalable_name(topic), self.status_at_leader)
        return found

    @peer_call("scalable.auto_scale_status_here")
    async def status_at_leader(self, topic: str) -> dict[str, Any]:
        return await led(topic, lambda name: self._topics().auto_scale_status(name))

    async def try_policy(self, topic: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        """The decision that this policy would make now; nothing is done."""
        found: dict[str, Any] = await self._routing.call_owner(
            scalable_name(topic), self.try_policy_at_leader, policy=dict(policy)
        )
        return found

    @peer_call("scalable.try_auto_scale_here")
    async def try_policy_at_leader(self, topic: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        return await led(topic, lambda name: self._topics().try_auto_scale(name, policy))

    async def metric(self, topic: str, subscription: str | None) -> dict[str, int]:
        """Numbers for autoscalers of consumers: `activeSegments`, `backlog` in messages (of the subscription, or of the
        one with most) and `wantedConsumers`: one for each segment that has something to read, and each active one."""
        name = scalable_name(topic)
        record = await self._topics().record(name)
        figures = await self._topics().figures(name, record)
        names = {one for stats in figures.values() for one in stats.subscriptions}
        if subscription is not None and subscription not in names:
            raise SubscriptionNotFound(f"no subscription {subscription} on {topic}")
        backlogs = [backlog_of(figures, one) for one in (names if subscription is None else {subscription})]
        backlog = max(backlogs, key=lambda one: sum(one.values()), default={})
        active = {str(one.segment_id) for one in record.layout.active}
        unread = {number for number, messages in backlog.items() if messages}
        return {
            "activeSegments": len(active),
            "backlog": sum(backlog.values()),
            "wantedConsumers": len(active | unread),
        }

    # -- of a namespace

    async def namespace_policy(self, namespace: str, applied: bool) -> dict[str, Any] | None:
        """None: the namespace sets nothing."""
        found = (await self._namespaces.record(namespace)).get(NAMESPACE_KEY)
        if applied:
            return (await self._topics().auto_scale_policy(namespace)).to_json()
        return dict(found) if isinstance(found, Mapping) else None

    async def set_namespace_policy(self, namespace: str, policy: Mapping[str, Any] | None) -> None:
        """Replaces what the namespace sets; None removes it."""
        await self._namespaces.record(namespace)
        await self._topics().check_namespace_policy(namespace, policy)

        def change(record: dict[str, Any]) -> dict[str, Any]:
            kept = {key: value for key, value in record.items() if key != NAMESPACE_KEY}
            return kept if policy is None else {**kept, NAMESPACE_KEY: dict(policy)}

        await self._namespaces.change(namespace, change)
