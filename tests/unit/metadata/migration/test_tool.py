"""Writes of a command line tool while its cluster moves, and afterwards."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager

import pytest

from anabranch.metadata.interface import ABSENT, ANY, MetadataStore
from anabranch.metadata.migration.tool import StoreMoved, opened_for_writing
from tests.support.in_memory.metadata_migration import Cluster, ended
from tests.support.in_memory.simulated_loop import run_simulated


def tool(cluster: Cluster, url: str = "memory:a", name: str = "tool") -> AbstractAsyncContextManager[MetadataStore]:
    return opened_for_writing(
        url, lambda one: cluster.open(one, name), name=name, clock=cluster.clock, chance=random.Random(name)
    )


def test_a_write_during_the_last_step_waits_and_is_in_the_target() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("p2") as (other, _):
            await store.put("/x", b"", expected=ABSENT)
            async with tool(cluster) as writing:
                assert "tool" in (await mover.status())["participants"]
                await writing.put("/before", b"1", expected=ABSENT)
                async with other.gate.permit():  # an operation that is not done yet
                    await mover.start("memory:b")
                    while (await mover.status())["phase"] != "PREPARATION":  # noqa: ASYNC110 - no event for it
                        await asyncio.sleep(0.01)
                    late = asyncio.create_task(writing.put("/late", b"2", expected=ABSENT))
                    await asyncio.sleep(1)
                    assert not late.done()
                await late
                assert (await ended(mover))["phase"] == "COMPLETED"
            assert set(await cluster.tree("memory:b")) == {"/x", "/before", "/late"}
            assert "/late" not in await cluster.tree("memory:a")

    run_simulated(story())


def test_a_tool_that_begins_during_the_last_step_writes_into_the_target() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("p2") as (other, _):
            await store.put("/x", b"", expected=ABSENT)

            async def write() -> None:
                async with tool(cluster) as writing:
                    await writing.put("/late", b"2", expected=ABSENT)

            async with other.gate.permit():
                await mover.start("memory:b")
                while (await mover.status())["phase"] != "PREPARATION":  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(0.01)
                late = asyncio.create_task(write())
                await asyncio.sleep(1)
                assert not late.done()
            await late
            status = await ended(mover)
            assert (status["phase"], status["error"]) == ("COMPLETED", None)
            assert set(await cluster.tree("memory:b")) == {"/x", "/late"}

    run_simulated(story())


def test_neither_the_old_store_nor_an_incomplete_target_is_written() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover):
            for number in range(300):
                await store.put(f"/x/{number}", b"", expected=ABSENT)
            await mover.start("memory:b", rate=100)
            await asyncio.sleep(1)
            with pytest.raises(StoreMoved) as refused:
                async with tool(cluster, "memory:b"):
                    pass
            assert refused.value.url == "memory:a"
            await mover.abort()
            await mover.start("memory:c")
            assert (await ended(mover))["phase"] == "COMPLETED"
            with pytest.raises(StoreMoved) as refused:
                async with tool(cluster, "memory:a") as writing:
                    await writing.put("/lost", b"", expected=ANY)
            assert refused.value.url == "memory:c"
            async with tool(cluster, "memory:c") as writing:
                await writing.put("/kept", b"", expected=ANY)
            assert "/kept" in await cluster.tree("memory:c")
            assert (await mover.status())["participants"] == {"p1": "SWITCHED"}

    run_simulated(story())


def test_an_empty_store_stays_empty_until_the_first_write() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with tool(cluster) as writing:
            assert await writing.children("/") == []
            await writing.raise_versions(1_000)
            await writing.put("/x", b"", expected=ABSENT)
        assert set(await cluster.tree("memory:a")) == {"/x"}

    run_simulated(story())
