"""The records of scalable topics in the metadata store, for the owners of their segments. Reads only."""

from __future__ import annotations

from collections import OrderedDict

from anabranch.broker.scalable_records import ScalableTopic
from anabranch.controller.record_codec import decode_record
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName


def topic_record_key(topic: TopicName) -> str:
    """Whatever the domain of the name: a path has one record."""
    twin = topic.scalable
    return f"/topics/{twin.namespace_path}/{twin.encoded_local}"


DECODED_MAX = 256


class StoredScalableRecords:
    """Implements `broker.scalable_records.ScalableRecords`. Read anew each time, decoded when it has changed: producers
    open a lane to every segment, and the record of a thousand of them takes milliseconds."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._decoded: OrderedDict[str, tuple[bytes, ScalableTopic | None]] = OrderedDict()

    async def read(self, topic: TopicName, *, is_fresh: bool = False) -> ScalableTopic | None:
        if is_fresh:
            await self._store.sync()
        key = topic_record_key(topic)
        found = await self._store.get(key)
        known = self._decoded.pop(key, None)
        if found is None:
            return None
        if known is None or known[0] != found.value:
            known = found.value, _decoded(topic, found.value)
        self._decoded[key] = known
        while len(self._decoded) > DECODED_MAX:
            self._decoded.popitem(last=False)
        return known[1]

    async def exists(self, topic: TopicName) -> bool:
        return await self._store.get(topic_record_key(topic)) is not None


def _decoded(topic: TopicName, value: bytes) -> ScalableTopic | None:
    """None for one that is being deleted: nobody attaches to it any more."""
    record = decode_record(value)
    if record.is_deleting:
        return None
    return ScalableTopic(topic.scalable, record.incarnation, record.layout, record.planned_children)
