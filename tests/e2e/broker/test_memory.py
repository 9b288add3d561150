"""Memory of a broker process while topics come and go: it grows with the first rounds, then no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import anabranch
from anabranch import admin
from anabranch.admin.admin import Admin
from tests.support.processes.broker_process import BrokerProcess

TOPICS, ROUNDS, WARM = 300, 8, 3
GROWTH_BYTES_MAX = 4 * 1024 * 1024
"""Without a leak it is less than 1 MB; the rest is for the allocator. With the leak it was several times as much."""
TOGETHER = 16
NAMES = [f"persistent://public/default/m-{index}" for index in range(TOPICS)]


async def each(work: Callable[[str], Awaitable[object]], names: Iterable[str] = NAMES) -> None:
    room = asyncio.Semaphore(TOGETHER)

    async def one(name: str) -> None:
        async with room:
            await work(name)

    async with asyncio.timeout(120):
        await asyncio.gather(*map(one, names))


async def publish(broker: BrokerProcess, names: Iterable[str]) -> None:
    async with anabranch.connect(broker.service_url) as client:

        async def send(name: str) -> None:
            async with client.producer(name) as producer:
                await producer.send(b"x" * 100)

        await each(send, names)


async def growth(broker: BrokerProcess, work: Callable[[], Awaitable[None]]) -> list[int]:
    """Resident bytes after each round, from the last warm one on, relative to it."""
    seen: list[int] = []
    for _ in range(ROUNDS):
        await work()
        seen.append(broker.rss_bytes())
    return [now - seen[WARM - 1] for now in seen[WARM - 1 :]]


async def test_memory_is_flat_while_topics_are_created_and_deleted(private_broker: BrokerProcess) -> None:
    async with admin.connect(private_broker.http_url) as rest:

        async def create_and_delete() -> None:
            await each(rest.topics.create)
            await each(lambda name: rest.topics.delete(name, force=True))

        grown = await growth(private_broker, create_and_delete)
    assert max(grown) <= GROWTH_BYTES_MAX, grown


async def test_memory_is_flat_while_topics_are_loaded_and_unloaded(private_broker: BrokerProcess) -> None:
    """Each topic has a subscription and messages of every round, so each load has a ledger and a state to read."""
    async with admin.connect(private_broker.http_url) as rest:

        async def load_and_unload() -> None:
            await publish(private_broker, NAMES)
            await each(rest.topics.unload)

        await each(rest.topics.create)
        grown = await growth(private_broker, load_and_unload)
    assert max(grown) <= GROWTH_BYTES_MAX, grown


async def test_topics_survive_a_kill_while_they_are_unloaded(private_broker: BrokerProcess) -> None:
    """Entries leave the cache of a closed topic only when they are in the ledger file, or are found in the log."""
    names = NAMES[:40]
    await publish(private_broker, names)
    async with admin.connect(private_broker.http_url) as rest:
        await each(rest.topics.unload, names[:20])
        unloading = asyncio.ensure_future(each(rest.topics.unload, names[20:]))
        await asyncio.sleep(0)
        private_broker.kill9()
        await asyncio.gather(unloading, return_exceptions=True)
    private_broker.start()
    async with admin.connect(private_broker.http_url) as rest:
        assert {await messages(rest, name) for name in names} == {1}
    await publish(private_broker, names)
    async with admin.connect(private_broker.http_url) as rest:
        assert {await messages(rest, name) for name in names} == {2}


async def messages(rest: Admin, name: str) -> int:
    """Loads the topic."""
    found = await rest.topics.internal_stats(name)
    return int(found["numberOfEntries"])
