"""One contract for every metadata backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.port import (
    ABSENT,
    ANY,
    VALUE_BYTES_MAX,
    BadKey,
    Change,
    ChangeKind,
    KeyMissing,
    MetadataStore,
    SessionLost,
    StoreUnavailable,
    ValueTooLarge,
    VersionMismatch,
)
from anabranch.metadata.sqlite import SqliteStore
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import SystemClock


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    made: MetadataStore = (
        MemoryStore(SystemClock()) if request.param == "memory" else SqliteStore(tmp_path, SystemClock())
    )
    async with made as opened:
        yield opened


async def keys_below(store: MetadataStore, prefix: str) -> list[str]:
    return [key async for key, _ in store.scan(prefix)]


async def test_absent_key_is_none(store: MetadataStore) -> None:
    assert await store.get("/nothing") is None


async def test_put_then_get(store: MetadataStore) -> None:
    version = await store.put("/topics/a", b"one", expected=ABSENT)
    found = await store.get("/topics/a")
    assert found is not None
    assert (found.value, found.version, found.ephemeral) == (b"one", version, False)
    assert found.created_ms == found.modified_ms > 0


async def test_second_creator_loses(store: MetadataStore) -> None:
    await store.put("/topics/a", b"one", expected=ABSENT)
    with pytest.raises(VersionMismatch):
        await store.put("/topics/a", b"two", expected=ABSENT)
    found = await store.get("/topics/a")
    assert found is not None and found.value == b"one"


async def test_update_needs_the_version_last_seen(store: MetadataStore) -> None:
    first = await store.put("/a", b"1", expected=ABSENT)
    second = await store.put("/a", b"2", expected=first)
    assert second != first
    with pytest.raises(VersionMismatch) as caught:
        await store.put("/a", b"3", expected=first)
    assert (caught.value.expected, caught.value.found) == (first, second)
    found = await store.get("/a")
    assert found is not None and (found.value, found.version) == (b"2", second)


async def test_update_of_an_absent_key_is_a_mismatch(store: MetadataStore) -> None:
    with pytest.raises(VersionMismatch):
        await store.put("/a", b"1", expected=7)
    assert await store.get("/a") is None


async def test_any_writes_over_whatever_is_there(store: MetadataStore) -> None:
    await store.put("/a", b"1", expected=ANY)
    await store.put("/a", b"2", expected=ANY)
    found = await store.get("/a")
    assert found is not None and found.value == b"2"


async def test_update_keeps_the_creation_time(store: MetadataStore) -> None:
    version = await store.put("/a", b"1", expected=ABSENT)
    before = await store.get("/a")
    await store.put("/a", b"2", expected=version)
    after = await store.get("/a")
    assert before is not None and after is not None
    assert after.created_ms == before.created_ms
    assert after.modified_ms >= before.modified_ms


async def test_version_does_not_return_after_delete_and_create(store: MetadataStore) -> None:
    old = await store.put("/a", b"1", expected=ABSENT)
    await store.delete("/a", expected=old)
    await store.put("/a", b"2", expected=ABSENT)
    with pytest.raises(VersionMismatch):
        await store.put("/a", b"3", expected=old)


async def test_delete(store: MetadataStore) -> None:
    version = await store.put("/a", b"1", expected=ABSENT)
    with pytest.raises(VersionMismatch):
        await store.delete("/a", expected=version + 1)
    await store.delete("/a", expected=version)
    assert await store.get("/a") is None
    with pytest.raises(KeyMissing):
        await store.delete("/a", expected=ANY)
    with pytest.raises(KeyMissing):
        await store.delete("/a", expected=version)


async def test_delete_cannot_expect_absence(store: MetadataStore) -> None:
    await store.put("/a", b"1", expected=ABSENT)
    with pytest.raises(BadRequest):
        await store.delete("/a", expected=ABSENT)
    assert await store.get("/a") is not None


async def test_delete_leaves_keys_below(store: MetadataStore) -> None:
    await store.put("/a", b"1", expected=ABSENT)
    await store.put("/a/b", b"2", expected=ABSENT)
    await store.delete("/a", expected=ANY)
    assert await store.get("/a/b") is not None
    assert await store.children("/") == ["a"]


@pytest.mark.parametrize("key", ["", "a", "/a/", "//a", "/a//b", "/", "/a\0b", "/\ud800"])
async def test_bad_keys_are_refused(store: MetadataStore, key: str) -> None:
    with pytest.raises(BadKey):
        await store.put(key, b"", expected=ANY)
    with pytest.raises(BadKey):
        await store.get(key)


@pytest.mark.parametrize("key", ["/ü/日本/🐍", "/sp ace/%2F/'\"", "/a\x01b", "/" + "x" * 3000])
async def test_any_unicode_works(store: MetadataStore, key: str) -> None:
    await store.put(key, b"v", expected=ABSENT)
    assert await keys_below(store, "/") == [key]
    parent, _, name = key.rpartition("/")
    assert await store.children(parent or "/") == [name]


async def test_values_are_bytes_of_any_content_up_to_the_limit(store: MetadataStore) -> None:
    for value in (b"", bytes(range(256)), b"x" * VALUE_BYTES_MAX):
        await store.put("/a", value, expected=ANY)
        found = await store.get("/a")
        assert found is not None and found.value == value
    with pytest.raises(ValueTooLarge):
        await store.put("/a", b"x" * (VALUE_BYTES_MAX + 1), expected=ANY)


async def test_children_counts_implied_names_once_and_sorted(store: MetadataStore) -> None:
    for key in ("/t/b", "/t/a/x/deep", "/t/a-b/y", "/t/a", "/t/a/z", "/t-other/n", "/t/c/1/2/3", "/t/a0"):
        await store.put(key, b"", expected=ABSENT)
    assert await store.children("/t") == ["a", "a-b", "a0", "b", "c"]
    assert await store.children("/t/a") == ["x", "z"]
    assert await store.children("/t/c/1") == ["2"]
    assert await store.children("/") == ["t", "t-other"]
    assert await store.children("/t/b") == []


async def test_scan_is_the_subtree_and_nothing_beside_it(store: MetadataStore) -> None:
    inside = ["/t", "/t/a", "/t/a/b", "/t/a/b/c", "/t/z", "/t/a-b/d"]
    for key in [*inside, "/t-x", "/t-x/a", "/t0", "/s", "/u/t/a"]:
        await store.put(key, key.encode(), expected=ABSENT)
    found = {key: value.value async for key, value in store.scan("/t")}
    assert found == {key: key.encode() for key in inside}
    order = list(found)
    assert all(order.index("/".join(k.split("/")[:-1])) < order.index(k) for k in inside[1:5])
    assert len(await keys_below(store, "/")) == len(inside) + 5


async def test_scan_of_many_keys(store: MetadataStore) -> None:
    keys = [f"/n/{i % 7}/{i}" for i in range(1700)]
    await asyncio.gather(*(store.put(key, b"v", expected=ABSENT) for key in keys))
    found = await keys_below(store, "/n")
    assert sorted(found) == sorted(keys)
    assert len(found) == len(set(found))


async def test_one_of_many_concurrent_creators_wins(store: MetadataStore) -> None:
    results = await asyncio.gather(
        *(store.put("/lock", str(i).encode(), expected=ABSENT) for i in range(50)), return_exceptions=True
    )
    winners = [i for i, result in enumerate(results) if isinstance(result, int)]
    assert len(winners) == 1
    assert sum(isinstance(result, VersionMismatch) for result in results) == 49
    found = await store.get("/lock")
    assert found is not None and found.value == str(winners[0]).encode()


async def test_compare_and_set_loses_no_increment(store: MetadataStore) -> None:
    await store.put("/count", b"0", expected=ABSENT)

    async def increment() -> None:
        while True:
            found = await store.get("/count")
            assert found is not None
            try:
                await store.put("/count", str(int(found.value) + 1).encode(), expected=found.version)
            except VersionMismatch:
                continue
            return

    await asyncio.gather(*(increment() for _ in range(20)))
    found = await store.get("/count")
    assert found is not None and found.value == b"20"


async def test_session_keys_vanish_with_it(store: MetadataStore) -> None:
    session = await store.open_session(10_000)
    await store.put("/live/a", b"1", expected=ABSENT, session=session)
    await store.put("/live/b", b"1", expected=ABSENT)
    found = await store.get("/live/a")
    assert found is not None and found.ephemeral
    lost_before = session.is_lost
    await session.close()
    await asyncio.wait_for(session.wait_lost(), 1)
    assert (lost_before, session.is_lost) == (False, True)
    assert await store.children("/live") == ["b"]
    with pytest.raises(SessionLost):
        await store.put("/live/a", b"2", expected=ABSENT, session=session)
    await session.close()


async def test_last_put_decides_what_a_key_lives_with(store: MetadataStore) -> None:
    one, two = await store.open_session(10_000), await store.open_session(10_000)
    await store.put("/a", b"", expected=ABSENT, session=one)
    await store.put("/a", b"", expected=ANY, session=two)
    await store.put("/b", b"", expected=ABSENT, session=one)
    await store.put("/b", b"", expected=ANY)
    await one.close()
    assert await store.children("/") == ["a", "b"]
    await two.close()
    assert await store.children("/") == ["b"]


async def test_session_of_another_store_is_refused(store: MetadataStore) -> None:
    async with MemoryStore(SystemClock()) as other:
        foreign = await other.open_session(1000)
        with pytest.raises(SessionLost):
            await store.put("/a", b"", expected=ABSENT, session=foreign)


async def test_watch_tells_of_changes_below_only_and_in_order(store: MetadataStore) -> None:
    watch = store.watch("/t")
    version = await store.put("/t/a", b"1", expected=ABSENT)
    await store.put("/t-not", b"", expected=ABSENT)
    await store.put("/t/a", b"2", expected=version)
    await store.delete("/t/a", expected=ANY)
    await store.put("/t", b"", expected=ABSENT)
    seen = [await asyncio.wait_for(anext(watch), 2) for _ in range(4)]
    assert seen == [
        Change(ChangeKind.CREATED, "/t/a"),
        Change(ChangeKind.MODIFIED, "/t/a"),
        Change(ChangeKind.DELETED, "/t/a"),
        Change(ChangeKind.CREATED, "/t"),
    ]
    watch.close()
    assert [change async for change in watch] == []


async def test_watch_tells_of_vanished_session_keys(store: MetadataStore) -> None:
    session = await store.open_session(10_000)
    await store.put("/live/a", b"", expected=ABSENT, session=session)
    watch = store.watch("/live")
    await session.close()
    assert await asyncio.wait_for(anext(watch), 2) == Change(ChangeKind.DELETED, "/live/a")


async def test_slow_watcher_is_told_to_forget_everything(store: MetadataStore) -> None:
    watch = store.watch("/w")
    await asyncio.gather(*(store.put(f"/w/{i}", b"", expected=ANY) for i in range(4200)))
    seen = [await asyncio.wait_for(anext(watch), 2)]
    assert seen == [Change(ChangeKind.INVALIDATED, "/w")]


async def test_closing_the_store_ends_watches_and_refuses_calls(store: MetadataStore) -> None:
    watch = store.watch("/")
    waiting = asyncio.create_task(anext(watch, None))
    await store.close()
    assert await asyncio.wait_for(waiting, 2) is None
    with pytest.raises(StoreUnavailable):
        await store.get("/a")
    with pytest.raises(StoreUnavailable):
        await store.put("/a", b"", expected=ANY)
    await store.close()


async def test_cancelled_caller_does_not_disturb_others(store: MetadataStore) -> None:
    task = asyncio.ensure_future(store.put("/a", b"1", expected=ABSENT))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.put("/b", b"1", expected=ABSENT)
    assert (await store.get("/b")) is not None
