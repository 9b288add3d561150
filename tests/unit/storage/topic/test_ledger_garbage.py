"""Unneeded ledgers are listed until their files are deleted, and no longer."""

from __future__ import annotations

import asyncio

from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.topic.ledger_garbage import LedgerGarbage
from tests.support.in_memory.topic_log import publish_time_of
from tests.support.models.memory_ledger_store import MemoryLedgerStore


class SlowToDelete(MemoryLedgerStore):
    """Deletes only when the test allows it; records what it was asked for."""

    def __init__(self) -> None:
        super().__init__(publish_time_of=publish_time_of)
        self.asked: list[int] = []
        self.may_go = asyncio.Event()

    async def delete(self, ledger_id: int) -> None:
        self.asked.append(ledger_id)
        await self.may_go.wait()
        await super().delete(ledger_id)


async def test_ledger_is_listed_until_its_file_is_deleted() -> None:
    ledgers, tasks = SlowToDelete(), TaskOwner("garbage")
    garbage = LedgerGarbage([3], ledgers, tasks)
    garbage.discard([4])
    await asyncio.sleep(0)
    assert ledgers.asked == [3] and list(garbage.listed) == [3, 4]
    garbage.add(5)  # while the other deletions are under way
    ledgers.may_go.set()
    await tasks.drain(60)
    assert ledgers.asked == [3, 4] and list(garbage.listed) == [5]
    await garbage.delete()
    assert ledgers.asked == [3, 4], "the record does not list it yet"
    garbage.saved(garbage.listed)
    await garbage.delete()
    assert not garbage


async def test_concurrent_deletes_and_take_back() -> None:
    ledgers, tasks = SlowToDelete(), TaskOwner("garbage")
    garbage = LedgerGarbage([3, 4], ledgers, tasks)
    ledgers.may_go.set()
    await asyncio.gather(garbage.delete(), garbage.delete())
    assert list(garbage.listed) == []
    garbage.add(7, 8)
    garbage.take_back(7)
    assert list(garbage.listed) == [8]
