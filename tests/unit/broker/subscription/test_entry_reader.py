"""Reads of a subscription: at most one block ahead, and only for a backlog that is read in order."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.subscription.dispatcher import ReadForward, ReadThese
from anabranch.broker.subscription.dispatcher_single_active import SingleDispatcher
from anabranch.broker.subscription.entry_reader import COLD_READS, SubscriptionReader
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.interface import StorageError
from anabranch.storage.topic.topic_log import StoredEntry
from tests.support.in_memory.broker_fakes import ListLog

ENTRY_BYTES = 100
READ_BYTES = 1_000


class SlowLog:
    """Nothing is in memory but `resident`; every read is written down, those of the disk wait when `gate` is closed."""

    def __init__(self, entries: int) -> None:
        self.entries = [StoredEntry(Position(7, number), 1, bytes(ENTRY_BYTES)) for number in range(entries)]
        self.reads: list[int] = []
        self.failure: StorageError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.compacted = None
        self.resident = range(0)
        self.resident_reads: list[int] = []

    def read_cached(self, start: Position, entries_max: int, bytes_max: int, upto: Position) -> None:
        return None

    def read_resident(
        self, start: Position, entries_max: int, bytes_max: int, upto: Position
    ) -> list[StoredEntry] | None:
        self.resident_reads.append(start.entry)
        if start.entry not in self.resident:
            return None
        count = min(entries_max, max(bytes_max // ENTRY_BYTES, 1))
        return self.entries[start.entry : min(start.entry + count, upto.entry + 1, self.resident.stop)]

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
        self.reader = SubscriptionReader(self, self.tasks, READ_BYTES)  # type: ignore[arg-type]  # a fake topic
        self.dispatcher = SingleDispatcher(ListLog().cursor, SubscriptionType.EXCLUSIVE, -1)

    def stable_position(self) -> Position:
        return Position(7, self.last)

    async def read(self, start: int) -> list[int]:
        """As the pump does: without waiting if possible."""
        want = ReadForward(Position(7, start))
        found = self.reader.read_cached(want)
        if found is None:
            found = await self.reader.read(self.dispatcher, want)
        await asyncio.sleep(0)
        return [entry.position.entry for entry in found]


async def test_the_next_block_is_read_while_the_last_is_handed_out() -> None:
    scene = Scene(45)
    assert await scene.read(0) == list(range(10))
    assert scene.log.reads == [0], "the next one may be in memory"
    assert await scene.read(10) == list(range(10, 20))
    assert scene.log.reads == [0, 10, 20], "it was not"
    scene.log.gate.clear()
    assert await scene.read(20) == list(range(20, 30))  # without waiting for the disk
    scene.log.gate.set()
    assert await scene.read(30) == list(range(30, 40))
    assert await scene.read(40) == list(range(40, 45))
    assert scene.log.reads == [0, 10, 20, 30, 40]  # each once, nothing behind the end
    assert scene.log.resident_reads == [10]


async def test_blocks_in_memory_are_read_without_a_thread() -> None:
    scene = Scene(100)
    scene.log.resident = range(15, 72)
    await scene.read(0)
    await scene.read(5)  # a jump: not the next position
    assert (scene.log.reads, scene.log.resident_reads) == ([0, 5], [])
    for start in (15, 25, 35, 45, 55):
        assert await scene.read(start) == list(range(start, start + 10))
    assert await scene.read(65) == list(range(65, 72))
    assert scene.log.reads == [0, 5]
    assert scene.reader.resident_reads == 6
    assert await scene.read(72) == list(range(72, 82))
    assert scene.log.reads == [0, 5, 72, 82]


async def test_memory_is_tried_again_after_a_while() -> None:
    scene = Scene(1_000)
    start = 0
    while len(scene.log.resident_reads) < 3:
        start += len(await scene.read(start))
    first, second, third = scene.log.resident_reads
    assert first == 10
    assert second - first == third - second == COLD_READS * 10
    assert scene.log.reads == list(range(0, start + 10, 10)), "each once, and one ahead"


async def test_read_after_a_jump_returns_the_entries_there() -> None:
    scene = Scene(50)
    await scene.read(0)
    await scene.read(10)
    assert await scene.read(30) == list(range(30, 40))
    assert await scene.read(10) == list(range(10, 20))


async def test_unused_read_ahead_is_discarded() -> None:
    scene = Scene(50)
    await scene.read(0)
    await scene.read(10)
    scene.reader.discard()
    await scene.read(20)
    assert scene.log.reads == [0, 10, 20, 20, 30]


async def test_error_of_read_ahead_is_raised_by_the_next_read() -> None:
    scene = Scene(50)
    await scene.read(0)
    await scene.read(10)
    scene.log.failure = StorageError("unreadable")
    await scene.read(20)  # was read before; the one behind it fails now
    with pytest.raises(StorageError, match="unreadable"):
        await scene.read(30)
    scene.log.failure = None
    assert await scene.read(30) == list(range(30, 40))


async def test_read_ahead_stops_at_the_stable_position() -> None:
    scene = Scene(50)
    scene.last = 19
    await scene.read(0)
    assert await scene.read(10) == list(range(10, 20))
    assert scene.log.reads == [0, 10]


async def test_single_entries_are_never_read_ahead() -> None:
    scene = Scene(50)
    want = ReadThese((Position(7, 3), Position(7, 8)))
    found = await scene.reader.read(scene.dispatcher, want)
    assert [entry.position.entry for entry in found] == [3, 8]
    assert scene.log.reads == [3, 8]
