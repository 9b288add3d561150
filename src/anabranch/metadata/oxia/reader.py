"""Reads of all kinds: one record, the names below a key, ordered walks over all shards. Knows no logical versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, as_error, is_worth_repeating
from anabranch.metadata.oxia.key_order import PageMerge, behind, behind_name, below, child_name
from anabranch.metadata.oxia.server_channel import LIST, READ, SCAN
from anabranch.metadata.oxia.shard_leaders import Cluster, Pauses

STEPS_MAX = 64
"""How many names are skipped over one by one before the next page of keys is read."""


class Reader:
    """Keys here are those of the server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def record(self, key: str, until: float) -> wire.Record | None:
        shard_id = self._cluster.shards.of_key(key).id
        found = await self._get(shard_id, wire.Get(key=key, include_value=True), until)
        return None if found.status == wire.KEY_NOT_FOUND else found

    async def names(self, parent: str, until: float) -> set[str]:
        """The names directly below, also those that only deeper keys imply."""
        shards = self._cluster.shards.ids
        found = await asyncio.gather(*(self._names_on(shard, parent, until) for shard in shards))
        return set().union(*found)

    async def walk(self, parent: str) -> AsyncGenerator[list[wire.Record], None]:
        """All below `parent`, in the order of keys, page by page. Each page has a deadline, not the whole."""
        start, end = below(parent)
        shards = self._cluster.shards.ids
        merge: PageMerge[wire.Record] = PageMerge(shards)
        async with AsyncExitStack() as stack:
            pages = {
                shard: await stack.enter_async_context(aclosing(self._pages(shard, start, end))) for shard in shards
            }
            while wanted := merge.wants():
                # one after the other: the streams behind them fill up meanwhile
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
            async with aclosing(self._cluster.leader(shard_id).flow(READ, request, wire.ReadResponse)) as flow:
                async for response in flow:
                    answers.extend(response.gets)
            if len(answers) != 1:
                raise AnswerUnreadable(f"{len(answers)} answers to one get")
            return answers[0]

        return await self._cluster.repeat(until, attempt, "reading")

    async def _names_on(self, shard_id: int, parent: str, until: float) -> set[str]:
        """Mostly one listing. Where it does not end with its first page, big subtrees are stepped over by name."""
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
        """Collect the next names, one question each; returns where the listing goes on, None at the end."""
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
        """The first page of keys, and whether it is all of them."""
        request = wire.RangeRequest(shard=shard_id, start=start, end=end)

        async def attempt() -> tuple[list[str], bool]:
            keys: list[str] = []
            async with aclosing(self._cluster.leader(shard_id).flow(LIST, request, wire.ListResponse)) as flow:
                async for response in flow:
                    if keys:
                        return keys, False
                    keys.extend(response.keys)
            return keys, True

        return await self._cluster.repeat(until, attempt, "listing")

    async def _pages(self, shard_id: int, start: str, end: str) -> AsyncGenerator[list[wire.Record], None]:
        """The records of a range on one shard; after a break it goes on behind the last one."""
        pauses = Pauses(self._cluster.clock)
        until = self._cluster.deadline()
        while True:
            try:
                request = wire.RangeRequest(shard=shard_id, start=start, end=end)
                async with aclosing(self._cluster.leader(shard_id).flow(SCAN, request, wire.ScanResponse)) as flow:
                    while True:
                        left_s = until - self._cluster.clock.monotonic()
                        response = await self._cluster.within(left_s, anext(flow, None), "no page came")
                        if response is None:
                            return
                        if response.records:
                            yield list(response.records)
                            start = behind(response.records[-1].key)
                        until = self._cluster.deadline()
                        pauses.reset()
            except CallFailed as failed:
                if not is_worth_repeating(failed) or self._cluster.clock.monotonic() >= until:
                    raise as_error(failed, "scanning") from failed
            except AnswerUnreadable:
                raise
            except StoreUnavailable:
                if self._cluster.clock.monotonic() >= until:
                    raise
            await pauses.wait()
