"""The recipes on every real store: what the simulations show in memory holds on the servers too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.metadata.interface import ABSENT, MetadataStore
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
    """End the session as an expiry would, without the keeper having closed it."""
    lease = await keeper.wait_lease(PATIENCE_S)
    await lease.session.close()


async def test_leaders_follow_each_other_with_growing_terms(keepers: Pair) -> None:
    one, two = keepers
    async with Election(one, "/e", b"1") as first:
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
        await two.store.sync()
        assert await read_leader(two.store, "/e") == Leader(3, b"1")
        term = await read_term(two.store, "/e")
        assert term is not None and term.term == 3


async def test_a_new_session_is_a_new_term(keepers: Pair) -> None:
    one, _ = keepers
    async with Election(one, "/e", b"1") as election:
        leads = await election.wait_elected(PATIENCE_S)
        await lose_session(one)
        await leads.wait_ended()
        assert (await election.wait_elected(PATIENCE_S)).term == 2


async def test_key_of_old_session_moves_to_the_new_one(world: World) -> None:
    """Recipes rely on this while the store has not ended the old session yet."""
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
            # A view that reads only after the new registration sees both changes as one.
            change = await anext(changes)
            if change != Altered("a", b"1"):
                assert change == Left("a")
                assert await anext(changes) == Joined("a", b"1")
        assert await anext(changes) == Left("a")
