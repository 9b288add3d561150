"""Export and import between all stores, on real servers: no loss, versions are kept, no number is reused."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.metadata.archive import BadArchive
from anabranch.metadata.interface import ABSENT, ANY, Item, MetadataStore, VersionMismatch
from anabranch.metadata.recipes.sequential_keys import put_sequential
from anabranch.metadata.transfer import (
    Tally,
    TargetNotEmpty,
    check_archive,
    delete_keys,
    export_lines,
    import_lines,
    keys_of,
)
from anabranch.model.errors import BadRequest
from tests.support.in_memory.metadata_stores import STORES, World, bulk_items

VALUES = {
    "/a": b"one",
    "/a/b": b"",
    "/only/below": bytes(range(256)),
    "/ü/日本": '{"x": "ß"}'.encode(),
    "/\x01%": b"\n",
}


async def filled(store: MetadataStore) -> list[Item]:
    """Records of all kinds: some written several times, one ephemeral, one sequential and deleted again."""
    for key, value in VALUES.items():
        version = await store.put(key, b"old", expected=ABSENT)
        await store.put(key, value, expected=version)
    key, version = await put_sequential(store, "/queue/item-", b"1")
    await store.delete(key, expected=version)
    await put_sequential(store, "/queue/item-", b"2")
    session = await store.open_session(10_000)
    await store.put("/live", b"", expected=ABSENT, session=session)
    return sorted(item for item in await bulk_items(store, "/") if not item[1].ephemeral)


async def exported(store: MetadataStore, below: str = "/") -> tuple[list[str], Tally]:
    tally = Tally()
    return [line async for line in export_lines(store, below, tally)], tally


async def load(store: MetadataStore, lines: list[str], *, merge: bool = False, preserve: bool = False) -> Tally:
    tally = Tally()
    await import_lines(store, lines, check_archive(lines), tally, merge=merge, preserve=preserve)
    return tally


@pytest.mark.parametrize("target_kind", STORES)
async def test_round_trip_between_any_two_stores(world: World, target_kind: str, tmp_path: Path) -> None:
    source = await world.open()
    items = await filled(source)
    lines, tally = await exported(source)
    assert (tally.records, tally.sequences, tally.ephemerals) == (len(items), 1, 1)
    target = await world.open_other(target_kind, tmp_path)
    done = await load(target, lines, preserve=True)
    assert (done.records, done.value_bytes, done.sequences) == (tally.records, tally.value_bytes, 1)
    assert sorted(await bulk_items(target, "/")) == items
    again, _ = await exported(target)
    assert sorted(again) == sorted(lines)
    for key, found in items:  # who remembers a version goes on with it; everyone else is refused
        with pytest.raises(VersionMismatch):
            await target.put(key, b"x", expected=found.version + 1000)
        assert await target.put(key, b"x", expected=found.version) > max(one.version for _, one in items)
    assert (await put_sequential(target, "/queue/item-", b"3"))[0] == "/queue/item-0000000003"


async def test_import_without_preserve_is_new(world: World, tmp_path: Path) -> None:
    lines, _ = await exported(await world.open())
    assert len(lines) == 2
    source = await world.open()
    items = await filled(source)
    lines, _ = await exported(source)
    target = await world.open_other(world.kind, tmp_path)
    await load(target, lines)
    found = dict(await bulk_items(target, "/"))
    assert {key: one.value for key, one in found.items()} == {key: one.value for key, one in items}
    assert all(one.created_ms > 0 for one in found.values())


async def test_import_into_a_store_with_keys_is_refused(world: World, tmp_path: Path) -> None:
    store = await world.open()
    await store.put("/mine", b"mine", expected=ABSENT)
    await store.put("/a", b"mine", expected=ABSENT)
    for _ in range(5):
        key, version = await put_sequential(store, "/queue/item-", b"")
        await store.delete(key, expected=version)
    other = await world.open_other("memory", tmp_path)
    await filled(other)
    lines, _ = await exported(other)
    with pytest.raises(TargetNotEmpty):
        await load(store, lines)
    assert {key for key, _ in await bulk_items(store, "/a")} == {"/a"}
    await load(store, lines, merge=True)
    found = {key: one.value for key, one in await bulk_items(store, "/")}
    assert found["/a"] == b"one" and found["/mine"] == b"mine"
    assert (await put_sequential(store, "/queue/item-", b""))[0] == "/queue/item-0000000006"  # never back to 3


async def test_preserve_again_after_everything_was_deleted(world: World, tmp_path: Path) -> None:
    """As after an interrupted import."""
    other = await world.open_other("memory", tmp_path)
    items = await filled(other)
    lines, _ = await exported(other)
    store = await world.open()
    await load(store, lines, preserve=True)
    done = Tally()
    await delete_keys(store, await keys_of(store, "/", Tally()), done)
    assert done.records == len(items)
    assert await store.children("/") == []
    await load(store, lines, preserve=True)
    assert sorted(await bulk_items(store, "/")) == items


async def test_a_part_of_the_tree(world: World) -> None:
    store = await world.open()
    await filled(store)
    _, tally = await exported(store, "/a")
    assert (tally.records, tally.sequences, tally.ephemerals) == (2, 0, 0)
    _, tally = await exported(store, "/queue")
    assert (tally.records, tally.sequences) == (1, 1)
    with pytest.raises(BadRequest):
        await exported(store, "/.meta")


async def test_keys_are_deleted_children_first(world: World) -> None:
    store = await world.open()
    await filled(store)
    counted = Tally()
    keys = await keys_of(store, "/a", counted)
    assert keys == ["/a", "/a/b"] and counted.records == 2
    await delete_keys(store, keys, Tally())
    assert await store.get("/a") is None and await store.get("/a/b") is None
    assert await store.get("/only/below") is not None
    await store.put("/a/b", b"", expected=ANY)


async def test_damaged_archives_are_refused() -> None:
    begin, end = '{"anabranch": "metadata", "format": 1, "below": "/"}', '{"end": true, "records": 1, "sequences": 0}'
    record = '{"key": "/a", "value": "x", "version": 1, "created_ms": 1, "modified_ms": 1}'
    contents = check_archive([begin, record, end])
    assert (contents.records, contents.version_max) == (1, 1)
    for lines, complaint in (
        ([], "cut short"),
        ([begin, record], "cut short"),
        ([begin, end], "damaged"),
        ([begin, record, end, record], "after the end"),
        ([record, end], "first line"),
        ([begin, begin, end], "second header"),
        ([begin, record[:-5], end], "line 2 is not JSON"),
        ([begin, "[]", end], "not a JSON object"),
        ([begin, '{"key": "/a"}', end], "value is missing"),
        ([begin, '{"key": "a", "value": ""}', end], "line 2: metadata keys are paths"),
        ([begin, '{"key": "/.meta/epoch", "value": ""}', end], "reserved for the store"),
        ([begin, '{"key": "/a", "value_base64": "?"}', end], "line 2"),
        ([begin, '{"key": "/a", "value": "", "version": "1"}', end], "not an integer"),
        ([begin, '{"sequence": "x", "last": 1}', end], "not a valid sequence"),
        ([begin.replace("1", "2"), end], "format 2"),
    ):
        with pytest.raises(BadArchive, match=complaint):
            check_archive(lines)
