"""Registrations and deletions by several brokers in any order of their steps: a history never names a definition that
is not there, and a number never means two schemas unless the history was taken away by force."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import cycle

from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.schemas.registry import schema_name
from anabranch.broker.settings import BrokerSettings
from anabranch.metadata.interface import Expected, Session, Version, Versioned
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.names import TopicName
from anabranch.model.schema import Schema, SchemaType
from anabranch.runtime.clock import Clock
from tests.support.in_memory.schema_registry import new_registry
from tests.support.in_memory.topic_log import ManualClock

TOPIC = TopicName.parse("orders")
SCHEMAS = [Schema(SchemaType.EXTERNAL, bytes([number])) for number in range(3)]


class Jittery(MemoryStore):
    """Every call waits its own number of turns before it happens."""

    def __init__(self, clock: Clock, turns: Iterator[int]) -> None:
        super().__init__(clock)
        self._turns = turns

    async def _wait(self) -> None:
        for _ in range(next(self._turns)):
            await asyncio.sleep(0)

    async def get(self, key: str) -> Versioned | None:
        await self._wait()
        return await super().get(key)

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        await self._wait()
        return await super().put(key, value, expected=expected, session=session)

    async def delete(self, key: str, *, expected: Expected) -> None:
        await self._wait()
        await super().delete(key, expected=expected)

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        await self._wait()
        async for found in super().scan(prefix):
            yield found


STEPS = st.lists(st.sampled_from([0, 1, 2, "delete", "force"]), min_size=2, max_size=8)


async def run(steps: list[int | str], turns: list[int]) -> None:
    clock = ManualClock()
    async with Jittery(clock, cycle(turns)) as store:
        catalog = Catalog(store, BrokerSettings())
        await catalog.ensure_defaults()

        async def one(step: int | str) -> tuple[int, Schema] | None:
            registry = new_registry(store, catalog, clock, compatibility_strategy="ALWAYS_COMPATIBLE")
            if isinstance(step, str):
                await registry.delete(TOPIC, force=step == "force")
                return None
            return await registry.register(TOPIC, SCHEMAS[step]), SCHEMAS[step]

        outcomes = await asyncio.gather(*map(one, steps))
        found = await store.get(f"/schemas/{schema_name(TOPIC)}")
        rows = [] if found is None else json.loads(found.value)["versions"]
        registry = new_registry(store, catalog, clock)
        live = {stored.version: stored.schema for stored in await registry.history(TOPIC)}
        assert sorted(live) == [row[0] for row in rows], "a version without its definition, or out of order"
        below = [key.rpartition("/")[2] async for key, _ in store.scan(f"/schemas/{schema_name(TOPIC)}")]
        assert sorted(set(below) - {TOPIC.local}) == sorted(row[3] for row in rows), "a definition that nothing names"
        assert len({schema.data for schema in live.values()}) == len(live), "one schema under two numbers"
        if "force" not in steps:
            given_out: dict[int, Schema] = {}
            for outcome in outcomes:
                if outcome is not None:
                    version, schema = outcome
                    assert given_out.setdefault(version, schema) == schema, "one number for two schemas"
                    assert live.get(version, schema) == schema
        if not {"force", "delete"} & set(steps):
            assert len(live) == len(set(steps))


@settings(max_examples=200, deadline=None)
@given(STEPS, st.lists(st.integers(0, 4), min_size=1, max_size=24))
@example([0, 1, "delete", "force", 0, "force"], [0, 3])  # absent, present, absent again, while a writer expects absence
def test_any_interleaving(steps: list[int | str], turns: list[int]) -> None:
    asyncio.run(run(steps, turns))
