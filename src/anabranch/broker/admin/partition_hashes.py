"""The partition hash of regular topics: by which hash their producers map keys to partitions (`model.partition_hash`).

The property `anabranch.partition-hash` of a partitioned topic decides. Without it, the hash is found from the keys of
the newest entries of some partitions. Owners of partitions read only the metadata of entries; batches are not opened,
because an entry has the key of its first message. Findings that layouts use are cached.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.topic_maintenance import TopicFinder
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.services import Services
from anabranch.broker.topic.topic import Topic
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.model.partition_hash import (
    PARTITION_HASH_PROPERTY,
    HashFinding,
    PartitionHash,
    Verdict,
    find_partition_hash,
)
from anabranch.model.position import EARLIEST, Position
from anabranch.protocol import entry as entries
from anabranch.protocol.errors import ProtocolError
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

ENTRIES_MAX = 64
"""Newest entries that are read of one partition."""
READ_BYTES_MAX = 1 << 20
PARTITIONS_MAX = 16
"""Partitions that are examined, evenly spread; unloaded ones are loaded for it."""
FOUND_SECONDS = 60.0
"""How long a finding is used. One that names no hash: `UNKNOWN_SECONDS`, because the next keys may decide."""
UNKNOWN_SECONDS = 2.0
EXAMINE_SECONDS = 5.0
"""Longest examination. A client waits for its first layout meanwhile."""
CACHED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TopicHash:
    """The hash of a topic and where it is from."""

    partition_hash: PartitionHash | None  # None: not known; clients use murmur3-32
    source: str  # "property", "keys" or "none"
    finding: HashFinding

    def as_json(self) -> dict[str, Any]:
        return {
            "hash": None if self.partition_hash is None else self.partition_hash.value,
            "source": self.source,
            "verdict": self.finding.verdict.value,
            "keys": self.finding.keys,
            "matches": {one.value: count for one, count in self.finding.matches.items()},
        }


@dataclass(frozen=True, slots=True)
class _Cached:
    counts: tuple[int, ...]
    finding: HashFinding
    until: float


class PartitionHashes:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._finder = TopicFinder(services)
        self._routing = OwnerRouting(services)
        self._cached: OrderedDict[TopicName, _Cached] = OrderedDict()

    async def of_topic(self, topic: TopicName) -> PartitionHash | None:
        """The hash that a layout names. The cache is used, and a failed examination means that it is not known."""
        record = await self._services().catalog.partitioned_record(topic)
        if (fixed := _by_property(topic, record)) is not None:
            return fixed
        counts = _counts(record)
        if not counts or counts[0] < 2:
            return None
        try:
            return (await self._cached_finding(topic, counts)).partition_hash
        except (Error, TimeoutError) as error:
            reason = error.reason if isinstance(error, Error) else "no answer in time"
            log.warning("partition hash not found", extra={"topic": str(topic), "reason": reason})
            return None

    async def report(self, topic: TopicName, partitions_max: int = PARTITIONS_MAX) -> TopicHash:
        """Examines the topic now, on any broker; for administrators and the check of a migration."""
        record = await self._services().catalog.partitioned_record(topic)
        finding = await self._examined(topic, _counts(record), partitions_max)
        if (fixed := _by_property(topic, record)) is not None:
            return TopicHash(fixed, "property", finding)
        found = finding.partition_hash
        return TopicHash(found, "none" if found is None else "keys", finding)

    async def _cached_finding(self, topic: TopicName, counts: tuple[int, ...]) -> HashFinding:
        clock, known = self._services().clock, self._cached.get(topic)
        if known is not None and known.counts == counts and known.until > clock.monotonic():
            return known.finding
        async with asyncio.timeout(EXAMINE_SECONDS):
            finding = await self._examined(topic, counts, PARTITIONS_MAX)
        if known is not None and finding.verdict is not Verdict.FOUND and known.finding.partition_hash is not None:
            finding = known.finding  # a hash that was named stays until another one is found
        seconds = UNKNOWN_SECONDS if finding.partition_hash is None else FOUND_SECONDS
        self._cached[topic] = _Cached(counts, finding, clock.monotonic() + seconds)
        self._cached.move_to_end(topic)
        while len(self._cached) > CACHED_MAX:
            self._cached.popitem(last=False)
        return finding

    async def _examined(self, topic: TopicName, counts: tuple[int, ...], partitions_max: int) -> HashFinding:
        if not counts or counts[0] < 2:
            return HashFinding(Verdict.UNKNOWN)
        step = max(1, counts[0] // partitions_max)
        chosen = list(range(0, counts[0], step))[:partitions_max]
        keys = await self._routing.call_each([topic.partition(index) for index in chosen], self.recent_keys)
        return find_partition_hash(dict(zip(chosen, keys, strict=True)), counts)

    @peer_call("partitions.recent_keys")
    async def recent_keys(self, topic: str) -> list[str]:
        """Distinct keys of the newest entries of one partition, as they are on the wire."""
        services, name = self._services(), TopicName.parse(topic)
        if services.topics.loaded(name) is None and not await services.catalog.exists(name):
            return []  # partitions are created by their first use, and this is none
        try:
            found = await self._finder.one(topic)
        except TopicNotFound:
            return []
        keys: dict[str, None] = {}
        read_bytes, position, last = 0, _newest(found, ENTRIES_MAX), found.log.last_position
        while position is not None and read_bytes < READ_BYTES_MAX:
            some = await found.log.read(position, ENTRIES_MAX, READ_BYTES_MAX - read_bytes, last)
            for one in some:
                read_bytes += len(one.payload)
                if (key := _key(one.payload)) is not None:
                    keys[key] = None
            position = None
            if some and some[-1].position < last:
                position = found.log.after(some[-1].position)
        return list(keys)


def _newest(topic: Topic, count: int) -> Position | None:
    """The position of the `count`-th newest entry, or of the first one; None: the topic is empty."""
    found = None
    if topic.log.last_position == EARLIEST:
        return None
    for info in reversed(list(topic.log.chain)):
        if not info.entries:
            continue
        found = Position(info.id, max(0, info.entries - count))
        count -= info.entries
        if count <= 0:
            break
    return found


def _key(payload: Any) -> str | None:
    """The key of an entry; markers and unreadable entries have none."""
    try:
        of = entries.metadata(payload)
    except ProtocolError:
        return None
    is_keyed = of.HasField("partition_key") and not of.HasField("marker_type")
    return of.partition_key if is_keyed and of.partition_key else None


def _counts(record: dict[str, Any]) -> tuple[int, ...]:
    """The number of partitions, then earlier numbers, newest first."""
    count = int(record.get("partitions", 0))
    return (count, *map(int, record.get("earlierPartitions", ()))) if count else ()


def _by_property(topic: TopicName, record: dict[str, Any]) -> PartitionHash | None:
    named = record.get("properties", {}).get(PARTITION_HASH_PROPERTY)
    if named is None:
        return None
    try:
        return PartitionHash(named)
    except ValueError:
        log.warning(
            "unknown hash in a topic property, ignored",
            extra={"topic": str(topic), "property": PARTITION_HASH_PROPERTY, "value": named},
        )
        return None
