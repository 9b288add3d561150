"""Reads: one record, the names below a key, ordered walks over all shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, is_retryable, port_error
from anabranch.metadata.oxia.key_order import PageMerge, behind, behind_name, below, child_name
from anabranch.metadata.oxia.server_channel import LIST, READ, SCAN
from anabranch.metadata.oxia.shard_leaders import Backoff, Cluster

STEPS_MAX = 64
"""How many names are stepped over one by one before the next page of keys is read."""


class Reader:
    """Keys are the server's, with the prefix."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def record(self, key: str, until: float) -> wire.Record | None:
        shard_id = self._cluster.shards.of_key(key).id
        found = await self._get(shard_id, wire.Get(key=key, include_value=True), until)
        return None if found.status == wire.KEY_NOT_FOUND else found

    async def names(self, parent: str, until: float) -> set[str]:
        """The names directly below, including those that only deeper keys imply."""
        shards = self._cluster.shards.ids
        found = await asyncio.gather(*(self._names_on(shard, parent, until) for shard in shards))
        return set().union(*found)

    async def count(self, parent: str) -> int:
        """All keys below `parent`, from listings without values."""
        start, end = below(parent)
        return sum(await asyncio.gather(*(self._count_on(shard, start, end) for shard in self._cluster.shards.ids)))

    async def _count_on(self, shard_id: int, start: str, end: str) -> int:
        request, count = wire.RangeRequest(shard=shard_id, start=start, end=end), 0
        async with aclosing(self._cluster.leader(shard_id).stream(LIST, request, wire.ListResponse)) as stream:
            while True:
                left_s = self._cluster.deadline_s
                try:
                    response = await self._cluster.within(left_s, anext(stream, None), "no page received")
                except CallFailed as failed:
                    raise port_error(failed, "counting") from failed
                if response is None:
                    return count
                count += len(response.keys)

    async def walk(self, parent: str) -> AsyncGenerator[list[wire.Record], None]:
        """All below `parent`, in key order, page by page. The deadline applies to each page."""
        start, end = below(parent)
        shards = self._cluster.shards.ids
        merge: PageMerge[wire.Record] = PageMerge(shards)
        async with AsyncExitStack() as stack:
            pages = {
                shard: await stack.enter_async_context(aclosing(self._pages(shard, start, end))) for shard in shards
            }
            while wanted := merge.wants():
                # sequentially: the other streams are buffered meanwhile
                for shard in wanted:
                    page = await anext(pages[shard], None)
                    if page is None:
                        merge.end(shard)
                    else:
                        merge.add(shard, ((record.key, record) for record in page))
                if ready := merge.take():
                    yield ready

    async def _get(self, shard_id: int, get: wire.Get, until: float) -> wire.Record:
        request = wire.ReadRequest(shard=shard_id, gets=[get])

        async def attempt() -> wire.Record:
            answers: list[wire.Record] = []
            async with aclosing(self._cluster.leader(shard_id).stream(READ, request, wire.ReadResponse)) as stream:
                async for response in stream:
                    answers.extend(response.gets)
            if len(answers) != 1:
                raise AnswerUnreadable(f"{len(answers)} answers to one get")
            return answers[0]

        return await self._cluster.repeat(until, attempt, "reading")

    async def _names_on(self, shard_id: int, parent: str, until: float) -> set[str]:
        """Usually one listing. If it has more than one page, large subtrees are stepped over by name."""
        names: set[str] = set()
        start: str | None = below(parent)[0]
        while start is not None:
            page, is_all = await self._list_page(shard_id, start, below(parent)[1], until)
            names.update(child_name(parent, key) for key in page)
            if is_all:
                break
            start = behind(page[-1])
            if "/" in page[-1][len(parent) + 1 :]:  # past the direct children
                start = await self._step(shard_id, parent, page[-1], names, until)
        return names

    async def _step(self, shard_id: int, parent: str, last: str, names: set[str], until: float) -> str | None:
        """Collect the next names with one read each. Returns where the listing continues, None at the end."""
        first = below(parent)[0]
        for _ in range(STEPS_MAX):
            bound = behind_name(parent, child_name(parent, last))
            found = await self._get(shard_id, wire.Get(key=bound, comparison=wire.CEILING), until)
            if found.status == wire.KEY_NOT_FOUND or not found.key.startswith(first):
                return None
            last = found.key
            names.add(child_name(parent, last))
        return behind_name(parent, child_name(parent, last))

    async def _list_page(self, shard_id: int, start: str, end: str, until: float) -> tuple[list[str], bool]:
        """The first page of keys, and whether it is the only one."""
        request = wire.RangeRequest(shard=shard_id, start=start, end=end)

        async def attempt() -> tuple[list[str], bool]:
            keys: list[str] = []
            async with aclosing(self._cluster.leader(shard_id).stream(LIST, request, wire.ListResponse)) as stream:
                async for response in stream:
                    if keys:
                        return keys, False
                    keys.extend(response.keys)
            return keys, True

        return await self._cluster.repeat(until, attempt, "listing")

    async def _pages(self, shard_id: int, start: str, end: str) -> AsyncGenerator[list[wire.Record], None]:
        """The records of a range on one shard; after an interruption it continues after the last one."""
        backoff = Backoff(self._cluster.clock)
        until = self._cluster.deadline()
        while True:
            try:
                request = wire.RangeRequest(shard=shard_id, start=start, end=end)
                async with aclosing(self._cluster.leader(shard_id).stream(SCAN, request, wire.ScanResponse)) as stream:
                    while True:
                        left_s = until - self._cluster.clock.monotonic()
                        response = await self._cluster.within(left_s, anext(stream, None), "no page received")
                        if response is None:
                            return
                        if response.records:
                            yield list(response.records)
                            start = behind(response.records[-1].key)
                        until = self._cluster.deadline()
                        backoff.reset()
            except CallFailed as failed:
                if not is_retryable(failed) or self._cluster.clock.monotonic() >= until:
                    raise port_error(failed, "scanning") from failed
            except AnswerUnreadable:
                raise
            except StoreUnavailable:
                if self._cluster.clock.monotonic() >= until:
                    raise
            await backoff.wait()
