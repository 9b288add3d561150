"""Contract of every metadata backend, part one: single keys, their values, versions and times.

The other parts are the other modules of this folder. Every case runs on memory, SQLite and the real ZooKeeper, etcd and
Oxia (`tests/support/in_memory/metadata_stores.py`).
"""

from __future__ import annotations

import pytest

from anabranch.metadata.envelope import HEAD_BYTES, MAGIC, wrap_moved
from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    BadKey,
    KeyMissing,
    MetadataStore,
    StoreUnavailable,
    ValueTooLarge,
    VersionMismatch,
)
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.metadata_stores import STORES, World, keys_below, must_get, params, value_of

MINUTE_MS = 60_000


async def test_absent_key_is_none(store: MetadataStore) -> None:
    assert await store.get("/nothing") is None
    assert await store.get("/nothing/below/it") is None


async def test_put_then_get(store: MetadataStore) -> None:
    version = await store.put("/topics/a", b"one", expected=ABSENT)
    found = await must_get(store, "/topics/a")
    assert (found.value, found.version, found.ephemeral) == (b"one", version, False)
    assert found.created_ms == found.modified_ms > 0


async def test_second_creator_loses(store: MetadataStore) -> None:
    await store.put("/topics/a", b"one", expected=ABSENT)
    with pytest.raises(VersionMismatch) as caught:
        await store.put("/topics/a", b"two", expected=ABSENT)
    assert (caught.value.key, caught.value.expected) == ("/topics/a", ABSENT)
    assert await value_of(store, "/topics/a") == b"one"


async def test_update_needs_the_version_last_seen(store: MetadataStore) -> None:
    first = await store.put("/a", b"1", expected=ABSENT)
    second = await store.put("/a", b"2", expected=first)
    assert second != first
    with pytest.raises(VersionMismatch) as caught:
        await store.put("/a", b"3", expected=first)
    assert (caught.value.key, caught.value.expected, caught.value.found) == ("/a", first, second)
    found = await must_get(store, "/a")
    assert (found.value, found.version) == (b"2", second)


@pytest.mark.parametrize("invented", [-(1 << 40), -2, -1, 0, 1, 7, 1 << 40])
async def test_update_of_an_absent_key_is_a_mismatch(store: MetadataStore, invented: int) -> None:
    """Also for numbers with a special meaning in a server, such as −1 for "any" or "absent"."""
    with pytest.raises(VersionMismatch) as caught:
        await store.put("/a", b"1", expected=invented)
    assert caught.value.found is None
    assert await store.get("/a") is None


@pytest.mark.parametrize("invented", [-(1 << 40), -2, -1, 1 << 40])
async def test_invented_versions_write_and_delete_nothing(store: MetadataStore, invented: int) -> None:
    version = await store.put("/a", b"1", expected=ABSENT)
    with pytest.raises(VersionMismatch):
        await store.put("/a", b"2", expected=invented)
    with pytest.raises(VersionMismatch):
        await store.delete("/a", expected=invented)
    found = await must_get(store, "/a")
    assert (found.value, found.version) == (b"1", version)


async def test_neighbouring_versions_are_refused(store: MetadataStore) -> None:
    for _ in range(3):
        version = await store.put("/a", b"1", expected=ANY)
    for wrong in range(version - 4, version + 5):
        if wrong != version:
            with pytest.raises(VersionMismatch):
                await store.put("/a", b"2", expected=wrong)
    await store.put("/a", b"3", expected=version)


async def test_expected_any_overwrites_any_value(store: MetadataStore) -> None:
    first = await store.put("/a", b"1", expected=ANY)
    second = await store.put("/a", b"2", expected=ANY)
    assert first != second
    found = await must_get(store, "/a")
    assert (found.value, found.version) == (b"2", second)


async def test_every_write_gives_a_version_of_its_own(store: MetadataStore) -> None:
    versions = [await store.put("/a", b"same", expected=ANY) for _ in range(20)]
    assert len(set(versions)) == 20


async def test_keys_have_versions_of_their_own(store: MetadataStore) -> None:
    a = await store.put("/a", b"", expected=ABSENT)
    await store.put("/b", b"", expected=ABSENT)
    await store.put("/b", b"", expected=ANY)
    assert (await must_get(store, "/a")).version == a
    await store.put("/a", b"x", expected=a)


async def test_update_keeps_the_creation_time(store: MetadataStore) -> None:
    version = await store.put("/a", b"1", expected=ABSENT)
    before = await must_get(store, "/a")
    await store.put("/a", b"2", expected=version)
    after = await must_get(store, "/a")
    assert after.created_ms == before.created_ms
    assert after.modified_ms >= before.modified_ms
    await store.put("/a", b"3", expected=ANY)
    assert (await must_get(store, "/a")).created_ms == before.created_ms


async def test_times_are_the_wall_clock(store: MetadataStore) -> None:
    before = SystemClock().now_ms()
    await store.put("/a", b"1", expected=ABSENT)
    after = SystemClock().now_ms()
    found = await must_get(store, "/a")
    assert before - MINUTE_MS <= found.created_ms <= after + MINUTE_MS


async def test_recreated_key_has_a_new_creation_time(store: MetadataStore) -> None:
    await store.put("/a", b"1", expected=ABSENT)
    old = await must_get(store, "/a")
    await store.delete("/a", expected=ANY)
    await store.put("/a", b"2", expected=ABSENT)
    new = await must_get(store, "/a")
    assert new.created_ms >= old.modified_ms
    assert new.created_ms == new.modified_ms


# ZooKeeper counts from nought again: the port promises this of no store, and these four have it all the same
@pytest.mark.parametrize("world", params(kind for kind in STORES if kind != "zk"), indirect=True)
async def test_version_does_not_return_after_delete_and_create(world: World) -> None:
    store = await world.open()
    old = await store.put("/a", b"1", expected=ABSENT)
    await store.delete("/a", expected=old)
    await store.put("/a", b"2", expected=ABSENT)
    with pytest.raises(VersionMismatch):
        await store.put("/a", b"3", expected=old)


async def test_delete(store: MetadataStore) -> None:
    version = await store.put("/a", b"1", expected=ABSENT)
    with pytest.raises(VersionMismatch) as caught:
        await store.delete("/a", expected=version + 1)
    assert (caught.value.expected, caught.value.found) == (version + 1, version)
    await store.delete("/a", expected=version)
    assert await store.get("/a") is None
    with pytest.raises(KeyMissing):
        await store.delete("/a", expected=ANY)
    with pytest.raises(KeyMissing):
        await store.delete("/a", expected=version)


async def test_delete_of_a_missing_key_fails(store: MetadataStore) -> None:
    with pytest.raises(KeyMissing) as caught:
        await store.delete("/x/y/z", expected=ANY)
    assert caught.value.key == "/x/y/z"
    assert await store.children("/") == []


async def test_delete_cannot_expect_absence(store: MetadataStore) -> None:
    await store.put("/a", b"1", expected=ABSENT)
    with pytest.raises(BadRequest):
        await store.delete("/a", expected=ABSENT)
    assert await store.get("/a") is not None


async def test_delete_of_any_version(store: MetadataStore) -> None:
    for _ in range(3):
        await store.put("/a", b"1", expected=ANY)
    await store.delete("/a", expected=ANY)
    assert await store.get("/a") is None
    await store.put("/a", b"2", expected=ABSENT)


@pytest.mark.parametrize("key", ["", "a", "/a/", "//a", "/a//b", "/", "/a\0b", "/\ud800", "/" + "x" * KEY_BYTES_MAX])
async def test_bad_keys_are_refused(store: MetadataStore, key: str) -> None:
    with pytest.raises(BadKey):
        await store.put(key, b"", expected=ANY)
    with pytest.raises(BadKey):
        await store.get(key)
    with pytest.raises(BadKey):
        await store.delete(key, expected=ANY)


STRANGE = {
    "unicode": "/ü/日本/🐍",
    "quotes and percent": "/sp ace/%2F/'\"\\",
    "control": "/a\x01b\n\t\x1f\x7f\x80\x9f",
    "dots": "/./../.../a/..",
    "dots first": "/..",
    "escapes": "/%/%%/%25/%2e%2e/\\x2f",
    "reserved by servers": "/zookeeper/quota",
    "oxia internals": "/__oxia/idx/a",
    "private and last": "/\ue000\uf8ff\ufff0\uffff\U0010ffff",
    "combining": "/e\u0301/é",
    "spaces": "/ /  / a ",
    "long name": "/" + "x" * 3000,
    "longest": "/" + "y" * (KEY_BYTES_MAX - 1),
    "longest of the strange": "/" + "\u0080" * ((KEY_BYTES_MAX - 1) // 2),
    "longest of parts": "/z" * (KEY_BYTES_MAX // 2),
}


@pytest.mark.parametrize("key", STRANGE.values(), ids=STRANGE.keys())
async def test_any_unicode_works(store: MetadataStore, key: str) -> None:
    version = await store.put(key, b"v", expected=ABSENT)
    assert await value_of(store, key) == b"v"
    assert await keys_below(store, "/") == [key]
    parent, _, name = key.rpartition("/")
    assert await store.children(parent or "/") == [name]
    await store.put(key, b"w", expected=version)
    await store.delete(key, expected=ANY)
    assert await store.children("/") == []


async def test_similar_keys_are_distinct(store: MetadataStore) -> None:
    keys = ["/a", "/A", "/a ", "/a%20", "/a%", "/%61", "/\\a", "/é", "/e\u0301", "/a.", "/.", "/..", "/%2E", "/a\x01"]
    for key in keys:
        await store.put(key, key.encode(), expected=ABSENT)
    for key in keys:
        assert await value_of(store, key) == key.encode()
    assert await store.children("/") == sorted(key[1:] for key in keys)


VALUES = {
    "nothing": b"",
    "one": b"\0",
    "all bytes": bytes(range(256)),
    "magic": MAGIC,
    "magic and more": MAGIC + b"hello",
    "like a moved record": wrap_moved(b"payload", 7, 1, 2),
    "torn envelope": wrap_moved(b"", 7, 1, 2)[: HEAD_BYTES - 1],
    "envelope in envelope": wrap_moved(wrap_moved(b"x", 1, 2, 3), 4, 5, 6),
    "900 KB": b"v" * 900_000,
    "the limit": bytes(VALUE_BYTES_MAX),
    "the limit with magic": MAGIC + bytes(VALUE_BYTES_MAX - len(MAGIC)),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
async def test_values_are_any_bytes(store: MetadataStore, value: bytes) -> None:
    first = await store.put("/a", value, expected=ABSENT)
    assert (await must_get(store, "/a")).value == value
    second = await store.put("/a", value, expected=first)
    found = await must_get(store, "/a")
    assert (found.value, found.version) == (value, second)
    assert [found.value async for _, found in store.scan("/")] == [value]


async def test_too_large_values_are_refused_and_harm_nothing(store: MetadataStore) -> None:
    version = await store.put("/a", b"small", expected=ABSENT)
    with pytest.raises(ValueTooLarge) as caught:
        await store.put("/a", bytes(VALUE_BYTES_MAX + 1), expected=ANY)
    assert (caught.value.key, caught.value.size) == ("/a", VALUE_BYTES_MAX + 1)
    found = await must_get(store, "/a")
    assert (found.value, found.version) == (b"small", version)


async def test_longest_key_with_largest_value(store: MetadataStore) -> None:
    key = "/" + "\u0080" * ((KEY_BYTES_MAX - 1) // 2)
    await store.put(key, bytes(VALUE_BYTES_MAX), expected=ABSENT)
    assert len((await must_get(store, key)).value) == VALUE_BYTES_MAX


async def test_other_stores_see_it_after_sync(world: World) -> None:
    one, two = await world.open(), await world.open()
    for number in range(20):
        version = await one.put("/a", b"%d" % number, expected=ANY)
        await two.sync()
        found = await must_get(two, "/a")
        assert (found.value, found.version) == (b"%d" % number, version)


async def test_versions_mean_the_same_in_every_store_object(world: World) -> None:
    one, two = await world.open(), await world.open()
    version = await one.put("/a", b"1", expected=ABSENT)
    version = await two.put("/a", b"2", expected=version)
    version = await one.put("/a", b"3", expected=version)
    await two.delete("/a", expected=version)
    await one.sync()
    assert await one.get("/a") is None


async def test_data_outlives_the_store_object(world: World) -> None:
    keeper = await world.open()  # the memory store lasts as long as one client has it open
    first = await world.open()
    version = await first.put("/kept/a", b"1", expected=ABSENT)
    before = await must_get(first, "/kept/a")
    await first.close()
    second = await world.open()
    await second.sync()
    assert await must_get(second, "/kept/a") == before
    await second.put("/kept/a", b"2", expected=version)
    await keeper.sync()
    assert await value_of(keeper, "/kept/a") == b"2"


async def test_closed_store_refuses_everything(store: MetadataStore) -> None:
    await store.put("/a", b"", expected=ABSENT)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.get("/a")
    with pytest.raises(StoreUnavailable):
        await store.put("/a", b"", expected=ANY)
    with pytest.raises(StoreUnavailable):
        await store.delete("/a", expected=ANY)
    with pytest.raises(StoreUnavailable):
        await store.children("/")
    with pytest.raises(StoreUnavailable):
        await keys_below(store, "/")
    with pytest.raises(StoreUnavailable):
        await store.open_session(1000)
    with pytest.raises(StoreUnavailable):
        await store.sync()
    await store.close()


async def test_capabilities_name_the_store(world: World) -> None:
    capabilities = (await world.open()).capabilities
    assert capabilities.name
    assert capabilities.is_durable == (world.kind != "memory")
    assert capabilities.ttl_ms_min >= 0
