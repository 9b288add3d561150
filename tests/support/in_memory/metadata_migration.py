"""Processes in one thread on memory stores that share their data, with their part in migrations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anabranch.metadata.interface import UnknownStore
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.faults import Faults, NoFaults
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.migration.follow import open_current
from anabranch.metadata.migration.record import is_copied
from anabranch.metadata.migration.service import MetadataMigration
from anabranch.metadata.migration.switching_store import SwitchingStore
from anabranch.metadata.write_gate import GatedStore
from tests.support.in_memory.simulated_loop import LoopClock


class Cluster:
    """Processes on the store `memory:a`; `memory:b` and so on are further stores."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.data: dict[str, MemoryData] = {}
        self.stores: list[tuple[str, str, MemoryStore]] = []
        self.faults: Faults = NoFaults()

    def open(self, url: str, process: str = "test") -> MemoryStore:
        if not url.startswith("memory:"):
            raise UnknownStore(url)
        data = self.data.setdefault(url, MemoryData(self.clock))
        store = MemoryStore(self.clock, data, self.faults, process)
        self.stores.append((process, url, store))
        return store

    @asynccontextmanager
    async def process(self, name: str, url: str = "memory:a") -> AsyncIterator[tuple[GatedStore, MetadataMigration]]:
        async with self.alone(name, url) as (store, migration):
            await migration.participant.start()
            yield store, migration

    @asynccontextmanager
    async def alone(self, name: str, url: str = "memory:a") -> AsyncIterator[tuple[GatedStore, MetadataMigration]]:
        """A process without peers takes part when it starts a migration."""
        found, real = await open_current(url, lambda one: self.open(one, name), 1)
        switching = SwitchingStore(real)
        store = GatedStore(switching)
        migration = MetadataMigration(
            switching,
            store.gate,
            found,
            name=name,
            open_target=lambda one: self.open(one, name),
            clock=self.clock,
            chance=random.Random(name),
        )
        try:
            yield store, migration
        finally:
            await migration.close()
            await store.close()

    async def tree(self, url: str) -> dict[str, tuple[bytes, int]]:
        async with self.open(url) as store:
            return {k: (v.value, v.version) async for k, v in store.scan("/") if is_copied(k) and not v.ephemeral}


async def ended(migration: MetadataMigration) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            status = await migration.status()
            if status["phase"] == "FAILED" or status.get("allSwitched"):
                return status
            await asyncio.sleep(0.01)
