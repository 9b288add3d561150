"""What the port costs when nothing has to be asked: a get from the cache, in CPU time, against the parts it is made of.

Expected: a coroutine, a dictionary look-up and a move to the end of an ordered dictionary, so about 0.5 µs on a machine
where a bare coroutine call takes 0.1 µs. The bound is 5 µs. A lock's or leader's `check()` is a comparison of two
numbers and a clock, about as much again.

    python -m benchmarks.metadata_cache [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from anabranch.metadata.interface import ABSENT
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.recipes.cache import Cached, MetadataCache
from anabranch.metadata.recipes.election import Election
from anabranch.metadata.recipes.session_keeper import SessionKeeper
from anabranch.runtime.chance import SystemChance
from anabranch.runtime.clock import SystemClock
from benchmarks.support.measure import Outcome, Scene, Series, at_most, table

KEYS = 1_000


async def _per_call(call: Callable[[str], Awaitable[object]], keys: list[str], calls: int) -> float:
    """Microseconds of CPU of one awaited call."""
    start = time.process_time()
    for number in range(calls):
        await call(keys[number % KEYS])
    return (time.process_time() - start) / calls * 1e6


async def _measure(rounds: int, calls: int) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    clock, chance = SystemClock(), SystemChance()
    async with MemoryStore(clock) as store:
        keys = [f"/bench/{number}" for number in range(KEYS)]
        for key in keys:
            await store.put(key, b"7", expected=ABSENT)
        cache = MetadataCache(
            store, "/bench", decode=int, encode=lambda number: b"%d" % number, clock=clock, chance=chance
        )
        keeper = SessionKeeper(store, name="bench", ttl_ms=60_000, clock=clock, chance=chance)
        async with cache, keeper, Election(keeper, "/leader", b"") as election:
            leads = await election.wait_elected(10)
            for key in keys:
                await cache.get(key)
            plain: dict[str, Cached[int] | None] = {key: await cache.get(key) for key in keys}

            async def bare(key: str) -> Cached[int] | None:
                return plain[key]

            async def check(key: str) -> None:
                leads.check()

            ours, floor, checks = [], [], []
            for _ in range(rounds):
                ours.append(await _per_call(cache.get, keys, calls))
                floor.append(await _per_call(bare, keys, calls))
                checks.append(await _per_call(check, keys, calls))
    return tuple(ours), tuple(floor), tuple(checks)


def run(scene: Scene) -> list[Outcome]:
    ours, floor, checks = asyncio.run(_measure(scene.size(9, 2), scene.size(200_000, 2_000)))
    notes = {"bare_coroutine_and_dict_us": min(floor), "ratio_to_bare": min(ours) / min(floor)}
    return [
        Outcome("metadata-cache-get", "get from cache, CPU", Series("cache", "µs", ours), None, at_most(5), notes),
        Outcome("metadata-leader-check", "leadership.check(), CPU", Series("check", "µs", checks), None, at_most(5)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcomes = run(Scene(Path(directory), options.quick))
    for line in table(outcomes):
        print(line)
    print(outcomes[0].notes)


if __name__ == "__main__":
    main()
