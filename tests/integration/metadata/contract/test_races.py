"""Contract of every metadata backend, part two: concurrent writers, on one store object and on several."""

from __future__ import annotations

import asyncio

from anabranch.metadata.interface import ABSENT, ANY, Expected, KeyMissing, MetadataStore, Version, VersionMismatch
from tests.support.in_memory.metadata_stores import World, keys_below, must_get, value_of


async def try_put(store: MetadataStore, key: str, value: bytes, expected: Expected) -> Version | None:
    try:
        return await store.put(key, value, expected=expected)
    except VersionMismatch:
        return None


async def increment(store: MetadataStore, key: str) -> None:
    while True:
        found = await must_get(store, key)
        if await try_put(store, key, str(int(found.value) + 1).encode(), found.version) is not None:
            return


async def test_one_of_many_concurrent_creators_wins(store: MetadataStore) -> None:
    results = await asyncio.gather(*(try_put(store, "/lock", b"%d" % i, ABSENT) for i in range(50)))
    winners = [i for i, version in enumerate(results) if version is not None]
    assert len(winners) == 1
    found = await must_get(store, "/lock")
    assert (found.value, found.version) == (b"%d" % winners[0], results[winners[0]])


async def test_one_of_two_creating_stores_wins_each_round(world: World) -> None:
    stores = [await world.open(), await world.open()]
    for round_ in range(20):
        key = f"/locks/{round_}"
        made = await asyncio.gather(*(try_put(stores[i % 2], key, b"%d" % i, ABSENT) for i in range(8)))
        winners = [i for i, version in enumerate(made) if version is not None]
        assert len(winners) == 1, key
        await stores[0].sync()
        assert await value_of(stores[0], key) == b"%d" % winners[0]


async def test_one_of_many_updaters_wins_each_round(world: World) -> None:
    stores = [await world.open(), await world.open()]
    version = await stores[0].put("/a", b"", expected=ABSENT)
    seen = {version}
    for _ in range(20):
        made = await asyncio.gather(*(try_put(stores[i % 2], "/a", b"%d" % i, version) for i in range(8)))
        winners = [(i, new) for i, new in enumerate(made) if new is not None]
        assert len(winners) == 1
        writer, version = winners[0]
        assert version not in seen
        seen.add(version)
        await stores[1].sync()
        found = await must_get(stores[1], "/a")
        assert (found.value, found.version) == (b"%d" % writer, version)


async def test_one_of_many_deleters_wins(world: World) -> None:
    stores = [await world.open(), await world.open()]
    for _ in range(10):
        version = await stores[0].put("/a", b"", expected=ABSENT)
        results = await asyncio.gather(
            *(stores[i % 2].delete("/a", expected=version) for i in range(6)), return_exceptions=True
        )
        assert results.count(None) == 1
        assert all(isinstance(result, KeyMissing) for result in results if result is not None)


async def test_delete_and_update_of_one_version_cannot_both_succeed(world: World) -> None:
    one, two = await world.open(), await world.open()
    for _ in range(10):
        version = await one.put("/a", b"old", expected=ANY)
        updated, deleted = await asyncio.gather(
            try_put(one, "/a", b"new", version), two.delete("/a", expected=version), return_exceptions=True
        )
        await one.sync()
        if updated is not None:
            assert isinstance(deleted, VersionMismatch)
            assert await value_of(one, "/a") == b"new"
        else:
            assert deleted is None
            assert await one.get("/a") is None


async def test_compare_and_set_loses_no_increment(world: World) -> None:
    stores = [await world.open(), await world.open()]
    await stores[0].put("/count", b"0", expected=ABSENT)
    await asyncio.gather(*(increment(stores[i % 2], "/count") for i in range(20)))
    await stores[0].sync()
    assert await value_of(stores[0], "/count") == b"20"


async def test_writes_below_one_parent_do_not_conflict(world: World) -> None:
    """The first writer creates the parents; they are removed while others still write."""
    stores = [await world.open(), await world.open()]

    async def come_and_go(store: MetadataStore, name: str) -> None:
        for _ in range(10):
            await store.put(f"/p/q/{name}", b"", expected=ABSENT)
            await store.delete(f"/p/q/{name}", expected=ANY)

    await asyncio.gather(*(come_and_go(stores[i % 2], str(i)) for i in range(10)))
    for store in stores:
        await store.sync()
        assert await store.children("/") == []
        assert await keys_below(store, "/") == []


async def test_parent_with_a_value_while_children_come_and_go(world: World) -> None:
    stores = [await world.open(), await world.open()]

    async def own_parent() -> None:
        for _ in range(10):
            version = await stores[0].put("/p", b"mine", expected=ABSENT)
            await stores[0].delete("/p", expected=version)

    async def own_child() -> None:
        for _ in range(10):
            version = await stores[1].put("/p/c", b"yours", expected=ABSENT)
            await stores[1].delete("/p/c", expected=version)

    await asyncio.gather(own_parent(), own_child())
    await stores[0].sync()
    assert await keys_below(stores[0], "/") == []


async def test_writes_of_one_caller_keep_their_order(store: MetadataStore) -> None:
    for number in range(50):
        await store.put("/a", b"%d" % number, expected=ANY)
        assert await value_of(store, "/a") == b"%d" % number


async def test_many_at_once(store: MetadataStore) -> None:
    versions = await asyncio.gather(*(store.put(f"/m/{i}", b"%d" % i, expected=ABSENT) for i in range(500)))
    found = await asyncio.gather(*(must_get(store, f"/m/{i}") for i in range(500)))
    assert [(one.value, one.version) for one in found] == [(b"%d" % i, versions[i]) for i in range(500)]


async def test_cancelled_callers_do_not_disturb_others(store: MetadataStore) -> None:
    tasks = [asyncio.ensure_future(store.put(f"/c/{i}", b"1", expected=ABSENT)) for i in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, int) for result in results[1::2])
    await store.put("/b", b"1", expected=ABSENT)
    assert set(await store.children("/c")) >= {str(i) for i in range(1, 20, 2)}
    for i in range(0, 20, 2):  # a cancelled write may have happened, nothing else
        assert await value_of(store, f"/c/{i}") in (None, b"1")
