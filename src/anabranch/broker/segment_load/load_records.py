"""Load reports in the metadata store: one small record per active segment, at the path of PIP-483."""

from __future__ import annotations

from anabranch.metadata.interface import ANY, KeyMissing, MetadataStore
from anabranch.model.autoscale.load import BadLoadReport, SegmentLoad, decode_load, encode_load
from anabranch.model.metadata_keys import segment_load_key
from anabranch.model.names import TopicName
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)


class LoadRecords:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, topic: TopicName, segment_id: int) -> SegmentLoad | None:
        """Raises StoreUnavailable. A record that cannot be read counts as missing, because the next report
        replaces it."""
        found = await self._store.get(segment_load_key(topic, segment_id))
        if found is None:
            return None
        try:
            return decode_load(found.value)
        except BadLoadReport as error:
            log.warning(
                "load report of a segment cannot be read",
                extra={"topic": str(topic), "segment": segment_id, "reason": error.reason},
            )
            return None

    async def write(self, topic: TopicName, segment_id: int, load: SegmentLoad) -> None:
        await self._store.put(segment_load_key(topic, segment_id), encode_load(load), expected=ANY)

    async def remove(self, topic: TopicName, segment_id: int) -> None:
        try:
            await self._store.delete(segment_load_key(topic, segment_id), expected=ANY)
        except KeyMissing:
            return
