"""Contract of every metadata backend, part six: bulk reads and writes, and versions that survive a move."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.envelope import MAGIC, wrap_moved
from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    RESERVED,
    VALUE_BYTES_MAX,
    BadKey,
    Counting,
    Item,
    KeyMissing,
    MetadataStore,
    ValueTooLarge,
    Versioned,
    VersionMismatch,
)
from anabranch.metadata.write_gate import GatedStore
from anabranch.model.errors import BadRequest
from tests.support.in_memory.metadata_stores import World, bulk_items, keys_below, must_get, value_of

FLOOR = 5000


def moved(key: str, value: bytes, version: int) -> Item:
    """A record with the version and times of another store."""
    return key, Versioned(value, version, 1_600_000_000_000 + version, 1_700_000_000_000 + version, False)


def assorted() -> list[Item]:
    """Parents and children, unusual names and values, various versions."""
    return [
        moved("/a", b"one", 0),
        moved("/a/b", b"", 1),
        moved("/a/b/c", MAGIC, 2),
        moved("/implied/only/here", wrap_moved(b"inner", 3, 4, 5), 17),
        moved("/ü/日本/..", b"x" * 50_000, FLOOR - 1),
        moved("/\x01/%2F", bytes(range(256)), 4242),
    ]


async def loaded(store: MetadataStore, items: list[Item]) -> MetadataStore:
    await store.raise_versions(FLOOR)
    await store.bulk_write(items, preserve=True)
    return store


async def test_bulk_scan_of_nothing(store: MetadataStore) -> None:
    assert [page async for page in store.bulk_scan("/")] == []
    assert await bulk_items(store, "/nothing") == []


async def test_the_number_of_keys_is_known_without_a_scan(store: MetadataStore) -> None:
    """Reserved keys, and nodes that a store makes above a key, may be counted too."""
    real = store.inner if isinstance(store, GatedStore) else store
    assert isinstance(real, Counting)
    before = await real.keys_about()
    for number in range(60):
        await store.put(f"/counted/{number}", b"", expected=ABSENT)
    await store.sync()
    assert 60 <= await real.keys_about() - before <= 61


async def test_bulk_scan_returns_each_key_once_parents_first(store: MetadataStore) -> None:
    keys = ["/a", *(f"/a/{i}" for i in range(50)), *(f"/a/{i}/deep" for i in range(50))]
    for key in reversed(keys):
        await store.put(key, key.encode(), expected=ABSENT)
    found = await bulk_items(store, "/")
    assert sorted(key for key, _ in found) == sorted(keys)
    place = {key: number for number, (key, _) in enumerate(found)}
    assert all(place["/a"] < place[f"/a/{i}"] < place[f"/a/{i}/deep"] for i in range(50))
    assert dict(found) == {key: value async for key, value in store.scan("/")}


async def test_ordinary_bulk_write_is_a_write(store: MetadataStore) -> None:
    old = await store.put("/a", b"old", expected=ABSENT)
    session = await store.open_session(10_000)
    await store.put("/e", b"old", expected=ABSENT, session=session)
    await store.bulk_write([("/a", Versioned(b"new", 77, 1, 2, False)), *assorted()[3:]], preserve=False)
    await store.bulk_write([("/e", Versioned(b"new", 77, 1, 2, False))], preserve=False)
    found = await must_get(store, "/a")
    assert found.value == b"new" and found.version != old
    assert found.modified_ms > 2  # the writer's clock, not what was given
    await store.put("/a", b"newer", expected=found.version)
    for key, given in assorted()[3:]:
        assert await value_of(store, key) == given.value
    await session.close()
    assert await value_of(store, "/e") == b"new"


async def test_bulk_write_of_nothing(store: MetadataStore) -> None:
    await store.bulk_write([], preserve=False)
    await store.bulk_delete([])
    assert await keys_below(store, "/") == []


async def test_bulk_write_keeps_the_last_of_the_same_key(store: MetadataStore) -> None:
    await store.bulk_write([("/a", Versioned(b"%d" % i, 0, 0, 0, False)) for i in range(400)], preserve=False)
    assert await value_of(store, "/a") == b"399"


async def test_bulk_write_refuses_bad_keys_and_values(store: MetadataStore) -> None:
    with pytest.raises(BadKey):
        await store.bulk_write([("/a/", Versioned(b"", 0, 0, 0, False))], preserve=False)
    with pytest.raises(ValueTooLarge):
        await store.bulk_write([("/a", Versioned(bytes(VALUE_BYTES_MAX + 1), 0, 0, 0, False))], preserve=False)
    with pytest.raises(BadKey):
        await store.bulk_delete(["a"])
    assert await keys_below(store, "/") == []


async def test_bulk_write_of_large_values(store: MetadataStore) -> None:
    """More than any server accepts in one request: batches are bounded by bytes too."""
    value = bytes(range(256)) * 3900  # close to the limit
    items = [(f"/big/{i}", Versioned(value, i, 1, 2, False)) for i in range(8)]
    await loaded(store, items)
    assert sorted(await bulk_items(store, "/big")) == items
    await store.bulk_write(items, preserve=False)
    assert {key: found.value async for key, found in store.scan("/")} == {key: value for key, _ in items}


async def test_bulk_delete(store: MetadataStore) -> None:
    await store.bulk_write(assorted(), preserve=False)
    session = await store.open_session(10_000)
    await store.put("/e", b"", expected=ABSENT, session=session)
    await store.bulk_delete(["/a", "/missing", "/a/b/c", "/missing/too", "/e", "/implied"])
    assert sorted(await keys_below(store, "/")) == sorted(["/a/b", "/implied/only/here", "/ü/日本/..", "/\x01/%2F"])
    await store.bulk_delete(await keys_below(store, "/"))
    assert await store.children("/") == []


async def test_moved_records_come_back_as_given(world: World) -> None:
    store = await loaded(await world.open(), assorted())
    assert sorted(await bulk_items(store, "/")) == sorted(assorted())
    assert sorted([item async for item in store.scan("/")]) == sorted(assorted())
    other = await world.open()
    await other.sync()
    for key, given in assorted():
        assert await other.get(key) == given
    assert await other.children("/") == sorted(["a", "implied", "ü", "\x01"])


async def test_moved_records_can_be_updated_with_their_version(store: MetadataStore) -> None:
    await loaded(store, assorted())
    for key, given in assorted():
        version = await store.put(key, b"new", expected=given.version)
        assert version > FLOOR
        found = await must_get(store, key)
        assert (found.value, found.version) == (b"new", version)
        with pytest.raises(VersionMismatch) as caught:
            await store.put(key, b"stale", expected=given.version)
        assert caught.value.found == version
        assert await store.put(key, b"newer", expected=version) not in (version, given.version)


async def test_moved_records_can_be_deleted_with_their_version(store: MetadataStore) -> None:
    await loaded(store, assorted())
    for key, given in assorted():
        with pytest.raises(VersionMismatch):
            await store.delete(key, expected=given.version + 1)
        await store.delete(key, expected=given.version)
        with pytest.raises(KeyMissing):
            await store.delete(key, expected=given.version)
    assert await store.children("/") == []


async def test_invented_versions_of_moved_records_are_refused(store: MetadataStore) -> None:
    """Including those to which the server's own number of the record would map."""
    await loaded(store, assorted())
    key, given = assorted()[0]
    for wrong in (-FLOOR, -1, 1, 2, 3, FLOOR - 1, *range(FLOOR, FLOOR + 30), FLOOR + 1000):
        with pytest.raises(VersionMismatch) as caught:
            await store.put(key, b"wrong", expected=wrong)
        assert caught.value.found == given.version
        with pytest.raises(VersionMismatch):
            await store.delete(key, expected=wrong)
    with pytest.raises(VersionMismatch):
        await store.put(key, b"wrong", expected=ABSENT)
    assert await must_get(store, key) == given


async def test_one_updater_of_a_moved_record_wins(world: World) -> None:
    stores = [await loaded(await world.open(), assorted()), await world.open()]
    for key, given in assorted():
        results = await asyncio.gather(
            *(stores[i % 2].put(key, b"%d" % i, expected=given.version) for i in range(8)), return_exceptions=True
        )
        winners = [i for i, result in enumerate(results) if isinstance(result, int)]
        assert len(winners) == 1
        await stores[0].sync()
        assert await value_of(stores[0], key) == b"%d" % winners[0]


async def test_updating_a_moved_record_keeps_its_creation_time(store: MetadataStore) -> None:
    await loaded(store, assorted())
    (key, given), (other, given_other) = assorted()[:2]
    await store.put(key, b"new", expected=given.version)
    found = await must_get(store, key)
    assert found.created_ms == given.created_ms
    assert found.modified_ms > given.modified_ms
    await store.put(other, b"new", expected=ANY)
    assert (await must_get(store, other)).created_ms == given_other.created_ms
    await store.bulk_write([(key, given_other), *assorted()[2:]], preserve=False)
    for key, given in (assorted()[0], *assorted()[2:]):
        found = await must_get(store, key)
        assert (found.created_ms, found.version > FLOOR) == (given.created_ms, True)


async def test_later_writes_are_above_the_floor_for_everyone(world: World) -> None:
    one, early = await world.open(), await world.open()
    await early.put("/x", b"", expected=ABSENT)  # a store that has seen the numbers of before
    await early.delete("/x", expected=ANY)
    await loaded(one, assorted())
    late = await world.open()
    await early.sync()
    for number, store in enumerate((one, early, late)):
        version = await store.put(f"/new/{number}", b"", expected=ABSENT)
        assert version > FLOOR
        await one.sync()
        assert (await must_get(one, f"/new/{number}")).version == version
        assert await one.put(f"/new/{number}", b"", expected=version) > FLOOR


async def test_one_store_makes_room_and_another_moves_records_in(world: World) -> None:
    one, two, three = await world.open(), await world.open(), await world.open()
    await one.raise_versions(FLOOR)
    await two.bulk_write(assorted(), preserve=True)
    await three.sync()
    assert sorted(await bulk_items(three, "/")) == sorted(assorted())
    for number, (key, given) in enumerate(assorted()):
        assert await (one, two, three)[number % 3].put(key, b"new", expected=given.version) > FLOOR


async def test_moved_records_become_ephemeral_and_persistent(store: MetadataStore) -> None:
    await loaded(store, assorted())
    session = await store.open_session(10_000)
    key, given = assorted()[-1]
    version = await store.put(key, b"live", expected=given.version, session=session)
    assert version > FLOOR
    found = await must_get(store, key)
    assert (found.value, found.version, found.ephemeral) == (b"live", version, True)
    await session.close()
    assert await store.get(key) is None


async def test_preserving_write_over_what_is_there(store: MetadataStore) -> None:
    """As in a repeated copy: the same key again, with newer versions."""
    await loaded(store, assorted())
    key, given = assorted()[0]
    again = moved(key, b"changed meanwhile", 99)
    await store.bulk_write([again], preserve=True)
    assert await must_get(store, key) == again[1]
    with pytest.raises(VersionMismatch):
        await store.put(key, b"", expected=given.version)
    await store.put(key, b"", expected=99)
    await store.bulk_write([again], preserve=True)  # also over an ordinary write
    assert await must_get(store, key) == again[1]


async def test_move_of_a_move(world: World) -> None:
    """Logical versions are copied, so moves compose."""
    first = await loaded(await world.open(), assorted())
    await first.put("/a", b"written here", expected=0)
    items = await bulk_items(first, "/")
    second = await world.open_beside()
    await second.raise_versions(max(found.version for _, found in items) + 1)
    await second.bulk_write(items, preserve=True)
    assert sorted(await bulk_items(second, "/")) == sorted(items)
    for key, found in items:
        await second.put(key, b"on", expected=found.version)


async def test_many_moved_records(store: MetadataStore) -> None:
    """More than a page of any store."""
    items = [moved(f"/m/{i % 10}/{i:04}", b"%d" % i, i) for i in range(6000)]
    await store.raise_versions(6000)
    await store.bulk_write(items, preserve=True)
    assert sorted(await bulk_items(store, "/m")) == sorted(items)


async def test_a_version_above_the_floor_is_refused(store: MetadataStore) -> None:
    await store.raise_versions(FLOOR)
    with pytest.raises(BadRequest):
        await store.bulk_write([moved("/a", b"", FLOOR + 1)], preserve=True)
    assert await store.get("/a") is None


async def test_versions_are_raised_only_in_an_empty_store(store: MetadataStore) -> None:
    version = await store.put("/a", b"", expected=ABSENT)
    with pytest.raises(BadRequest):
        await store.raise_versions(FLOOR)
    assert (await must_get(store, "/a")).version == version
    await store.put("/a", b"", expected=version)


async def test_versions_are_raised_beside_reserved_keys(store: MetadataStore) -> None:
    await store.put(f"{RESERVED}/mine", b"", expected=ABSENT)
    await store.raise_versions(FLOOR)
    assert await store.put("/a", b"", expected=ABSENT) > FLOOR
    assert await value_of(store, f"{RESERVED}/mine") == b""


async def test_versions_can_be_raised_again_and_never_lowered(store: MetadataStore) -> None:
    await store.raise_versions(FLOOR)
    await store.raise_versions(2 * FLOOR)
    await store.raise_versions(10)
    assert await store.put("/a", b"", expected=ABSENT) > 2 * FLOOR
