"""How a subscription reads: one block ahead of a reader that goes through a backlog, and never for nothing."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.consumer import SubscriptionType
from anabranch.broker.dispatch import ReadForward, ReadThese
from anabranch.broker.dispatch_single import SingleDispatcher
from anabranch.broker.subscription_reader import SubscriptionReader
from anabranch.model.position import Position
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.port import StorageError
from anabranch.storage.topiclog import StoredEntry
from tests.broker_parts import ListLog

ENTRY_BYTES = 100
READ_BYTES = 1_000


class SlowLog:
    """Nothing is in memory; every read of the disk is written down, and waits when `gate` is closed."""

    def __init__(self, entries: int) -> None:
        self.entries = [StoredEntry(Position(7, number), 1, bytes(ENTRY_BYTES)) for number in range(entries)]
        self.reads: list[int] = []
        self.failure: StorageError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.compacted = None

    def read_cached(self, start: Position, entries_max: int, bytes_max: int, upto: Position) -> None:
        return None

    async def read(self, start: Position, entries_max: int, bytes_max: int, upto: Position) -> list[StoredEntry]:
        self.reads.append(start.entry)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        count = min(entries_max, max(bytes_max // ENTRY_BYTES, 1))
        return self.entries[start.entry : min(start.entry + count, upto.entry + 1)]


class Scene:
    def __init__(self, entries: int) -> None:
        self.log = SlowLog(entries)
        self.last = entries - 1
        self.tasks = TaskOwner("test")
        self.reader = SubscriptionReader(self, self.tasks, READ_BYTES)  # type: ignore[arg-type]  # a log of its own
        self.dispatcher = SingleDispatcher(ListLog().cursor, SubscriptionType.EXCLUSIVE, -1)

    def stable_position(self) -> Position:
        return Position(7, self.last)

    async def read(self, start: int) -> list[int]:
        found = await self.reader.read(self.dispatcher, ReadForward(Position(7, start)))
        await asyncio.sleep(0)
        return [entry.position.entry for entry in found]


async def test_the_next_block_is_read_while_the_last_is_handed_out() -> None:
    scene = Scene(35)
    assert await scene.read(0) == list(range(10))
    assert scene.log.reads == [0, 10]
    scene.log.gate.clear()
    assert await scene.read(10) == list(range(10, 20))  # without waiting for the disk
    scene.log.gate.set()
    assert await scene.read(20) == list(range(20, 30))
    assert await scene.read(30) == list(range(30, 35))
    assert scene.log.reads == [0, 10, 20, 30]  # each once, nothing behind the end


async def test_who_jumps_gets_what_is_there() -> None:
    scene = Scene(50)
    await scene.read(0)
    assert await scene.read(30) == list(range(30, 40))
    assert await scene.read(10) == list(range(10, 20))


async def test_what_was_read_ahead_is_forgotten_when_nobody_wants_it() -> None:
    scene = Scene(50)
    await scene.read(0)
    scene.reader.forget()
    await scene.read(10)
    assert scene.log.reads == [0, 10, 10, 20]


async def test_a_failure_ahead_waits_for_who_asks() -> None:
    scene = Scene(50)
    await scene.read(0)
    scene.log.failure = StorageError("unreadable")
    await scene.read(10)  # was read before; the one behind it fails now
    with pytest.raises(StorageError, match="unreadable"):
        await scene.read(20)
    scene.log.failure = None
    assert await scene.read(20) == list(range(20, 30))


async def test_only_what_is_stable_is_read_ahead() -> None:
    scene = Scene(50)
    scene.last = 9
    assert await scene.read(0) == list(range(10))
    assert scene.log.reads == [0]


async def test_single_entries_are_never_read_ahead() -> None:
    scene = Scene(50)
    want = ReadThese((Position(7, 3), Position(7, 8)))
    found = await scene.reader.read(scene.dispatcher, want)
    assert [entry.position.entry for entry in found] == [3, 8]
    assert scene.log.reads == [3, 8]
