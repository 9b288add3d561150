"""Deletes schema and policies of a topic that is deleted because it was inactive."""

from __future__ import annotations

from anabranch.broker.catalog.topic_policy_records import TopicPolicyRecords
from anabranch.broker.schemas.registry import SchemaRegistry
from anabranch.model.names import TopicName


class InactiveCleanup:
    """Implements `InactiveTopicListener`."""

    def __init__(self, schemas: SchemaRegistry, policies: TopicPolicyRecords) -> None:
        self._schemas, self._policies = schemas, policies

    async def before_inactive_delete(self, name: TopicName) -> None:
        """A partition has neither: it uses those of its partitioned topic."""
        if name.partition_index < 0:
            await self._schemas.delete(name, force=True)
            await self._policies.forget(name)
