"""The event loop's side of the SQLite writer: grouping, refusal, answers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from anabranch.metadata.interface import (
    ABSENT,
    VALUE_BYTES_MAX,
    BadKey,
    StoreUnavailable,
    ValueTooLarge,
    VersionMismatch,
)
from anabranch.metadata.sqlite import write_queue as sqlite_intake
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.metadata.sqlite.tables import KEY_CHARS_CACHED, KEYS_CACHED, key_columns
from anabranch.metadata.sqlite.write_queue import WriteQueue
from anabranch.metadata.sqlite.writer import Group, Write
from anabranch.runtime.clock import SystemClock


class Recorder:
    """Stands where the writer's queue is; the test answers."""

    def __init__(self) -> None:
        self.write_queue = WriteQueue(asyncio.get_running_loop())
        self.submitted: list[list[Write]] = []
        self.committed: list[Group] = []
        self.write_queue.start(self.submitted.append, self.committed.append)

    def put(self, key: str = "/k") -> asyncio.Future[int]:
        return self.write_queue.put(key_columns(key), b"", 1)

    def answer(self, *results: object) -> None:
        self.write_queue.deliver(Group(self.submitted[-1], list(results), 0, []))


async def settle() -> None:
    """Let the loop poll its descriptors and run the callbacks."""
    for _ in range(4):
        await asyncio.sleep(0)


async def test_writes_of_one_turn_are_submitted_together() -> None:
    here = Recorder()
    first = here.put("/a")
    second = here.write_queue.write(lambda table, files: "done")
    third = here.put("/b")
    assert here.submitted == []
    await settle()
    assert [[write[0] for write in turn] for turn in here.submitted] == [[first, second, third]]
    here.answer(7, "done", VersionMismatch("/b", 1, 2))
    await settle()
    assert (await first, await second) == (7, "done")
    with pytest.raises(VersionMismatch):
        await third
    assert len(here.committed) == 1
    here.write_queue.close()


async def test_answered_callers_write_in_the_next_group() -> None:
    here = Recorder()

    async def write_twice() -> None:
        await here.put()
        await here.put()

    writers = [asyncio.ensure_future(write_twice()) for _ in range(5)]
    await settle()
    here.answer(*range(5))
    await settle()
    assert [len(turn) for turn in here.submitted] == [5, 5]
    here.answer(*range(5))
    await asyncio.wait_for(asyncio.gather(*writers), 5)
    here.write_queue.close()


async def test_writes_beyond_the_bound_are_refused_until_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_intake, "WAITING_MAX", 2)
    here = Recorder()
    waiting: list[asyncio.Future[Any]] = [here.put(), here.write_queue.write(lambda table, files: None)]
    for refused in (here.put, lambda: here.write_queue.write(lambda table, files: None)):
        with pytest.raises(StoreUnavailable, match="2 metadata writes are already waiting"):
            refused()
    await settle()
    here.answer(1, None)
    await asyncio.gather(*waiting)
    here.put()
    here.put()
    with pytest.raises(StoreUnavailable):
        here.put()
    here.write_queue.close()


async def test_cancelled_caller_does_not_affect_others() -> None:
    here = Recorder()
    gone, stays = here.put(), here.put()
    await settle()
    gone.cancel()
    here.answer(1, 2)
    assert await asyncio.wait_for(stays, 5) == 2
    here.write_queue.close()


async def test_writes_accepted_before_the_end_are_answered() -> None:
    here = Recorder()
    last = here.put()
    here.write_queue.refuse("over")
    assert len(here.submitted) == 1
    with pytest.raises(StoreUnavailable, match="over"):
        here.put()
    here.answer(9)
    here.write_queue.close()
    assert await last == 9


async def test_without_eventfd_it_works_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd")
    async with SqliteStore(tmp_path, SystemClock()) as store:
        version = await asyncio.wait_for(store.put("/a", b"", expected=ABSENT), 5)
        assert await asyncio.wait_for(store.put("/a", b"", expected=version), 5) > version


async def test_plain_puts_refuse_the_same_as_other_puts(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, SystemClock())
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.put("/a", b"", expected=1)
    async with store:
        for key in ("a", "/", "/a/", "/a//b", "/\0", "/\ud800", "/" + "x" * 9000):
            with pytest.raises(BadKey):
                await store.put(key, b"", expected=1)
        with pytest.raises(ValueTooLarge):
            await store.put("/a", b"x" * (VALUE_BYTES_MAX + 1), expected=1)
        for expected in (1, 1 << 70, -(1 << 70)):
            with pytest.raises(VersionMismatch):
                await store.put("/a", b"", expected=expected)
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.put("/a", b"", expected=1)


async def test_both_ways_write_the_same(tmp_path: Path) -> None:
    """Long keys, and values that are not `bytes`, take the general path."""
    async with SqliteStore(tmp_path, SystemClock()) as store:
        for key in ("/ü/é", "/" + "x" * KEY_CHARS_CACHED):
            version = await store.put(key, b"0", expected=ABSENT)
            for value in (b"one", bytearray(b"two"), memoryview(b"three")):
                version = await store.put(key, value, expected=version)  # type: ignore[arg-type]  # callers do it
                found = await store.get(key)
                assert found is not None and (found.value, found.version) == (bytes(value), version)


async def test_times_are_those_of_the_write(tmp_path: Path) -> None:
    clock = SystemClock()
    async with SqliteStore(tmp_path, clock) as store:
        versions = [await store.put(f"/{i}", b"", expected=ABSENT) for i in range(8)]
        before = clock.now_ms()
        await asyncio.gather(*(store.put(f"/{i}", b"x", expected=version) for i, version in enumerate(versions)))
        found = [await store.get(f"/{i}") for i in range(8)]
        assert all(one is not None and before <= one.modified_ms <= clock.now_ms() for one in found)


def test_cache_of_key_columns_is_bounded() -> None:
    for i in range(KEYS_CACHED + 10):
        key_columns(f"/bound/{i}")
    assert key_columns.cache_info().currsize == KEYS_CACHED
    key_columns.cache_clear()
