"""The cache: what it keeps, what it must not serve, and how it changes records."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.metadata.interface import ABSENT, ANY, BadKey, OutcomeUnknown, StoreUnavailable
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.faults import Fate, Kind, Loss, Script
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.recipes.cache import Cached, MetadataCache, Verdict, judge
from anabranch.metadata.recipes.cache_table import CacheTable
from anabranch.metadata.recipes.session_keeper import SessionKeeper
from benchmarks import metadata_cache
from benchmarks.support.measure import Scene as BenchScene
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

SLOW = Fate(request_s=0.1, answer_s=1.0)


def test_a_table_keeps_what_was_found_and_what_was_not() -> None:
    table: CacheTable[str] = CacheTable(10)
    table.finish(table.begin("/a"), "one")
    table.finish(table.begin("/b"), None)
    assert dict(table.entries) == {"/a": "one", "/b": None}
    table.changed("/a")
    assert dict(table.entries) == {"/b": None}


def test_a_table_keeps_nothing_that_changed_while_it_was_read() -> None:
    table: CacheTable[str] = CacheTable(10)
    first, second = table.begin("/a"), table.begin("/b")
    table.changed("/a")
    assert (first.is_stale, first.is_overtaken, second.is_stale) == (True, False, False)
    table.finish(first, "old")
    assert table.flight("/a") is None
    table.forget()
    table.finish(second, "old")
    assert not table.entries
    third = table.begin("/a")
    table.overtake("/a")
    assert third.is_stale and third.is_overtaken
    table.fail(third)


def test_a_table_is_bounded_and_drops_who_was_not_used() -> None:
    table: CacheTable[int] = CacheTable(3)
    for number in range(3):
        table.finish(table.begin(f"/{number}"), number)
    table.entries.move_to_end("/0")
    table.finish(table.begin("/3"), 3)
    assert list(table.entries) == ["/2", "/0", "/3"]


def test_a_table_without_trust_keeps_nothing() -> None:
    table: CacheTable[int] = CacheTable(3)
    table.finish(table.begin("/a"), 1)
    table.trust(False)
    table.finish(table.begin("/a"), 1)
    assert not table.entries
    table.trust(True)
    table.finish(table.begin("/a"), 1)
    assert table.entries


def test_a_write_without_an_answer_is_judged_by_the_record() -> None:
    one, two = Cached("a", 1), Cached("b", 2)
    assert judge(one, one, None) is Verdict.NOT_APPLIED
    assert judge(None, None, None) is Verdict.NOT_APPLIED
    assert judge(one, two, None) is Verdict.UNDECIDABLE
    assert judge(one, None, None) is Verdict.UNDECIDABLE
    assert judge(one, two, lambda value: value == "b") is Verdict.APPLIED
    assert judge(one, two, lambda value: value == "c") is Verdict.NOT_APPLIED
    assert judge(one, None, lambda value: True) is Verdict.NOT_APPLIED


class Scene:
    def __init__(self, script: Script) -> None:
        self.clock, self.script, self.chance = LoopClock(), script, random.Random(1)
        data = MemoryData(self.clock)
        self.store = MemoryStore(self.clock, data, script, "mine")
        self.other = MemoryStore(self.clock, data, None, "other")

    def cache(self, **more: Any) -> MetadataCache[str]:
        return MetadataCache(
            self.store,
            "/r",
            decode=lambda stored: stored.decode(),
            encode=lambda value: value.encode(),
            clock=self.clock,
            chance=self.chance,
            **more,
        )

    def reads(self) -> int:
        return [one.kind for one in self.script.seen].count(Kind.GET)


@asynccontextmanager
async def scene(script: Script | None = None) -> AsyncIterator[Scene]:
    world = Scene(script or Script())
    async with asyncio.timeout(1_000), world.store, world.other:
        yield world


def run(check: Coroutine[Any, Any, None]) -> None:
    run_simulated(check)


async def value_of(cache: MetadataCache[str], key: str = "/r/a") -> str | None:
    found = await cache.get(key)
    return None if found is None else found.value


def test_reads_once_and_hears_of_changes() -> None:
    async def check() -> None:
        async with scene() as world, world.cache() as cache:
            assert await value_of(cache) is None
            assert await value_of(cache) is None
            assert world.reads() == 1, "absence is remembered"
            await world.other.put("/r/a", b"one", expected=ABSENT)
            await asyncio.sleep(0)
            assert [await value_of(cache), await value_of(cache)] == ["one", "one"]
            assert world.reads() == 2
            await world.other.delete("/r/a", expected=ANY)
            await asyncio.sleep(0)
            assert await value_of(cache) is None

    run(check())


def test_many_who_ask_at_once_share_one_read() -> None:
    async def check() -> None:
        async with scene(Script().then(Kind.GET, SLOW)) as world, world.cache() as cache:
            assert set(await asyncio.gather(*(value_of(cache) for _ in range(50)))) == {None}
            assert world.reads() == 1

    run(check())


def test_whoever_asks_after_a_change_does_not_get_a_read_from_before() -> None:
    async def check() -> None:
        async with scene(Script().then(Kind.GET, SLOW)) as world, world.cache() as cache:
            early = asyncio.ensure_future(value_of(cache))
            await asyncio.sleep(0.5)  # read, and the answer is on its way
            await world.other.put("/r/a", b"new", expected=ABSENT)
            await asyncio.sleep(0)
            late = asyncio.ensure_future(value_of(cache))
            assert await late == "new"
            assert await early is None
            assert await value_of(cache) == "new"

    run(check())


def test_a_read_that_our_own_write_has_overtaken_is_not_served() -> None:
    async def check() -> None:
        async with scene(Script().then(Kind.GET, Fate(), SLOW)) as world, world.cache() as cache:
            await value_of(cache)
            await world.other.put("/r/a", b"one", expected=ABSENT)
            await asyncio.sleep(0)
            early = asyncio.ensure_future(value_of(cache))
            await asyncio.sleep(0.5)
            await cache.get_fresh("/r/b")
            early_write = asyncio.ensure_future(cache.read_modify_write("/r/a", lambda old: f"{old}+", seconds=10))
            assert (await early_write).value == "one+"
            assert await early in ("one", "one+")
            assert await value_of(cache) == "one+"

    run(check())


def test_fresh_is_past_the_cache_and_past_reads_under_way() -> None:
    async def check() -> None:
        script = Script().then(Kind.GET, SLOW).then(Kind.EVENT, Fate(request_s=60))
        async with scene(script) as world, world.cache() as cache:
            early = asyncio.ensure_future(value_of(cache))
            await asyncio.sleep(0.5)
            await world.other.put("/r/a", b"new", expected=ABSENT)  # the hint needs a minute
            fresh = await cache.get_fresh("/r/a")
            assert fresh is not None and fresh.value == "new"
            assert await early == "new", "what somebody has seen already is not taken back"

    run(check())


def test_everything_is_forgotten_after_a_gap_and_while_the_store_is_away() -> None:
    async def check() -> None:
        async with scene() as world:
            await world.other.put("/r/a", b"one", expected=ABSENT)
            keeper = SessionKeeper(world.store, name="me", ttl_ms=60_000, clock=world.clock, chance=world.chance)
            async with keeper, world.cache(keeper=keeper) as cache:
                await keeper.wait_lease(5)
                assert await value_of(cache) == "one"
                world.store.cut()
                await world.other.put("/r/a", b"two", expected=ANY)
                with pytest.raises(StoreUnavailable):
                    await value_of(cache)
                world.store.heal()
                await asyncio.sleep(0)
                assert await value_of(cache) == "two"
                assert len(cache) == 1

    run(check())


def test_errors_are_not_kept() -> None:
    async def check() -> None:
        async with scene(Script().then(Kind.GET, Fate(loss=Loss.REQUEST))) as world, world.cache() as cache:
            with pytest.raises(StoreUnavailable):
                await value_of(cache)
            assert await value_of(cache) is None
            with pytest.raises(BadKey):
                await cache.get("/elsewhere")
            with pytest.raises(BadKey):
                await cache.get("/r/")
            await world.other.put("/r/b", b"\xff", expected=ABSENT)
            await asyncio.sleep(0)
            with pytest.raises(UnicodeDecodeError):
                await cache.get("/r/b")

    run(check())


def test_whoever_gives_up_does_not_end_the_read_of_the_others() -> None:
    async def check() -> None:
        async with scene(Script().then(Kind.GET, SLOW)) as world, world.cache() as cache:
            first, second = (asyncio.ensure_future(value_of(cache)) for _ in range(2))
            await asyncio.sleep(0.5)
            first.cancel()
            assert await second is None
            assert world.reads() == 1

    run(check())


def test_read_modify_write_of_many_at_once() -> None:
    async def check() -> None:
        async with scene() as world, world.cache() as cache:

            def change(old: str | None) -> str:
                return str(int(old or 0) + 1)

            await asyncio.gather(*(cache.read_modify_write("/r/a", change, seconds=60) for _ in range(20)))
            assert await value_of(cache) == "20"

    run(check())


@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.ANSWER, Loss.LATE, Loss.REFUSED])
@pytest.mark.parametrize("is_marked", [False, True])
def test_a_change_is_made_once_whatever_is_lost(loss: Loss, is_marked: bool) -> None:
    async def check() -> None:
        script = Script().then(Kind.PUT, Fate(request_s=0.01, loss=loss), Fate(request_s=0.02))
        async with scene(script) as world, world.cache() as cache:
            await world.other.put("/r/a", b"x", expected=ABSENT)
            try:
                await cache.read_modify_write(
                    "/r/a",
                    lambda old: f"{old}!",
                    seconds=10,
                    contains=(lambda value: value.endswith("!")) if is_marked else None,
                )
            except OutcomeUnknown:
                assert not is_marked and loss in (Loss.ANSWER, Loss.LATE), "this could have been decided"
            await asyncio.sleep(1)
            assert await value_of(cache) == "x!"

    run(check())


def test_a_store_that_stays_away_leaves_the_outcome_unknown() -> None:
    async def check() -> None:
        async with scene() as world, world.cache() as cache:
            await value_of(cache)
            world.store.cut()
            with pytest.raises(OutcomeUnknown):
                await cache.read_modify_write("/r/a", lambda old: "x", seconds=5)

    run(check())


def test_a_change_can_refuse() -> None:
    async def check() -> None:
        def refuse(old: str | None) -> str:
            raise KeyError("no")

        async with scene() as world, world.cache() as cache:
            with pytest.raises(KeyError):
                await cache.read_modify_write("/r/a", refuse, seconds=5)

    run(check())


def test_a_closed_cache_refuses() -> None:
    async def check() -> None:
        async with scene(Script().then(Kind.GET, SLOW)) as world:
            async with world.cache() as cache:
                waiting = asyncio.ensure_future(value_of(cache))
                await asyncio.sleep(0.5)
            with pytest.raises(StoreUnavailable):
                await waiting
            with pytest.raises(StoreUnavailable):
                await value_of(cache)

    run(check())


def test_the_benchmark_runs(tmp_path: Path) -> None:
    """What it measures here means nothing; that it measures does."""
    assert all(outcome.ratio > 0 for outcome in metadata_cache.run(BenchScene(tmp_path, quick=True)))
