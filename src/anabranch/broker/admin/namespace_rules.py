"""The controller's ports to namespaces and regular topics: `Rules` and `TopicActivation`, on the catalog.

Calls that need the leader of a topic go through `ScalableAdmin`, which routes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.broker.admin.auto_scale import NAMESPACE_KEY
from anabranch.broker.admin.partition_hashes import PartitionHashes
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.services import Services
from anabranch.controller.interface import RegularTopic, regular_name
from anabranch.model.errors import AlreadyExists
from anabranch.model.names import TopicName


class ScalableRules:
    def __init__(self, services: Callable[[], Services], admin: ScalableAdmin, auto_create_segments: int) -> None:
        self._services, self._admin, self._auto_create_segments = services, admin, auto_create_segments
        self._hashes = PartitionHashes(services)

    # -- `controller.rules.Rules`

    async def check_may_create(self, topic: TopicName) -> None:
        await self._services().catalog.check_room(topic.namespace_path, 0)
        await self.check_name(topic)

    async def check_name(self, topic: TopicName) -> None:
        catalog, regular = self._services().catalog, regular_name(topic)
        if await catalog.is_regular(regular):
            raise AlreadyExists(f"{regular} is a regular topic: migrate it, or use another name")

    async def clear_name(self, topic: TopicName) -> None:
        await self._services().catalog.clear_name(regular_name(topic))

    async def hold_partitions(self, topic: TopicName, partitions: int) -> bool:
        catalog, name = self._services().catalog, regular_name(topic)
        if not await catalog.hold_partitions(name, partitions):
            return False
        return partitions > 0 or await catalog.exists(name)

    async def may_auto_create(self, namespace: str) -> bool:
        return (await self._services().catalog.effective(namespace)).auto_create_topics

    async def auto_scale_policy(self, namespace: str) -> Mapping[str, Any] | None:
        found = (await self._services().catalog.policies(namespace)).other.get(NAMESPACE_KEY)
        return found if isinstance(found, Mapping) else None

    async def may_auto_subscribe(self, topic: TopicName) -> bool:
        return (await self._services().catalog.effective_of(topic)).auto_create_subscriptions

    async def subscriptions_max(self, topic: TopicName) -> int:
        return (await self._services().catalog.effective_of(topic)).subscriptions_max

    async def retention(self, topic: TopicName) -> tuple[int, int] | None:
        found = (await self._services().catalog.record_of(topic)).get("retention_policies")
        if not isinstance(found, Mapping):
            return None
        return int(found.get("retentionTimeInMinutes", 0)), int(found.get("retentionSizeInMB", 0))

    # -- `controller.layout_watches.TopicActivation`

    async def create_by_use(self, topic: TopicName) -> None:
        if not await self.may_auto_create(topic.namespace_path):
            raise TopicNotFound(f"{topic} does not exist, and topics are not created automatically")
        await self._admin.create(str(topic), self._auto_create_segments, {})

    async def activate(self, topic: TopicName) -> None:
        await self._admin.wake(str(topic))

    async def regular(self, topic: TopicName, *, create: bool = False) -> RegularTopic | None:
        catalog, name = self._services().catalog, regular_name(topic)
        if create:
            await catalog.partitions_or_create(name, auto_create=True)
        if not await catalog.is_regular(name):
            return None
        return RegularTopic(name, await catalog.partitions(name), await self._hashes.of_topic(name))
