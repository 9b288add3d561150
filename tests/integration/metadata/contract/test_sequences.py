"""Contract of every metadata backend, part seven: sequential keys work alike on all of them."""

from __future__ import annotations

import asyncio

from anabranch.metadata.interface import ABSENT, ANY, MetadataStore
from anabranch.metadata.recipes.sequential_keys import put_sequential
from tests.support.in_memory.metadata_stores import World, keys_below, must_get, value_of


def number_of(key: str) -> int:
    return int(key[-10:])


async def test_numbers_ascend(store: MetadataStore) -> None:
    made = [await put_sequential(store, "/q/item-", b"%d" % i) for i in range(12)]
    keys = [key for key, _ in made]
    assert keys == sorted(keys)
    assert [number_of(key) for key in keys] == sorted({number_of(key) for key in keys})
    assert await keys_below(store, "/") == keys
    for i, (key, version) in enumerate(made):
        found = await must_get(store, key)
        assert (found.value, found.version, found.ephemeral) == (b"%d" % i, version, False)


async def test_numbers_are_never_used_again(world: World) -> None:
    one, two = await world.open(), await world.open()
    used: list[int] = []
    for store in (one, two, one):
        for _ in range(3):
            key, version = await put_sequential(store, "/q/", b"")
            used.append(number_of(key))
            await store.delete(key, expected=version)
        assert await store.children("/") == []
    await one.close()
    key, _ = await put_sequential(await world.open(), "/q/", b"")
    used.append(number_of(key))
    assert used == sorted(set(used))


async def test_concurrent_writers_share_no_number(world: World) -> None:
    stores = [await world.open(), await world.open()]
    made = await asyncio.gather(*(put_sequential(stores[i % 2], "/q/", b"%d" % i) for i in range(20)))
    keys = [key for key, _ in made]
    assert len(set(keys)) == 20
    await stores[0].sync()
    assert sorted(await keys_below(stores[0], "/q")) == sorted(keys)
    for i, key in enumerate(keys):
        assert await value_of(stores[0], key) == b"%d" % i


async def test_prefixes_have_separate_sequences(store: MetadataStore) -> None:
    first, _ = await put_sequential(store, "/q/a-", b"")
    for _ in range(3):
        await put_sequential(store, "/q/b-", b"")
    second, _ = await put_sequential(store, "/q/a-", b"")
    assert number_of(second) == number_of(first) + 1


async def test_ephemeral_sequence_numbers_are_not_reused(world: World) -> None:
    one, two = await world.open(), await world.open()
    session = await one.open_session(10_000)
    made = [await put_sequential(one, "/members/id-", b"", session=session) for _ in range(3)]
    assert (await must_get(one, made[0][0])).ephemeral
    await session.close()
    await two.sync()
    assert await two.children("/") == []
    key, _ = await put_sequential(two, "/members/id-", b"")
    assert key > made[-1][0]


async def test_keys_put_there_by_hand_are_left_alone(store: MetadataStore) -> None:
    key, _ = await put_sequential(store, "/q/", b"first")
    by_hand = f"/q/{number_of(key) + 1:010}"
    await store.put(by_hand, b"mine", expected=ABSENT)
    other, _ = await put_sequential(store, "/q/", b"second")
    assert other > by_hand
    assert await value_of(store, by_hand) == b"mine"
    await store.delete(by_hand, expected=ANY)
