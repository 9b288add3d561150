"""Policies of single topics for administrators. Any broker can be called; all apply a change within a moment.

A policy is a row of `catalog.topic_policies`. The topic is a regular, partitioned or scalable one; its partitions or
segments have its policies. A change is applied to the topics that are loaded here before the call returns; other
brokers follow the store's change hints (`catalog_watch`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.broker.catalog.topic_policies import (
    MAX_MESSAGE_SIZE,
    REPLICATION,
    RETENTION,
    TOPIC_POLICIES,
    Defaults,
    TopicPolicy,
)
from anabranch.broker.catalog.topic_policy_records import Level, TopicOverrides
from anabranch.broker.errors import NamespaceNotFound, TopicNotFound
from anabranch.broker.schemas.policy import with_strategy
from anabranch.broker.services import Services
from anabranch.model.errors import NotAllowed
from anabranch.model.names import Domain, TopicName


class TopicPolicyAdmin:
    def __init__(
        self,
        services: Callable[[], Services],
        namespaces: NamespaceAdmin,
        scalable: ScalableAdmin,
        defaults: Callable[[], Defaults],
    ) -> None:
        self._services, self._namespaces, self._scalable, self._defaults = services, namespaces, scalable, defaults

    async def get(self, topic: str, policy: TopicPolicy, entry: str | None, *, is_global: bool) -> Any:
        """What the topic itself sets; None if nothing."""
        name = await self._existing(topic)
        overrides = await self._services().catalog.topic_policies.of(name)
        return policy.shown(overrides.part(is_global=is_global), entry)

    async def applied(self, topic: str, policy: TopicPolicy, entry: str | None) -> tuple[Any, Level]:
        """The value in force, and the level that sets it."""
        name = await self._existing(topic)
        overrides, namespace, defaults = await self._levels(name)
        return policy.resolve(overrides, namespace, defaults, entry)

    async def all_applied(self, topic: str) -> dict[str, dict[str, Any]]:
        """By policy: `value`, `level` (topic, topic-global, namespace or broker) and `enforced`. Without those of
        single subscriptions that no level sets."""
        name = await self._existing(topic)
        overrides, namespace, defaults = await self._levels(name)
        shown: dict[str, dict[str, Any]] = {}
        for policy in TOPIC_POLICIES:
            value, level = policy.resolve(overrides, namespace, defaults)
            is_enforced = policy.is_enforced and (policy.on_segments or not defaults.is_scalable)
            shown[policy.path] = {"value": value, "level": level.value, "enforced": is_enforced}
        return shown

    async def set(self, topic: str, policy: TopicPolicy, entry: str | None, value: Any, *, is_global: bool) -> None:
        """`value` as JSON; None removes it. Raises BadRequest or NotAllowed for a bad one."""
        name = await self._existing(topic)
        services = self._services()
        if policy.rule.key == REPLICATION and value is not None:
            names = policy.parsed(value, entry, {})
            await self._namespaces.check_replication(name.tenant, names)
        namespace = (await services.catalog.policies(name.namespace_path)).record

        def change(before: TopicOverrides) -> TopicOverrides:
            parsed = None if value is None else policy.parsed(value, entry, before.over(namespace))
            self._check_size(policy, parsed)
            part = before.part(is_global=is_global)
            return before.with_part(policy.stored(part, parsed, entry), is_global=is_global)

        await services.catalog.topic_policies.change(name, change)
        await self._changed(name)
        if policy.rule.key == RETENTION and name.is_persistent and await services.catalog.is_scalable(name):
            await self._scalable.wake(str(name.scalable))  # its next garbage collection may be due days later

    async def remove_all(self, topic: str) -> None:
        """Also the global ones."""
        name = await self._existing(topic)
        await self._services().catalog.topic_policies.forget(name)
        await self._changed(name)

    async def _changed(self, name: TopicName) -> None:
        services = self._services()
        if not await self._exists(name):  # deleted meanwhile: a new topic of the name must not inherit them
            await services.catalog.topic_policies.forget(name)
            raise TopicNotFound(f"Topic {name} not found")
        await services.topics.apply_topic_policies(name)

    def _check_size(self, policy: TopicPolicy, value: Any) -> None:
        most = self._defaults().broker.message_bytes_max
        if policy.rule.key == MAX_MESSAGE_SIZE and value is not None and value > most:
            raise NotAllowed(f"maxMessageSize must be between 0 and the broker's {most}")

    async def _levels(self, name: TopicName) -> tuple[TopicOverrides, dict[str, Any], Defaults]:
        catalog = self._services().catalog
        namespace = with_strategy((await catalog.policies(name.namespace_path)).record)
        is_scalable = name.is_persistent and await catalog.is_scalable(name)
        return await catalog.topic_policies.of(name), namespace, replace(self._defaults(), is_scalable=is_scalable)

    async def _existing(self, topic: str) -> TopicName:
        name = TopicName.parse(topic)
        if name.partition_index >= 0:
            raise NotAllowed("Not allowed to set/get topic policy for a partition")
        try:
            await self._services().catalog.policies(name.namespace_path)
        except NamespaceNotFound as error:
            raise NamespaceNotFound("Namespace not found") from error
        if not await self._exists(name):
            raise TopicNotFound(f"Topic {name} not found")
        return name

    async def _exists(self, name: TopicName) -> bool:
        """A non-persistent topic that is not partitioned has no record: it exists when it is used."""
        catalog = self._services().catalog
        if not name.is_persistent:
            return True
        if name.domain is not Domain.TOPIC and (await catalog.exists(name) or await catalog.partitions(name)):
            return True
        return await catalog.is_scalable(name)
