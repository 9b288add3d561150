"""Counters, id blocks and sequential keys."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from anabranch.metadata.interface import ABSENT, BadKey, MetadataStore, OutcomeUnknown
from anabranch.metadata.memory.faults import Fate, Kind, Loss, Script
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.recipes.counter import RECENT, Counter, CounterRecord, IdBlocks
from anabranch.metadata.recipes.sequential_keys import NUMBER_MAX, put_sequential, sequence_key, sequential_key
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

LOSSES = [Loss.REQUEST, Loss.ANSWER, Loss.LATE]


def run(check: Coroutine[Any, Any, None]) -> None:
    run_simulated(check)


def counter(store: MetadataStore, owner: str = "me") -> Counter:
    return Counter(store, "/count", owner=owner, clock=LoopClock(), chance=random.Random(1))


def blocks(store: MetadataStore, block: int) -> IdBlocks:
    return IdBlocks(store, "/ids", clock=LoopClock(), chance=random.Random(1), block=block)


def test_a_record_remembers_its_last_writers() -> None:
    record = CounterRecord()
    for number in range(RECENT + 5):
        record = record.add(2, f"m{number}")
    assert CounterRecord.decode(record.encode()) == record
    assert (record.value, record.writes, len(record.recent)) == (2 * (RECENT + 5), RECENT + 5, RECENT)
    assert record.value_of("m4") is None
    assert record.value_of("m5") == 12
    assert record.remembers(CounterRecord(writes=5))
    assert not record.remembers(CounterRecord(writes=4))
    assert not CounterRecord().remembers(record), "it was deleted meanwhile"


def test_many_add_at_once() -> None:
    async def check() -> None:
        async with MemoryStore(LoopClock()) as store:
            sums = await asyncio.gather(*(counter(store, f"c{n}").add(1, seconds=60) for n in range(30)))
            assert sorted(sums) == list(range(1, 31))
            assert await counter(store).read() == 30
            assert await counter(store, "x").add(-30, seconds=1) == 0

    run(check())


@pytest.mark.parametrize("loss", LOSSES)
def test_added_once_whatever_is_lost(loss: Loss) -> None:
    async def check() -> None:
        script = Script().then(Kind.PUT, Fate(request_s=0.01, loss=loss), Fate(request_s=0.02))
        async with MemoryStore(LoopClock(), None, script) as store:
            assert await counter(store).add(5, seconds=10) == 5
            await asyncio.sleep(1)
            assert await counter(store).read() == 5

    run(check())


def test_too_many_others_leave_it_open() -> None:
    async def check() -> None:
        script = Script().then(Kind.PUT, Fate(loss=Loss.REQUEST)).then(Kind.SYNC, Fate(request_s=60))
        async with MemoryStore(LoopClock(), None, script) as store:
            waiting = asyncio.ensure_future(counter(store).add(1, seconds=100))
            await asyncio.sleep(1)
            for number in range(RECENT + 1):
                await counter(store, f"o{number}").add(1, seconds=1)
            with pytest.raises(OutcomeUnknown):
                await waiting

    run(check())


def test_blocks_are_taken_rarely_and_never_overlap() -> None:
    async def check() -> None:
        script = Script()
        async with MemoryStore(LoopClock(), None, script) as store:
            one, two = blocks(store, 10), blocks(store, 10)
            taken = [await ids.take(seconds=5) for _ in range(50) for ids in (one, two)]
            assert sorted(taken) == list(range(1, 101))
            assert [operation.kind for operation in script.seen].count(Kind.PUT) == 10
            rest = await asyncio.gather(*(one.take(seconds=5) for _ in range(25)))
            assert len({*rest, *taken}) == 125

    run(check())


@pytest.mark.parametrize("loss", LOSSES)
def test_a_block_in_doubt_is_given_to_nobody(loss: Loss) -> None:
    async def check() -> None:
        script = Script().then(Kind.PUT, Fate(request_s=0.01, loss=loss))
        async with MemoryStore(LoopClock(), None, script) as store:
            one, two = blocks(store, 3), blocks(store, 3)
            taken = [await ids.take(seconds=5) for _ in range(9) for ids in (one, two)]
            assert len(set(taken)) == 18

    run(check())


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


def test_prefixes_have_records_of_their_own() -> None:
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
