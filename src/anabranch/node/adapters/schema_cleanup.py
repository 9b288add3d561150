"""Deletes the schema of a topic that is deleted because it was inactive."""

from __future__ import annotations

from anabranch.broker.schemas.registry import SchemaRegistry
from anabranch.model.names import TopicName


class SchemaCleanup:
    """Implements `InactiveTopicListener`."""

    def __init__(self, schemas: SchemaRegistry) -> None:
        self._schemas = schemas

    async def before_inactive_delete(self, name: TopicName) -> None:
        """A partition has no schema: it uses the schema of its partitioned topic."""
        if name.partition_index < 0:
            await self._schemas.delete(name, force=True)
