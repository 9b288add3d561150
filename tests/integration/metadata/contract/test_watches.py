"""Contract of every metadata backend, part five: watches. Changes in order per key, or INVALIDATED after a gap.

A store may also report a parent that it created or removed; its reports on written keys are exact.
"""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    RESERVED,
    Change,
    ChangeKind,
    MetadataStore,
    StoreUnavailable,
    Versioned,
)
from anabranch.metadata.watch_fanout import CHANGES_MAX
from tests.support.in_memory.metadata_stores import PATIENCE_S, World, changes_until, kinds_of

CREATED, MODIFIED, DELETED, INVALIDATED = (
    ChangeKind.CREATED,
    ChangeKind.MODIFIED,
    ChangeKind.DELETED,
    ChangeKind.INVALIDATED,
)
END = "/w/end"


async def changes_seen(watch_store: MetadataStore, prefix: str, writer: MetadataStore) -> list[Change]:
    """The changes below `prefix` while `writer` makes a known series of changes on `/w/a` and beside it."""
    watch = watch_store.watch(prefix)
    version = await writer.put("/w/a", b"1", expected=ABSENT)
    await writer.put("/wa", b"", expected=ABSENT)
    await writer.put("/w/ab", b"", expected=ABSENT)
    await writer.put("/w/a", b"2", expected=version)
    await writer.put("/w/a/below", b"", expected=ABSENT)
    await writer.delete("/w/a/below", expected=ANY)
    await writer.delete("/w/a", expected=ANY)
    await writer.put(f"{prefix}/end", b"", expected=ABSENT)
    return await changes_until(watch, lambda seen: bool(seen) and seen[-1].key == f"{prefix}/end")


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "foreign"])
async def test_changes_reach_watches_in_order(world: World, foreign: bool) -> None:
    store = await world.open()
    seen = await changes_seen(store, "/w/a", await world.open() if foreign else store)
    assert [change.kind for change in seen if change.key == "/w/a"][:3] == [CREATED, MODIFIED, DELETED]
    assert [change.kind for change in seen if change.key == "/w/a/below"] == [CREATED, DELETED]
    assert {change.key for change in seen} == {"/w/a", "/w/a/below", "/w/a/end"}


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "foreign"])
async def test_watch_sees_its_tree_and_nothing_beside_it(world: World, foreign: bool) -> None:
    store = await world.open()
    seen = await changes_seen(store, "/w", await world.open() if foreign else store)
    assert {change.key for change in seen} - {"/w"} == {"/w/a", "/w/ab", "/w/a/below", END}


async def test_watch_of_everything(world: World) -> None:
    store, other = await world.open(), await world.open()
    watch = store.watch("/")
    await store.put("/a", b"", expected=ABSENT)
    await other.put("/b/c", b"", expected=ABSENT)
    seen = await changes_until(watch, lambda seen: {"/a", "/b/c"} <= {change.key for change in seen})
    assert [change for change in seen if change.key != "/b"] == [Change(CREATED, "/a"), Change(CREATED, "/b/c")]


async def test_watch_of_an_existing_key(store: MetadataStore) -> None:
    await store.put("/w", b"1", expected=ABSENT)
    await store.put("/w/a", b"1", expected=ABSENT)
    watch = store.watch("/w")
    await store.put("/w/a", b"2", expected=ANY)
    await store.put("/w", b"2", expected=ANY)
    await store.delete("/w/a", expected=ANY)
    await store.delete("/w", expected=ANY)
    seen = await changes_until(watch, lambda seen: len(seen) == 4)
    assert [change.kind for change in seen if change.key == "/w/a"] == [MODIFIED, DELETED]
    assert [change.kind for change in seen if change.key == "/w"] == [MODIFIED, DELETED]


async def test_reported_change_can_be_read(world: World) -> None:
    """A read after the event never returns the older value."""
    writer, reader = await world.open(), await world.open()
    watch = reader.watch("/w")
    for number in range(30):
        await writer.put("/w/a", b"%d" % number, expected=ANY)
        await kinds_of(watch, "/w/a", 1)
        found = await reader.get("/w/a")
        assert found is not None and int(found.value) >= number


async def test_every_key_of_many_writers_reaches_watches(world: World) -> None:
    store, other = await world.open(), await world.open()
    watch = store.watch("/w")
    keys = {f"/w/{i}" for i in range(200)}
    await asyncio.gather(*((store, other)[i % 2].put(key, b"", expected=ABSENT) for i, key in enumerate(sorted(keys))))
    seen = await changes_until(watch, lambda seen: keys <= {change.key for change in seen})
    assert all(change.kind is CREATED for change in seen if change.key in keys)


async def test_several_watches_get_the_same_changes(world: World) -> None:
    store = await world.open()
    watches = [store.watch("/w"), store.watch("/w"), store.watch("/w/a"), store.watch("/")]
    await store.put("/w/a", b"", expected=ABSENT)
    await store.put("/w/a", b"", expected=ANY)
    for watch in watches:
        assert await kinds_of(watch, "/w/a", 2) == [CREATED, MODIFIED]


async def test_closed_watch_ends_and_the_others_go_on(store: MetadataStore) -> None:
    first, second = store.watch("/w"), store.watch("/w")
    waiting = asyncio.create_task(anext(first, None))
    await asyncio.sleep(0)
    first.close()
    assert await asyncio.wait_for(waiting, PATIENCE_S) is None
    await store.put("/w/a", b"", expected=ABSENT)
    assert await kinds_of(second, "/w/a", 1) == [CREATED]
    assert [change async for change in first] == []
    first.close()


async def test_watch_is_an_iterator(store: MetadataStore) -> None:
    watch = store.watch("/w")
    await store.put("/w/a", b"", expected=ABSENT)
    async with asyncio.timeout(PATIENCE_S):
        async for change in watch:
            if change.key == "/w/a":
                watch.close()
                break


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "foreign"])
async def test_watch_reports_deleted_session_keys(world: World, foreign: bool) -> None:
    owner = await world.open()
    watcher = await world.open() if foreign else owner
    watch = watcher.watch("/live")
    session = await owner.open_session(10_000)
    await owner.put("/live/a", b"", expected=ABSENT, session=session)
    await owner.put("/live/a", b"", expected=ANY, session=session)
    await session.close()
    assert await kinds_of(watch, "/live/a", 3) == [CREATED, MODIFIED, DELETED]


async def test_recreated_key_is_reported_as_created(store: MetadataStore) -> None:
    watch = store.watch("/w")
    for _ in range(3):
        await store.put("/w/a", b"", expected=ABSENT)
        await store.delete("/w/a", expected=ANY)
    assert await kinds_of(watch, "/w/a", 6) == [CREATED, DELETED] * 3


async def test_key_over_an_implied_parent_is_reported(store: MetadataStore) -> None:
    """Created over an implied parent, or deleted with keys below: the change is reported in both cases."""
    await store.put("/w/a/below", b"", expected=ABSENT)
    watch = store.watch("/w/a")
    await store.put("/w/a", b"", expected=ABSENT)
    await kinds_of(watch, "/w/a", 1)
    await store.delete("/w/a", expected=ANY)
    assert (await kinds_of(watch, "/w/a", 1))[-1] is DELETED


async def test_refused_writes_are_not_reported(store: MetadataStore) -> None:
    await store.put("/w/a", b"", expected=ABSENT)
    watch = store.watch("/w")
    for expected in (ABSENT, 1 << 40):
        results = await asyncio.gather(store.put("/w/a", b"", expected=expected), return_exceptions=True)
        assert isinstance(results[0], Exception)
    await store.put(END, b"", expected=ABSENT)
    seen = await changes_until(watch, lambda seen: bool(seen) and seen[-1].key == END)
    assert [change.key for change in seen] == [END]


async def test_unusual_keys_are_reported_unchanged(store: MetadataStore) -> None:
    watch = store.watch("/w")
    keys = ["/w/é\x01%2F", "/w/..", "/w/日本/./🐍"]
    for key in keys:
        await store.put(key, b"", expected=ABSENT)
    await changes_until(watch, lambda seen: set(keys) <= {change.key for change in seen})


async def test_reserved_keys_reach_only_their_own_watches(store: MetadataStore) -> None:
    everything, reserved = store.watch("/"), store.watch(RESERVED)
    await store.put(f"{RESERVED}/a", b"", expected=ABSENT)
    await store.put("/end", b"", expected=ABSENT)
    assert await kinds_of(reserved, f"{RESERVED}/a", 1) == [CREATED]
    seen = await changes_until(everything, bool)
    assert seen[0].key == "/end"


async def test_bulk_writes_and_deletes_reach_watches(world: World) -> None:
    writer, reader = await world.open(), await world.open()
    watch = reader.watch("/w")
    keys = [f"/w/{i}" for i in range(300)]
    await writer.bulk_write([(key, Versioned(b"", 0, 0, 0, False)) for key in keys], preserve=False)
    await changes_until(watch, lambda seen: set(keys) <= {change.key for change in seen})
    await writer.bulk_delete(keys)
    await changes_until(watch, lambda seen: set(keys) <= {change.key for change in seen if change.kind is DELETED})


async def test_slow_watch_is_invalidated(world: World) -> None:
    writer, reader = await world.open(), await world.open()
    slow, quick = reader.watch("/w"), reader.watch("/")
    keys = [f"/w/{i}" for i in range(CHANGES_MAX + 100)]

    async def read_all() -> None:
        await changes_until(quick, lambda seen: bool(seen) and seen[-1].key == "/end")

    reading = asyncio.create_task(read_all())
    for start in range(0, len(keys), 500):
        page = keys[start : start + 500]
        await writer.bulk_write([(key, Versioned(b"", 0, 0, 0, False)) for key in page], preserve=False)
        await reader.sync()
    await writer.put("/end", b"", expected=ABSENT)
    await reading
    first = await asyncio.wait_for(anext(slow), PATIENCE_S)
    assert first == Change(INVALIDATED, "/w")
    await writer.put(END, b"", expected=ABSENT)
    await changes_until(slow, lambda seen: bool(seen) and seen[-1].key == END)


async def test_closing_the_store_ends_watches(store: MetadataStore) -> None:
    watch = store.watch("/")
    waiting = asyncio.create_task(anext(watch, None))
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.wait_for(waiting, PATIENCE_S) is None
    with pytest.raises(StoreUnavailable):
        store.watch("/")
