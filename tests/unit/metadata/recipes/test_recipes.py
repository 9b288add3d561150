"""Elections and members as their users see them, under simulated time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from anabranch.metadata.interface import ANY, BadKey
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.faults import Fate, Faults, Kind, Loss, Script
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.recipes.election import (
    Deposed,
    Elected,
    Election,
    Leader,
    NotLeader,
    read_leader,
    read_term,
)
from anabranch.metadata.recipes.membership import Altered, Joined, Left, Members, Registration
from anabranch.metadata.recipes.session_keeper import SessionKeeper
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

TTL_MS = 2_000


class Scene:
    """Processes on one store. Everything ends with the block."""

    def __init__(self, stack: AsyncExitStack, seed: int) -> None:
        self.stack = stack
        self.clock = LoopClock()
        self.data = MemoryData(self.clock)
        self.chance = random.Random(seed)
        self.stores: list[MemoryStore] = []

    async def keeper(self, name: str, faults: Faults | None = None) -> SessionKeeper:
        store = await self.stack.enter_async_context(MemoryStore(self.clock, self.data, faults, name))
        self.stores.append(store)
        keeper = SessionKeeper(store, name=name, ttl_ms=TTL_MS, clock=self.clock, chance=self.chance)
        return await self.stack.enter_async_context(keeper)

    def expire(self, keeper: SessionKeeper) -> None:
        assert keeper.lease is not None
        assert isinstance(keeper.store, MemoryStore)
        keeper.store.expire(keeper.lease.session)


@asynccontextmanager
async def scene(seed: int = 1) -> AsyncIterator[Scene]:
    async with asyncio.timeout(1_000), AsyncExitStack() as stack:
        yield Scene(stack, seed)


def run(check: Coroutine[Any, Any, None]) -> None:
    run_simulated(check)


# elections ------------------------------------------------------------------------------------------------------------


def test_terms_grow_with_every_change_of_leader() -> None:
    async def check() -> None:
        async with scene() as world:
            one, two = await world.keeper("one"), await world.keeper("two")
            async with Election(one, "/e", b"1") as first:
                events = first.events()
                leads = await first.wait_elected(5)
                assert leads.term == 1
                assert await read_leader(two.store, "/e") == Leader(1, b"1")
                async with Election(two, "/e", b"2") as second:
                    assert await first.resign(1)
                    with pytest.raises(NotLeader):
                        leads.check()
                    assert (await second.wait_elected(5)).term == 2
                    assert [await anext(events), await anext(events)] == [Elected(leads), Deposed(leads, "released")]
                    assert await leads.wait_ended() == "released"
                    first.campaign()
                assert (await first.wait_elected(5)).term == 3
            assert await read_leader(two.store, "/e") is None
            term = await read_term(two.store, "/e")
            assert term is not None and term.term == 3

    run(check())


def test_a_new_term_after_a_lost_session() -> None:
    async def check() -> None:
        async with scene() as world:
            keeper = await world.keeper("one")
            async with Election(keeper, "/e", b"1") as election:
                leads = await election.wait_elected(5)
                world.expire(keeper)
                assert await leads.wait_ended() == "lost"
                assert (await election.wait_elected(5)).term == 2

    run(check())


def test_deleted_leader_key_ends_the_term_and_starts_another() -> None:
    async def check() -> None:
        async with scene() as world:
            keeper = await world.keeper("one")
            async with Election(keeper, "/e", b"1") as election:
                leads = await election.wait_elected(5)
                await keeper.store.delete("/e/leader", expected=ANY)
                assert await leads.wait_ended() == "deleted"
                assert (await election.wait_elected(5)).term == 2

    run(check())


@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.ANSWER, Loss.LATE, Loss.REFUSED])
def test_one_is_elected_whatever_is_lost(loss: Loss) -> None:
    async def check() -> None:
        for lost in range(3):  # the claim, the term, the confirmation
            async with scene() as world:
                script = Script().then(Kind.PUT, *[Fate()] * lost, Fate(loss=loss))
                async with Election(await world.keeper("one", script), "/e", b"1") as election:
                    leads = await election.wait_elected(10)
                    leads.check()
                    assert await read_leader(world.stores[0], "/e") == Leader(leads.term, b"1")

    run(check())


def test_terms_go_on_in_another_store() -> None:
    """A move copies the durable term, not the leader, and versions of the stores do not matter."""

    async def check() -> None:
        async with scene() as world:
            one = await world.keeper("one")
            async with Election(one, "/e", b"1") as election:
                await election.wait_elected(5)
            moved = [(key, found) async for key, found in one.store.scan("/e")]
        async with scene(seed=2) as other:
            keeper = await other.keeper("one")
            await keeper.store.bulk_write(moved, preserve=False)
            async with Election(keeper, "/e", b"1") as election:
                assert (await election.wait_elected(5)).term == 2

    run(check())


# members --------------------------------------------------------------------------------------------------------------


def test_members_join_change_and_leave() -> None:
    async def check() -> None:
        async with scene() as world:
            one, two = await world.keeper("one"), await world.keeper("two")
            view = Members(two.store, "/m", clock=world.clock, chance=world.chance)
            async with view, Registration(two, "/m", "b", b"2") as second:
                await view.wait_ready(5)
                await second.wait_registered(5)
                changes = view.changes()
                async with Registration(one, "/m", "a", b"1") as first:
                    assert await anext(changes) == Joined("b", b"2")
                    assert await anext(changes) == Joined("a", b"1")
                    await first.update(b"3", 5)
                    assert await anext(changes) == Altered("a", b"3")
                    assert first.is_registered
                    assert view.now == {"a": b"3", "b": b"2"}
                assert await anext(changes) == Left("a")
                assert view.now == {"b": b"2"} and view.is_current

    run(check())


def test_a_member_is_registered_again_after_a_lost_session() -> None:
    async def check() -> None:
        async with scene() as world:
            one, two = await world.keeper("one"), await world.keeper("two")
            view = Members(two.store, "/m", clock=world.clock, chance=world.chance)
            async with view, Registration(one, "/m", "a", b"1") as mine:
                await mine.wait_registered(5)
                changes = view.changes()
                assert await anext(changes) == Joined("a", b"1")
                world.expire(one)
                assert await anext(changes) == Left("a")
                assert await anext(changes) == Joined("a", b"1")
                assert mine.is_registered

    run(check())


def test_member_with_surviving_session_is_never_seen_leaving() -> None:
    """Its signs of life arrive, the answers do not: the store keeps the session, the process gives it up."""

    async def check() -> None:
        async with scene() as world:
            deaf = Script().then(Kind.KEEP_ALIVE, *[Fate(loss=Loss.ANSWER)] * 4)
            one, two = await world.keeper("one", deaf), await world.keeper("two")
            view = Members(two.store, "/m", clock=world.clock, chance=world.chance)
            async with view, Registration(one, "/m", "a", b"1") as mine:
                await mine.wait_registered(5)
                changes = view.changes()
                assert await anext(changes) == Joined("a", b"1")
                first = await one.wait_lease(5)
                assert await anext(changes) == Altered("a", b"1"), "moved to the next session"
                await asyncio.sleep(10)
                assert first.ended == "overdue" and first.session.is_lost
                assert mine.is_registered and view.now == {"a": b"1"}
            assert await anext(changes) == Left("a")

    run(check())


def test_an_id_in_use_is_waited_for() -> None:
    async def check() -> None:
        async with scene() as world:
            one, two = await world.keeper("one"), await world.keeper("two")
            async with Registration(two, "/m", "a", b"later") as second:
                await second.wait_registered(5)
                async with Registration(one, "/m", "a", b"first") as first:
                    with pytest.raises(TimeoutError):
                        await first.wait_registered(3)
                    assert not first.is_registered
                    world.stores[1].crash()
                    await first.wait_registered(5)

    run(check())


def test_member_id_must_be_one_path_part() -> None:
    async def check() -> None:
        async with scene() as world:
            with pytest.raises(BadKey):
                Registration(await world.keeper("one"), "/m", "a/b", b"")

    run(check())
