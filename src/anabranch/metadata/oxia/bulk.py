"""Bulk writes: grouped by shard, in batches of the size that shard writers send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.metadata.envelope import wrap_moved, wrap_raw
from anabranch.metadata.interface import Item, OutcomeUnknown, StoreIncompatible, StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.shard_leaders import Cluster
from anabranch.metadata.oxia.shard_writer import BATCH_BYTES_MAX, BATCH_WRITES_MAX, ShardWriter
from anabranch.metadata.oxia.shards import ShardMap

GROUPS_MAX = 32  # pending at once
BULK_DEADLINES = 3  # times the deadline of a single write, because a server may pause after many megabytes


@dataclass(slots=True)
class ShardWrites:
    """Writes of one shard that are sent together."""

    shard: int
    puts: list[wire.Put] = field(default_factory=list)
    deletes: list[wire.Delete] = field(default_factory=list)


def group_by_shard(shards: ShardMap, writes: Iterable[wire.Put | wire.Delete]) -> Iterator[ShardWrites]:
    """Group by shard. A group is complete when it is full, or before a key would occur twice in it."""
    open_groups: dict[int, tuple[ShardWrites, set[str], list[int]]] = {}
    for write in writes:
        shard = shards.of_key(write.key).id
        size = len(write.key) + 16 + (len(write.value) if isinstance(write, wire.Put) else 0)
        group, keys, used = open_groups.setdefault(shard, (ShardWrites(shard), set(), [0]))
        if keys and (write.key in keys or len(keys) >= BATCH_WRITES_MAX or used[0] + size > BATCH_BYTES_MAX):
            yield group
            open_groups[shard] = group, keys, used = ShardWrites(shard), set(), [0]
        keys.add(write.key)
        used[0] += size
        if isinstance(write, wire.Put):
            group.puts.append(write)
        else:
            group.deletes.append(write)
    for group, _, _ in open_groups.values():
        yield group


class BulkWriter:
    def __init__(self, cluster: Cluster, prefix: str, writers: Mapping[int, ShardWriter]) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._writers = writers

    async def write(self, items: Sequence[Item], *, preserve: bool) -> None:
        for answer in await self._send(self._put(item, preserve) for item in items):
            for put in answer.puts:
                if put.status != wire.OK:
                    raise StoreIncompatible(f"the server answered a bulk put with status {put.status}")

    async def delete(self, keys: Sequence[str]) -> None:
        await self._send(wire.Delete(key=self._prefix + key) for key in keys)

    def _put(self, item: Item, preserve: bool) -> wire.Put:
        key, given = item
        if preserve:
            value = wrap_moved(given.value, given.version, given.created_ms, given.modified_ms)
        else:
            value = wrap_raw(given.value)
        return wire.Put(key=self._prefix + key, value=value)

    async def _send(self, writes: Iterable[wire.Put | wire.Delete]) -> list[wire.WriteResponse]:
        """Send all groups. If one fails, the others are awaited too, so that no write is left pending."""
        permits = asyncio.Semaphore(GROUPS_MAX)
        tasks: list[asyncio.Future[wire.WriteResponse]] = []

        async def send(group: ShardWrites) -> wire.WriteResponse:
            try:
                writer = self._writers.get(group.shard)
                if writer is None:
                    raise StoreUnavailable(f"Oxia shard {group.shard} no longer exists")
                until = self._cluster.clock.monotonic() + BULK_DEADLINES * self._cluster.deadline_s
                return await writer.write(group.puts, group.deletes, until)
            finally:
                permits.release()

        try:
            for group in group_by_shard(self._cluster.shards, writes):
                await permits.acquire()
                tasks.append(asyncio.ensure_future(send(group)))
            results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()
        failed = [result for result in results if isinstance(result, BaseException)]
        for error in failed:
            if isinstance(error, OutcomeUnknown):
                raise error
        if failed:
            raise failed[0]
        return [result for result in results if not isinstance(result, BaseException)]
