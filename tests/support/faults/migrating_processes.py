"""Processes of one cluster in this event loop, each with its own connections to real stores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.migration.follow import open_current
from anabranch.metadata.migration.service import MetadataMigration
from anabranch.metadata.migration.switching_store import SwitchingStore
from anabranch.metadata.open import bare_store
from anabranch.metadata.write_gate import GatedStore
from anabranch.runtime.clock import SystemClock

ENDS_S = 120.0


class MigratingProcess:
    def __init__(self, store: GatedStore, migration: MetadataMigration) -> None:
        self.store, self.migration = store, migration

    async def move(self, url: str, **options: Any) -> dict[str, Any]:
        """The last status: all have switched, or the attempt has failed."""
        await self.migration.start(url, **options)
        return await self.ended()

    async def ended(self) -> dict[str, Any]:
        async with asyncio.timeout(ENDS_S):
            while True:
                status = await self.migration.status()
                if status["phase"] == "FAILED" or status.get("allSwitched"):
                    return status
                await asyncio.sleep(0.02)

    async def wait_step(self, step: str) -> None:
        async with asyncio.timeout(ENDS_S):
            while (await self.migration.status())["subPhase"] != step:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.005)


@asynccontextmanager
async def processes(url: str, count: int = 3, deadline_ms: int = 10_000) -> AsyncIterator[list[MigratingProcess]]:
    clock = SystemClock()

    def open_target(one: str) -> MetadataStore:
        return bare_store(one, clock, deadline_ms)

    async with AsyncExitStack() as stack:
        made = []
        for number in range(1, count + 1):
            found, real = await open_current(url, open_target, clock.now_ms())
            switching = SwitchingStore(real)
            store = GatedStore(switching)
            stack.push_async_callback(store.close)
            migration = MetadataMigration(
                switching,
                store.gate,
                found,
                name=f"p{number}",
                open_target=open_target,
                clock=clock,
                chance=random.Random(number),
            )
            stack.push_async_callback(migration.close)
            await migration.open(has_peers=True)
            made.append(MigratingProcess(store, migration))
        yield made
