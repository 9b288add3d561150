"""Sequential keys: numbers are unique, never reused, and move with their records."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from anabranch.metadata.interface import ABSENT, BadKey, MetadataStore, OutcomeUnknown
from anabranch.metadata.memory.faults import Fate, Kind, Loss, Script
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.recipes.sequential_keys import NUMBER_MAX, put_sequential, sequence_key, sequential_key
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

LOSSES = [Loss.REQUEST, Loss.ANSWER, Loss.LATE]


def run(check: Coroutine[Any, Any, None]) -> None:
    run_simulated(check)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MetadataStore:
    return MemoryStore(SystemClock()) if request.param == "memory" else SqliteStore(tmp_path, SystemClock())


async def test_numbers_are_not_given_again(store: MetadataStore) -> None:
    async with store:
        first, version = await put_sequential(store, "/q/item-", b"one")
        assert first == "/q/item-0000000001"
        found = await store.get(first)
        assert found is not None and (found.value, found.version) == (b"one", version)
        await store.delete(first, expected=version)
        assert (await put_sequential(store, "/q/item-", b""))[0] == "/q/item-0000000002"
        assert (await put_sequential(store, "/q/other-", b""))[0] == "/q/other-0000000001"
        assert (await put_sequential(store, "/q/", b""))[0] == "/q/0000000001"
        assert await store.children("/") == ["q"], "the numbers are not in the way"


async def test_many_at_once_get_different_numbers(store: MetadataStore) -> None:
    async with store:
        keys = [key for key, _ in await asyncio.gather(*(put_sequential(store, "/q/", b"") for _ in range(20)))]
        assert sorted(keys) == [f"/q/{number:010d}" for number in range(1, 21)]


async def test_sequential_and_ephemeral(store: MetadataStore) -> None:
    async with store:
        session = await store.open_session(60_000)
        key, _ = await put_sequential(store, "/q/", b"", session=session)
        await session.close()
        assert await store.get(key) is None
        assert (await put_sequential(store, "/q/", b""))[0] == "/q/0000000002"


async def test_a_key_put_by_hand_is_left_alone(store: MetadataStore) -> None:
    async with store:
        await store.put("/q/0000000001", b"mine", expected=ABSENT)
        assert (await put_sequential(store, "/q/", b""))[0] == "/q/0000000002"


async def test_numbers_move_with_their_records(store: MetadataStore) -> None:
    async with store, MemoryStore(SystemClock()) as other:
        key, version = await put_sequential(store, "/q/", b"")
        await store.delete(key, expected=version)
        record = await store.get(sequence_key("/q/"))
        assert record is not None
        await other.put(sequence_key("/q/"), record.value, expected=ABSENT)
        assert (await put_sequential(other, "/q/", b""))[0] == "/q/0000000002"


def test_prefixes_have_separate_sequence_records() -> None:
    prefixes = ["/a", "/a/", "/a/b", "/a%2Fb", "/a%252Fb", "/ä/日"]
    assert len({sequence_key(prefix) for prefix in prefixes}) == len(prefixes)
    assert all(sequence_key(prefix).count("/") == 3 for prefix in prefixes)
    with pytest.raises(BadKey):
        sequential_key("/a", NUMBER_MAX + 1)


async def test_bad_prefixes() -> None:
    async with MemoryStore(SystemClock()) as store:
        for prefix in ["", "a", "//", "/" + "x" * 9000]:
            with pytest.raises(BadKey):
                await put_sequential(store, prefix, b"")
        assert [key async for key, _ in store.scan("/.meta")] == []


@pytest.mark.parametrize("loss", LOSSES)
def test_a_sequential_put_without_an_answer(loss: Loss) -> None:
    async def check() -> None:
        script = Script().then(Kind.PUT, Fate(), Fate(request_s=0.01, loss=loss))
        async with MemoryStore(LoopClock(), None, script) as store:
            if loss is Loss.ANSWER:
                assert (await put_sequential(store, "/q/", b""))[0] == "/q/0000000001"
            else:
                with pytest.raises(OutcomeUnknown, match="/q/0000000001"):
                    await put_sequential(store, "/q/", b"")
            assert (await put_sequential(store, "/q/", b""))[0] == "/q/0000000002"

    run(check())
