"""Moves from every store to every other: values, versions and times arrive; an old version is valid for one write."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from anabranch.metadata.envelope import MAGIC
from anabranch.metadata.interface import ABSENT, ANY, MetadataStore, Version, VersionMismatch
from tests.support.in_memory.metadata_stores import STORES, World, bulk_items, fresh_url, must_get

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moves")]


async def fill(store: MetadataStore) -> dict[str, Version]:
    """Records of all kinds; returns an outdated version per key."""
    session = await store.open_session(10_000)
    await store.put("/live", b"stays behind", expected=ABSENT, session=session)
    stale = {}
    for number in range(40):
        key = f"/t/{number % 4}/é{number}/%\x01"
        stale[key] = await store.put(key, b"first", expected=ABSENT)
        for _ in range(number % 3 + 1):
            await store.put(key, (MAGIC if number % 5 == 0 else b"") + b"%d" % number, expected=ANY)
    await store.put("/t", b"", expected=ABSENT)
    return stale


@pytest.mark.parametrize("target", STORES)
@pytest.mark.parametrize("source", STORES)
async def test_move(source: str, target: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        old = await World(source, fresh_url(source, tmp_path), stack).open()
        new = await World(target, fresh_url(target, tmp_path), stack).open()
        stale = await fill(old)
        items = [(key, found) for key, found in await bulk_items(old, "/") if not found.ephemeral]
        assert len(items) == 41
        highest = max(found.version for _, found in items)
        await new.raise_versions(highest + 1)
        await new.bulk_write(items, preserve=True)
        assert sorted(await bulk_items(new, "/")) == sorted(items)
        for key, version in stale.items():
            with pytest.raises(VersionMismatch):
                await new.put(key, b"stale", expected=version)
        for key, found in items:
            version = await new.put(key, b"on", expected=found.version)
            assert version > highest
            now = await must_get(new, key)
            assert (now.value, now.version, now.created_ms) == (b"on", version, found.created_ms)
