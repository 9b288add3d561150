"""What auto-scaling reads and writes in the metadata store: load reports of segments, and past decisions.

/topics/T/N/NAME/segments/ID/load     written by the owner of the segment, read and removed by the leader
/topics/T/N/NAME/autoscale            past decisions and failed attempts, written by the leader; by a deposed one, too
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.metadata.interface import ABSENT, ANY, Expected, KeyMissing, MetadataStore, VersionMismatch
from anabranch.model.autoscale.history import BadHistory, History, decode_history, encode_history
from anabranch.model.autoscale.load import BadLoadReport, SegmentLoad, decode_load
from anabranch.model.metadata_keys import loaded_segment_at, scalable_topic_key, segment_load_key, segment_loads_key
from anabranch.model.names import TopicName
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)


def history_key(topic: TopicName) -> str:
    return f"{scalable_topic_key(topic)}/autoscale"


class ScalingRecords:
    """All calls raise StoreUnavailable."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def loads(self, topic: TopicName) -> dict[int, SegmentLoad]:
        """By segment id. A report that cannot be read counts as missing; its owner writes a new one."""
        found: dict[int, SegmentLoad] = {}
        async for key, stored in self._store.scan(segment_loads_key(topic)):
            number = loaded_segment_at(key, topic)
            if number is None:
                continue
            try:
                found[number] = decode_load(stored.value)
            except BadLoadReport as error:
                log.warning(
                    "load report of a segment cannot be read",
                    extra={"topic": str(topic), "segment": number, "reason": error.reason},
                )
        return found

    async def forget_loads(self, topic: TopicName, segment_ids: Iterable[int]) -> None:
        for number in segment_ids:
            await self._delete(segment_load_key(topic, number))

    async def history(self, topic: TopicName) -> tuple[History, Expected]:
        """With the version that `save_history` expects."""
        found = await self._store.get(history_key(topic))
        if found is None:
            return History(), ABSENT
        try:
            return decode_history(found.value), found.version
        except BadHistory as error:
            log.warning("past decisions cannot be read", extra={"topic": str(topic), "reason": error.reason})
            return History(), found.version

    async def save_history(self, topic: TopicName, history: History, expected: Expected) -> tuple[History, Expected]:
        """Returns what is stored now: if another leader has written meanwhile, its decisions and these."""
        while True:
            try:
                version = await self._store.put(history_key(topic), encode_history(history), expected=expected)
            except VersionMismatch:
                stored, expected = await self.history(topic)
                history = history.joined(stored)
            else:
                return history, version

    async def forget(self, topic: TopicName) -> None:
        """The topic is being deleted."""
        await self.forget_loads(topic, await self.loads(topic))
        await self._delete(history_key(topic))

    async def _delete(self, key: str) -> None:
        try:
            await self._store.delete(key, expected=ANY)
        except KeyMissing:
            return
