"""The recipes on every real store: what the simulations show on memory holds on the servers, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.metadata.interface import ABSENT, ANY, MetadataStore
from anabranch.metadata.recipes.cache import MetadataCache
from anabranch.metadata.recipes.counter import Counter, IdBlocks
from anabranch.metadata.recipes.election import (
    Deposed,
    Elected,
    Election,
    Leader,
    NotLeader,
    observe,
    read_leader,
    read_term,
)
from anabranch.metadata.recipes.lock import LockNotHeld, ResourceLock, read_lock, wait_released
from anabranch.metadata.recipes.membership import Joined, Left, Members, Registration
from anabranch.metadata.recipes.session_keeper import SessionKeeper
from anabranch.runtime.chance import SystemChance
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.metadata_stores import PATIENCE_S, World

CLOCK, CHANCE = SystemClock(), SystemChance()


def keeper_on(store: MetadataStore, name: str) -> SessionKeeper:
    return SessionKeeper(store, name=name, ttl_ms=10_000, clock=CLOCK, chance=CHANCE)


@pytest.fixture
async def keepers(world: World) -> AsyncIterator[tuple[SessionKeeper, SessionKeeper]]:
    async with keeper_on(await world.open(), "one") as one, keeper_on(await world.open(), "two") as two:
        yield one, two


Pair = tuple[SessionKeeper, SessionKeeper]


async def lose_session(keeper: SessionKeeper) -> None:
    """What an expiry looks like to the keeper: the session is over, though nobody here asked for it."""
    lease = await keeper.wait_lease(PATIENCE_S)
    await lease.session.close()


async def test_leaders_follow_each_other_with_growing_terms(keepers: Pair) -> None:
    one, two = keepers
    async with observe(two.store, "/e", clock=CLOCK, chance=CHANCE) as seen, Election(one, "/e", b"1") as first:
        leads = await first.wait_elected(PATIENCE_S)
        events = first.events()
        assert leads.term == 1
        async with Election(two, "/e", b"2") as second:
            assert await first.resign(PATIENCE_S)
            with pytest.raises(NotLeader):
                leads.check()
            assert await anext(events) == Deposed(leads, "released")
            assert (await second.wait_elected(PATIENCE_S)).term == 2
            assert await read_leader(two.store, "/e") == Leader(2, b"2")
            first.campaign()
        assert isinstance(await anext(events), Elected)
        async for leader in seen.changes():
            if leader == Leader(3, b"1"):
                break
        term = await read_term(two.store, "/e")
        assert term is not None and term.term == 3


async def test_a_new_session_is_a_new_term(keepers: Pair) -> None:
    one, _ = keepers
    async with Election(one, "/e", b"1") as election:
        leads = await election.wait_elected(PATIENCE_S)
        await lose_session(one)
        await leads.wait_ended()
        assert (await election.wait_elected(PATIENCE_S)).term == 2


async def test_locks(keepers: Pair) -> None:
    one, two = keepers
    async with ResourceLock(one, "/l", b"1") as first, ResourceLock(two, "/l", b"2") as second:
        held = await first.acquire(PATIENCE_S)
        await first.update(b"3", PATIENCE_S)
        await two.store.sync()
        assert await read_lock(two.store, "/l") == b"3"
        waiting = asyncio.ensure_future(second.acquire(PATIENCE_S))
        assert await first.release(PATIENCE_S)
        (await waiting).check()
        with pytest.raises(LockNotHeld):
            held.check()
        released = asyncio.ensure_future(wait_released(one.store, "/l", PATIENCE_S))
        await second.release(PATIENCE_S)
        await released


async def test_a_lock_is_taken_again_with_a_new_session(keepers: Pair) -> None:
    one, two = keepers
    async with ResourceLock(one, "/l", b"1") as lock:
        held = await lock.acquire(PATIENCE_S)
        await lose_session(one)
        again = await lock.acquire(PATIENCE_S)
        assert again is not held
        await two.store.sync()
        assert await read_lock(two.store, "/l") == b"1"


async def test_a_leftover_of_the_old_session_moves_to_the_new_one(world: World) -> None:
    """What recipes rely on when the store has not noticed yet that a session is over."""
    store = await world.open()
    old, new = await store.open_session(10_000), await store.open_session(10_000)
    version = await store.put("/m/a", b"1", expected=ABSENT, session=old)
    await store.put("/m/a", b"2", expected=version, session=new)
    await old.close()
    assert await store.get("/m/a") is not None
    await new.close()
    assert await store.get("/m/a") is None


async def test_members(keepers: Pair) -> None:
    one, two = keepers
    async with (
        Members(two.store, "/m", clock=CLOCK, chance=CHANCE) as view,
        Registration(two, "/m", "b", b"2") as other,
    ):
        await view.wait_ready(PATIENCE_S)
        await other.wait_registered(PATIENCE_S)
        changes = view.changes()
        assert await anext(changes) == Joined("b", b"2")
        async with Registration(one, "/m", "a", b"1") as mine:
            assert await anext(changes) == Joined("a", b"1")
            assert view.now == {"a": b"1", "b": b"2"}
            await mine.wait_registered(PATIENCE_S)
            await lose_session(one)
            assert await anext(changes) == Left("a")
            assert await anext(changes) == Joined("a", b"1")
        assert await anext(changes) == Left("a")


async def test_caches_hear_of_each_others_changes(keepers: Pair) -> None:
    one, two = keepers

    def cache_on(keeper: SessionKeeper) -> MetadataCache[int]:
        return MetadataCache(
            keeper.store,
            "/r",
            decode=int,
            encode=lambda number: b"%d" % number,
            clock=CLOCK,
            chance=CHANCE,
            keeper=keeper,
        )

    async with cache_on(one) as first, cache_on(two) as second:
        for cache in (first, second) * 5:
            await cache.read_modify_write("/r/n", lambda old: (old or 0) + 1, seconds=PATIENCE_S)
        await asyncio.gather(
            *(
                cache.read_modify_write("/r/n", lambda old: (old or 0) + 1, seconds=PATIENCE_S)
                for cache in (first, second)
            )
        )
        seen = 0
        while seen != 12:
            found = await first.get("/r/n")
            assert found is not None and found.value >= seen
            seen = found.value
            await CLOCK.sleep(0.001)
        await second.get("/r/n")
        await one.store.delete("/r/n", expected=ANY)
        while await second.get("/r/n") is not None:
            await CLOCK.sleep(0.001)


async def test_numbers(keepers: Pair) -> None:
    one, two = keepers
    counters = [Counter(keeper.store, "/c", owner=keeper.ticket(), clock=CLOCK, chance=CHANCE) for keeper in (one, two)]
    sums = await asyncio.gather(*(counter.add(1, seconds=PATIENCE_S) for counter in counters * 4))
    assert sorted(sums) == list(range(1, 9))
    blocks = [IdBlocks(keeper.store, "/i", clock=CLOCK, chance=CHANCE, block=3) for keeper in (one, two)]
    ids = [await block.take(seconds=PATIENCE_S) for _ in range(6) for block in blocks]
    assert len(set(ids)) == 12
