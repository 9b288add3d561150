"""`make soak-memory`: the memory of one broker while the same topics come and go, round after round.

After the first rounds the resident memory must stay flat: within `BAND_BYTES` of the third round. A round either
creates and deletes all topics, or opens a producer on each (with messages if `--messages` says so) and unloads it.
Optionally other topics are published to at a steady rate meanwhile; the cache of recent entries, which that load would
fill during all rounds, is small then, so that it is full before the reference round. `tests/e2e/broker/test_memory.py`
is the short form in every CI run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anabranch
from anabranch import admin
from tests.support.processes.broker_process import BrokerProcess

BAND_BYTES = 3_000_000
WARM = 3
"""Rounds in which the memory may grow; the last of them is the reference."""
TOGETHER = 16
ROUND_SECONDS_MAX = 300.0
LOAD_TOPICS, LOAD_PAUSE_S = 10, 0.02
SMALL_CACHE = ["--set", "storage.cache_bytes=1048576"]
KINDS = ("create-delete", "load-unload")


def names(count: int) -> list[str]:
    return [f"persistent://public/default/m-{index}" for index in range(count)]


async def each(work: Callable[[str], Awaitable[object]], topics: Iterable[str]) -> None:
    room = asyncio.Semaphore(TOGETHER)

    async def one(name: str) -> None:
        async with room:
            await work(name)

    async with asyncio.timeout(ROUND_SECONDS_MAX):
        await asyncio.gather(*map(one, topics))


async def publish(broker: BrokerProcess, topics: Iterable[str], messages: int) -> None:
    async with anabranch.connect(broker.service_url) as client:

        async def send(name: str) -> None:
            async with client.producer(name) as producer:
                for _ in range(messages):
                    await producer.send(b"x" * 100)

        await each(send, topics)


async def publish_steadily(broker: BrokerProcess, sent: list[int]) -> None:
    """Until cancelled: one message of 100 bytes to each of a few topics, many times a second; `sent` counts them."""
    async with anabranch.connect(broker.service_url) as client, AsyncExitStack() as stack:
        opened = [client.producer(f"persistent://public/default/steady-{index}") for index in range(LOAD_TOPICS)]
        producers = [await stack.enter_async_context(producer) for producer in opened]
        while True:
            await asyncio.gather(*(producer.send(b"x" * 100) for producer in producers))
            sent[0] += len(producers)
            await asyncio.sleep(LOAD_PAUSE_S)


async def resident_after_rounds(
    broker: BrokerProcess, kind: str, *, topics: int, rounds: int, messages: int, tell: Callable[[str], None] = print
) -> list[int]:
    """Resident bytes of the broker after each round."""
    seen: list[int] = []
    every = names(topics)
    async with admin.connect(broker.http_url) as rest:

        async def one_round() -> None:
            if kind == "create-delete":
                await each(rest.topics.create, every)
                await each(lambda name: rest.topics.delete(name, force=True), every)
            else:
                await publish(broker, every, messages)
                await each(rest.topics.unload, every)

        if kind == "load-unload":
            await each(rest.topics.create, every)
        for number in range(1, rounds + 1):
            await one_round()
            seen.append(broker.rss_bytes())
            tell(f"{kind}, round {number}: {seen[-1] / 1e6:.1f} MB")
    return seen


def drift(seen: Sequence[int]) -> list[int]:
    """Difference to the last warm round, of every round after it."""
    return [now - seen[WARM - 1] for now in seen[WARM:]]


async def soak(
    broker: BrokerProcess, kind: str, *, topics: int, rounds: int, messages: int, is_loaded: bool
) -> list[int]:
    sent = [0]
    load = asyncio.ensure_future(publish_steadily(broker, sent)) if is_loaded else None
    try:
        seen = await resident_after_rounds(broker, kind, topics=topics, rounds=rounds, messages=messages)
        assert load is None or not load.done(), "the steady load has ended"
    finally:
        if load is not None:
            load.cancel()
            ended = await asyncio.gather(load, return_exceptions=True)
            print(f"steady load: {sent[0]:,} messages; ended by {ended[0]!r}")
    return drift(seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: both")
    parser.add_argument("--topics", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--messages", type=int, default=1, help="published to each topic in a round of load-unload")
    parser.add_argument("--load", action="store_true", help="publish to other topics meanwhile")
    chosen = parser.parse_args()
    is_flat = True
    for kind in chosen.kind or KINDS:
        with tempfile.TemporaryDirectory(prefix="memory-soak-") as folder:
            broker = BrokerProcess(Path(folder) / "data", arguments=SMALL_CACHE if chosen.load else ()).start()
            try:
                found = asyncio.run(
                    soak(
                        broker,
                        kind,
                        topics=chosen.topics,
                        rounds=chosen.rounds,
                        messages=chosen.messages,
                        is_loaded=chosen.load,
                    )
                )
            finally:
                broker.close()
        print(f"{kind}: {min(found) / 1e6:+.1f} to {max(found) / 1e6:+.1f} MB after round {WARM}")
        is_flat &= max(map(abs, found)) <= BAND_BYTES
    print("flat" if is_flat else f"not within {BAND_BYTES / 1e6:.0f} MB")
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
