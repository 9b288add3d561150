"""Contract of every metadata backend, part four: sessions and their ephemeral keys."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.interface import ABSENT, ANY, MetadataStore, SessionEvent, SessionLost, VersionMismatch
from anabranch.metadata.memory.store import MemoryStore
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.metadata_stores import PATIENCE_S, World, keys_below, must_get, soon, value_of

LONG_MS = 10_000


async def test_session_keys_vanish_with_it(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    await store.put("/live/a", b"1", expected=ABSENT, session=session)
    await store.put("/live/b", b"1", expected=ABSENT)
    assert (await must_get(store, "/live/a")).ephemeral
    assert not (await must_get(store, "/live/b")).ephemeral
    lost_before = session.is_lost
    await session.close()
    await asyncio.wait_for(session.wait_lost(), PATIENCE_S)
    assert (lost_before, session.is_lost) == (False, True)
    assert await store.children("/live") == ["b"]
    with pytest.raises(SessionLost):
        await store.put("/live/a", b"2", expected=ABSENT, session=session)
    await session.close()


async def test_closing_takes_many_keys_and_leaves_the_others(world: World) -> None:
    one, two = await world.open(), await world.open()
    session, other = await one.open_session(LONG_MS), await two.open_session(LONG_MS)
    await asyncio.gather(*(one.put(f"/e/{i}", b"", expected=ABSENT, session=session) for i in range(60)))
    await two.put("/e/other", b"", expected=ABSENT, session=other)
    await session.close()
    await two.sync()
    assert await two.children("/e") == ["other"]
    assert not other.is_lost


async def test_empty_session_opens_and_closes(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    await session.close()
    assert session.is_lost
    assert await keys_below(store, "/") == []


async def test_closing_the_store_ends_its_sessions(world: World) -> None:
    one, two = await world.open(), await world.open()
    session = await one.open_session(LONG_MS)
    await one.put("/live/a", b"", expected=ABSENT, session=session)
    await two.sync()
    assert (await must_get(two, "/live/a")).ephemeral
    await one.close()
    assert session.is_lost
    await two.sync()
    assert await two.get("/live/a") is None
    assert await two.children("/") == []


async def test_granted_ttl_is_at_least_what_was_asked(store: MetadataStore) -> None:
    session = await store.open_session(3000)
    assert session.ttl_ms >= 3000
    short = await store.open_session(1)
    assert short.ttl_ms >= max(1, store.capabilities.ttl_ms_min)


async def test_session_is_valid_for_its_ttl(store: MetadataStore) -> None:
    clock = SystemClock()
    before = clock.monotonic()
    session = await store.open_session(LONG_MS)
    valid_until = session.valid_until
    assert valid_until <= clock.monotonic() + session.ttl_ms / 1000
    assert valid_until >= before + session.ttl_ms / 1000


async def test_validity_advances_while_the_session_is_alive(store: MetadataStore) -> None:
    session = await store.open_session(4000)
    first = session.valid_until
    await store.put("/live/a", b"", expected=ABSENT, session=session)

    async def has_moved() -> bool:
        return session.valid_until > first

    await soon(has_moved)
    assert not session.is_lost
    valid_until = session.valid_until
    assert valid_until <= SystemClock().monotonic() + session.ttl_ms / 1000


@pytest.mark.slow
async def test_session_outlives_its_ttl_by_keep_alives(store: MetadataStore) -> None:
    session = await store.open_session(2500)  # less, and a busy machine is too late with a sign of life
    await store.put("/live/a", b"", expected=ABSENT, session=session)
    end = SystemClock().monotonic() + 1.3 * session.ttl_ms / 1000

    async def has_passed() -> bool:
        return SystemClock().monotonic() > end

    await soon(has_passed)
    assert not session.is_lost
    assert await value_of(store, "/live/a") == b""
    await store.put("/live/a", b"2", expected=ANY, session=session)


async def test_listeners_are_notified_of_the_end_once(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    events: list[SessionEvent] = []
    silent: list[SessionEvent] = []
    session.listen(events.append)
    stop = session.listen(silent.append)
    stop()
    await session.close()
    await session.close()
    await asyncio.wait_for(session.wait_lost(), PATIENCE_S)
    await store.sync()
    assert (events, silent) == ([SessionEvent.LOST], [])


async def test_ephemeral_becomes_persistent_and_back(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    versions = [await store.put("/a", b"0", expected=ABSENT, session=session)]
    for number in range(1, 6):
        version = await store.put("/a", b"%d" % number, expected=versions[-1], session=None if number % 2 else session)
        found = await must_get(store, "/a")
        assert (found.value, found.version, found.ephemeral) == (b"%d" % number, version, number % 2 == 0)
        for stale in versions:
            with pytest.raises(VersionMismatch):
                await store.put("/a", b"stale", expected=stale)
        versions.append(version)
    assert len(set(versions)) == len(versions)
    await session.close()
    assert await value_of(store, "/a") == b"5"


async def test_turning_ephemeral_keeps_the_creation_time(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    await store.put("/a", b"0", expected=ABSENT)
    before = await must_get(store, "/a")
    await store.put("/a", b"1", expected=ANY, session=session)
    await store.put("/a", b"2", expected=ANY)
    after = await must_get(store, "/a")
    assert (after.created_ms, after.value) == (before.created_ms, b"2")


async def test_last_put_decides_the_owning_session(store: MetadataStore) -> None:
    one, two = await store.open_session(LONG_MS), await store.open_session(LONG_MS)
    await store.put("/a", b"", expected=ABSENT, session=one)
    await store.put("/a", b"", expected=ANY, session=two)
    await store.put("/b", b"", expected=ABSENT, session=one)
    await store.put("/b", b"", expected=ANY)
    await store.put("/c", b"", expected=ABSENT)
    await store.put("/c", b"", expected=ANY, session=one)
    await one.close()
    assert await store.children("/") == ["a", "b"]
    await two.close()
    assert await store.children("/") == ["b"]


async def test_ephemeral_of_another_store_can_be_taken_over(world: World) -> None:
    one, two = await world.open(), await world.open()
    mine, theirs = await one.open_session(LONG_MS), await two.open_session(LONG_MS)
    version = await one.put("/a", b"1", expected=ABSENT, session=mine)
    version = await two.put("/a", b"2", expected=version, session=theirs)
    await one.put("/b", b"1", expected=ABSENT, session=mine)
    await two.put("/b", b"2", expected=ANY)
    await mine.close()
    await two.sync()
    found = await must_get(two, "/a")
    assert (found.value, found.version, found.ephemeral) == (b"2", version, True)
    assert await value_of(two, "/b") == b"2"
    await theirs.close()
    await one.sync()
    assert await keys_below(one, "/") == ["/b"]


async def test_ephemeral_update_by_its_own_session(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    first = await store.put("/a", b"1", expected=ABSENT, session=session)
    second = await store.put("/a", b"2", expected=first, session=session)
    assert first != second
    with pytest.raises(VersionMismatch):
        await store.put("/a", b"3", expected=first, session=session)
    found = await must_get(store, "/a")
    assert (found.value, found.version, found.ephemeral) == (b"2", second, True)
    await session.close()
    assert await store.get("/a") is None


async def test_ephemeral_can_be_deleted_by_anyone(world: World) -> None:
    one, two = await world.open(), await world.open()
    session = await one.open_session(LONG_MS)
    version = await one.put("/a", b"1", expected=ABSENT, session=session)
    await two.delete("/a", expected=version)
    await one.sync()
    assert await one.get("/a") is None
    assert not session.is_lost
    await one.put("/a", b"2", expected=ABSENT, session=session)
    await session.close()
    assert await one.get("/a") is None


async def test_key_recreated_as_persistent_outlives_the_old_session(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    await store.put("/a", b"1", expected=ABSENT, session=session)
    await store.delete("/a", expected=ANY)
    await store.put("/a", b"2", expected=ABSENT)
    await session.close()
    assert await value_of(store, "/a") == b"2"


async def test_one_of_many_ephemeral_creators_wins(world: World) -> None:
    """As in an election."""
    stores = [await world.open(), await world.open()]
    sessions = [await store.open_session(LONG_MS) for store in stores]
    for _ in range(5):
        results = await asyncio.gather(
            *(stores[i % 2].put("/leader", b"%d" % i, expected=ABSENT, session=sessions[i % 2]) for i in range(8)),
            return_exceptions=True,
        )
        winners = [i for i, result in enumerate(results) if not isinstance(result, BaseException)]
        assert len(winners) == 1
        assert sum(isinstance(result, VersionMismatch) for result in results) == 7
        owner = winners[0] % 2
        await stores[owner].delete("/leader", expected=ANY)


async def test_next_creator_wins_once_the_session_is_closed(world: World) -> None:
    one, two = await world.open(), await world.open()
    mine, theirs = await one.open_session(LONG_MS), await two.open_session(LONG_MS)
    await one.put("/leader", b"1", expected=ABSENT, session=mine)
    with pytest.raises(VersionMismatch):
        await two.put("/leader", b"2", expected=ABSENT, session=theirs)
    await mine.close()
    await two.put("/leader", b"2", expected=ABSENT, session=theirs)
    await one.sync()
    assert await value_of(one, "/leader") == b"2"


async def test_put_with_lost_session_writes_nothing(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    version = await store.put("/a", b"1", expected=ABSENT)
    await session.close()
    for expected in (ANY, ABSENT, version):
        for key in ("/a", "/new"):
            with pytest.raises(SessionLost):
                await store.put(key, b"2", expected=expected, session=session)
    assert await value_of(store, "/a") == b"1"
    assert await keys_below(store, "/") == ["/a"]


async def test_session_of_another_store_is_refused(store: MetadataStore) -> None:
    async with MemoryStore(SystemClock()) as other:
        foreign = await other.open_session(1000)
        with pytest.raises(SessionLost):
            await store.put("/a", b"", expected=ABSENT, session=foreign)


async def test_ephemeral_value_may_be_large_and_binary(store: MetadataStore) -> None:
    session = await store.open_session(LONG_MS)
    key = "/live/\x01é/.."
    value = b"\0PM1" + bytes(300_000)
    await store.put(key, value, expected=ABSENT, session=session)
    assert await value_of(store, key) == value
    await session.close()
    assert await keys_below(store, "/") == []


async def test_many_sessions_of_one_store(store: MetadataStore) -> None:
    sessions = [await store.open_session(LONG_MS) for _ in range(8)]
    for number, session in enumerate(sessions):
        await store.put(f"/live/{number}", b"", expected=ABSENT, session=session)
    for session in sessions[::2]:
        await session.close()
    assert await store.children("/live") == ["1", "3", "5", "7"]
    assert [session.is_lost for session in sessions] == [True, False] * 4
