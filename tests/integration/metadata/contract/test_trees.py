"""Contract of every metadata backend, part three: parents, children, scans, reserved keys."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    RESERVED,
    BadKey,
    KeyMissing,
    MetadataStore,
    Versioned,
    VersionMismatch,
)
from tests.support.in_memory.metadata_stores import World, bulk_items, changes_until, keys_below, must_get, value_of


def parents_first(order: list[str]) -> bool:
    """Do parents come before their children?"""
    place = {key: number for number, key in enumerate(order)}
    return all(
        place.get(key[:cut], -1) < place[key]
        for key in order
        for cut in range(1, len(key))
        if key[cut] == "/" and key[:cut] in place
    )


def plain(keys: list[str]) -> list[tuple[str, Versioned]]:
    return [(key, Versioned(key.encode()[-40:], 0, 0, 0, False)) for key in keys]


async def test_delete_leaves_keys_below(store: MetadataStore) -> None:
    await store.put("/a", b"1", expected=ABSENT)
    await store.put("/a/b", b"2", expected=ABSENT)
    await store.delete("/a", expected=ANY)
    assert await value_of(store, "/a/b") == b"2"
    assert await store.get("/a") is None
    assert await store.children("/") == ["a"]
    assert await keys_below(store, "/") == ["/a/b"]


async def test_deleted_key_with_keys_below_is_absent_in_every_way(store: MetadataStore) -> None:
    version = await store.put("/a", b"1", expected=ABSENT)
    await store.put("/a/b", b"2", expected=ABSENT)
    await store.delete("/a", expected=version)
    with pytest.raises(KeyMissing):
        await store.delete("/a", expected=ANY)
    with pytest.raises(VersionMismatch):
        await store.put("/a", b"3", expected=version)
    new = await store.put("/a", b"4", expected=ABSENT)
    found = await must_get(store, "/a")
    assert (found.value, found.version) == (b"4", new)
    assert found.created_ms == found.modified_ms


async def test_implied_parent_is_not_a_key(store: MetadataStore) -> None:
    await store.put("/a/b/c", b"1", expected=ABSENT)
    for parent in ("/a", "/a/b"):
        assert await store.get(parent) is None
        with pytest.raises(KeyMissing):
            await store.delete(parent, expected=ANY)
        with pytest.raises(VersionMismatch) as caught:
            await store.put(parent, b"", expected=0)
        assert caught.value.found is None
    assert await keys_below(store, "/") == ["/a/b/c"]
    assert await value_of(store, "/a/b/c") == b"1"


async def test_implied_parent_can_be_created(store: MetadataStore) -> None:
    await store.put("/a/b", b"below", expected=ABSENT)
    version = await store.put("/a", b"now", expected=ABSENT)
    with pytest.raises(VersionMismatch):
        await store.put("/a", b"again", expected=ABSENT)
    found = await must_get(store, "/a")
    assert (found.value, found.version, found.ephemeral) == (b"now", version, False)
    assert found.created_ms == found.modified_ms > 0
    assert await keys_below(store, "/") == ["/a", "/a/b"]


async def test_empty_parents_vanish(store: MetadataStore) -> None:
    await store.put("/a/b/c/d", b"", expected=ABSENT)
    await store.put("/a/x", b"", expected=ABSENT)
    await store.delete("/a/b/c/d", expected=ANY)
    assert await store.children("/a") == ["x"]
    assert await store.children("/a/b") == []
    await store.delete("/a/x", expected=ANY)
    assert await store.children("/") == []


async def test_parent_deleted_before_its_last_child_vanishes_with_it(store: MetadataStore) -> None:
    await store.put("/a", b"", expected=ABSENT)
    await store.put("/a/b", b"", expected=ABSENT)
    await store.delete("/a", expected=ANY)
    await store.delete("/a/b", expected=ANY)
    assert await store.children("/") == []


async def test_parent_with_a_value_stays_without_children(store: MetadataStore) -> None:
    await store.put("/a/b", b"", expected=ABSENT)
    await store.put("/a", b"", expected=ABSENT)
    await store.delete("/a/b", expected=ANY)
    assert await store.children("/") == ["a"]
    assert await value_of(store, "/a") == b""


async def test_versions_of_parents_do_not_move_with_their_children(store: MetadataStore) -> None:
    version = await store.put("/a", b"1", expected=ABSENT)
    before = await must_get(store, "/a")
    await store.put("/a/b", b"", expected=ABSENT)
    await store.delete("/a/b", expected=ANY)
    assert await must_get(store, "/a") == before
    await store.put("/a", b"2", expected=version)


async def test_children_counts_implied_names_once_and_sorted(store: MetadataStore) -> None:
    for key in ("/t/b", "/t/a/x/deep", "/t/a-b/y", "/t/a", "/t/a/z", "/t-other/n", "/t/c/1/2/3", "/t/a0"):
        await store.put(key, b"", expected=ABSENT)
    assert await store.children("/t") == ["a", "a-b", "a0", "b", "c"]
    assert await store.children("/t/a") == ["x", "z"]
    assert await store.children("/t/c/1") == ["2"]
    assert await store.children("/") == ["t", "t-other"]
    assert await store.children("/t/b") == []
    assert await store.children("/nothing/here") == []


async def test_children_are_sorted_by_code_points(store: MetadataStore) -> None:
    names = ["a", "B", "é", "Z", "zz", "%41", "日", "\uffff", "\U0001f40d", "0", "10", "9", "~", "\x01", ".", "..", "-"]
    for name in names:
        await store.put(f"/t/{name}", b"", expected=ABSENT)
    assert await store.children("/t") == sorted(names)


async def test_children_of_a_bad_key(store: MetadataStore) -> None:
    for bad in ("", "a", "/a/", "/a//b"):
        with pytest.raises(BadKey):
            await store.children(bad)
        with pytest.raises(BadKey):
            await keys_below(store, bad)
        with pytest.raises(BadKey):
            await bulk_items(store, bad)
        with pytest.raises(BadKey):
            store.watch(bad)


async def test_scan_is_the_subtree_and_nothing_beside_it(store: MetadataStore) -> None:
    inside = ["/t", "/t/a", "/t/a/b", "/t/a/b/c", "/t/z", "/t/a-b/d", "/t/%/é"]
    beside = ["/t-x", "/t-x/a", "/t0", "/s", "/u/t/a", "/t%2Fa", "/t\x01", "/T"]
    for key in [*inside, *beside]:
        await store.put(key, key.encode(), expected=ABSENT)
    found = {key: value.value async for key, value in store.scan("/t")}
    assert found == {key: key.encode() for key in inside}
    assert parents_first(list(found))
    assert sorted(await keys_below(store, "/")) == sorted([*inside, *beside])
    assert {key for key, _ in await bulk_items(store, "/t")} == set(inside)


async def test_scan_of_one_key_and_of_none(store: MetadataStore) -> None:
    await store.put("/t/a", b"", expected=ABSENT)
    assert await keys_below(store, "/t/a") == ["/t/a"]
    assert await keys_below(store, "/t/a/b") == []
    assert await keys_below(store, "/none") == []
    assert await keys_below(store, "/") == ["/t/a"]


async def test_scan_and_get_return_equal_records(store: MetadataStore) -> None:
    session = await store.open_session(10_000)
    await store.put("/t/a", b"1", expected=ABSENT)
    await store.put("/t/a", b"2", expected=ANY)
    await store.put("/t/b", b"3", expected=ABSENT, session=session)
    scanned = {key: found async for key, found in store.scan("/t")}
    assert scanned == {key: await must_get(store, key) for key in ("/t/a", "/t/b")}
    assert scanned["/t/b"].ephemeral and not scanned["/t/a"].ephemeral
    assert dict(await bulk_items(store, "/t")) == scanned


async def test_scan_of_many_keys(store: MetadataStore) -> None:
    keys = [f"/n/{i % 7}/{i}" for i in range(1700)]
    await asyncio.gather(*(store.put(key, b"v", expected=ABSENT) for key in keys))
    found = await keys_below(store, "/n")
    assert sorted(found) == sorted(keys)
    assert len(found) == len(set(found))


async def test_scan_of_values_larger_than_any_message(store: MetadataStore) -> None:
    """Twelve megabytes: more than the default message limit of gRPC."""
    value = bytes(range(256)) * 2400
    keys = [f"/big/{i:02}" for i in range(20)]
    for key in keys:
        await store.put(key, value, expected=ABSENT)
    assert {key: found.value async for key, found in store.scan("/big")} == dict.fromkeys(keys, value)
    assert [key for key, found in await bulk_items(store, "/") if found.value == value] == keys


async def test_abandoned_scan_harms_nothing(store: MetadataStore) -> None:
    await store.bulk_write(plain([f"/n/{i}" for i in range(3000)]), preserve=False)
    async for _ in store.scan("/n"):
        break
    assert len(await keys_below(store, "/n")) == 3000


async def test_scan_while_others_write(world: World) -> None:
    one, two = await world.open(), await world.open()
    await one.bulk_write(plain([f"/n/{i:04}" for i in range(2000)]), preserve=False)
    seen: list[str] = []
    async for key, _ in one.scan("/n"):
        if len(seen) == 10:
            await two.bulk_delete([f"/n/{i:04}" for i in range(1000, 1500)])
            await two.bulk_write(plain([f"/n/{i:04}" for i in range(2000, 2500)]), preserve=False)
        seen.append(key)
    assert len(seen) == len(set(seen))
    always = {f"/n/{i:04}" for i in (*range(1000), *range(1500, 2000))}
    assert always <= set(seen) <= {f"/n/{i:04}" for i in range(2500)}


async def test_deep_tree(store: MetadataStore) -> None:
    keys = ["/d" + "/x" * depth for depth in range(100)]
    for key in reversed(keys):  # the deepest first: all parents are implied, then become keys
        await store.put(key, key.encode(), expected=ABSENT)
    assert await keys_below(store, "/d") == keys
    assert await store.children(keys[50]) == ["x"]
    for key in keys[:-1]:
        await store.delete(key, expected=ANY)
    assert await keys_below(store, "/") == [keys[-1]]
    await store.delete(keys[-1], expected=ANY)
    assert await store.children("/") == []


async def test_ten_thousand_children(store: MetadataStore) -> None:
    names = [f"{i:05}" for i in range(10_000)]
    await store.bulk_write(plain([f"/many/{name}" for name in names]), preserve=False)
    assert await store.children("/many") == names
    assert sorted(await keys_below(store, "/many")) == [f"/many/{name}" for name in names]
    await store.bulk_delete([f"/many/{name}" for name in names])
    assert await store.children("/") == []


async def test_reserved_keys_show_only_when_asked_for(store: MetadataStore) -> None:
    await store.put("/seen", b"", expected=ABSENT)
    await store.put(f"{RESERVED}/a/b", b"hidden", expected=ABSENT)
    await store.put(f"{RESERVED}l", b"", expected=ABSENT)
    assert await value_of(store, f"{RESERVED}/a/b") == b"hidden"
    assert await store.children("/") == [".metal", "seen"]
    assert await keys_below(store, "/") == [f"{RESERVED}l", "/seen"]
    assert [key for key, _ in await bulk_items(store, "/")] == [f"{RESERVED}l", "/seen"]
    assert f"{RESERVED}/a/b" in await keys_below(store, RESERVED)
    assert "a" in await store.children(RESERVED)


async def test_neighbouring_prefixes_are_separate(world: World) -> None:
    """Two prefixes on one server, one of them a prefix of the other."""
    one, two = await world.open(), await world.open_beside()
    watch = one.watch("/")
    await two.put("/a", b"2", expected=ABSENT)
    assert await keys_below(one, "/") == []
    await one.put("/b", b"1", expected=ABSENT)
    assert (await changes_until(watch, bool))[0].key == "/b"
    assert await keys_below(one, "/") == ["/b"]
    assert await keys_below(two, "/") == ["/a"]
