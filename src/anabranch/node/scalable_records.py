"""The records of scalable topics in the metadata store, for the owners of their segments. Reads only."""

from __future__ import annotations

from anabranch.broker.scalable_records import ScalableTopic
from anabranch.controller.record_codec import decode_record
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName


def topic_record_key(topic: TopicName) -> str:
    """Whatever the domain of the name: a path has one record."""
    twin = topic.scalable
    return f"/topics/{twin.namespace_path}/{twin.encoded_local}"


class StoredScalableRecords:
    """Implements `broker.scalable_records.ScalableRecords`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, topic: TopicName) -> ScalableTopic | None:
        found = await self._store.get(topic_record_key(topic))
        if found is None:
            return None
        record = decode_record(found.value)
        return ScalableTopic(topic.scalable, record.incarnation, record.layout, record.planned_children)

    async def exists(self, topic: TopicName) -> bool:
        return await self._store.get(topic_record_key(topic)) is not None
