"""A former owner that wakes up late deletes nothing: its successor may have found more in a ledger than it knows of."""

from __future__ import annotations

import pytest

from anabranch.storage.interface import StorageError
from anabranch.storage.topic.topic_log import TopicLog, TopicLogSettings
from tests.support.in_memory.topic_log import Receipts, TopicWorld, read_all

KEEP = TopicLogSettings(retention_ms=-1, retention_bytes=-1, cursor_flush_ms=10)


async def unheard(world: TopicWorld) -> tuple[TopicLog, TopicLog]:
    """The former owner and its successor. The entry of the first ledger is durable; its append failed at the writer.
    Deduplication may have confirmed it since, because the successor has it."""
    old = await world.open(KEEP, ownership_epoch=1)
    receipts = Receipts()
    old.append(b"0", 1, receipts, 0)
    world.ledgers.commit_unheard(StorageError("fenced"))
    assert len(receipts.failures) == 1
    new = await world.open(KEEP, ownership_epoch=2)
    assert await read_all(new) == [b"0"]
    return old, new


@pytest.mark.parametrize("how", ["append", "close"])
async def test_empty_ledger_of_a_former_owner_is_not_deleted(how: str) -> None:
    world = TopicWorld(auto=False)
    old, new = await unheard(world)
    if how == "append":
        receipts = Receipts()
        old.append(b"1", 1, receipts, 1)
        await world.settle(lambda: len(receipts.outcomes) == 1)
        assert [code for _, code in receipts.failures] == ["fenced"]
    await old.close()
    await world.settle()
    assert await read_all(new) == [b"0"]
    await new.close()


async def test_empty_ledger_of_the_owner_is_deleted_after_the_record_lists_it_as_garbage() -> None:
    world = TopicWorld(auto=False)
    topic = await world.open(KEEP)
    (failed,) = (one.id for one in topic.stats().ledgers)
    receipts = Receipts()
    topic.append(b"0", 1, receipts, 0)
    world.ledgers.commit_unheard(StorageError("no answer"))
    topic.append(b"0", 1, receipts, 0)
    await world.settle(lambda: world.ledgers.queued == 1)
    assert [one.id for one in topic.stats().ledgers] != [failed]
    await world.settle(lambda: failed not in world.ledgers.ledger_ids)
    world.ledgers.commit()
    assert await read_all(topic) == [b"0"]
    await topic.close()
