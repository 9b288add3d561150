"""Auto-scale policies (PIP-483) for administrators: of one topic, and of a namespace.

What is set is one level, a JSON object with some fields. What is *applied* is the policy in force, with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.scalable_topics import led, scalable_name
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
