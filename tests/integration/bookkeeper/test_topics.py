"""Topic logs on real bookies: takeover, ledgers that another process closes, the dangerous order of a stalled owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest

from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.position import EARLIEST, LATEST
from anabranch.node.adapters.metadata_records import MetadataRecords
from anabranch.runtime.clock import SystemClock
from anabranch.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from anabranch.storage.bookkeeper.settings import parse_storage_url
from anabranch.storage.interface import Fenced
from anabranch.storage.topic.topic_log import TopicLog, TopicLogSettings
from anabranch.storage.topic.topic_record import LedgerRow, decode_record, encode_record
from tests.services.bookkeeper import BookKeeper
from tests.support.in_memory.topic_log import Receipts, publish_time_of, read_all

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bookkeeper")]

KEEP = TopicLogSettings(retention_ms=-1, retention_bytes=-1, cursor_flush_ms=10)


class Brokers:
    """Stores of several brokers over one metadata store."""

    def __init__(self, bookies: BookKeeper) -> None:
        self.clock = SystemClock()
        self.metadata = MemoryStore(self.clock)
        self.records = MetadataRecords(self.metadata)
        self._url = parse_storage_url(f"{bookies.url}?ensemble=3")
        self._stores: list[BookKeeperLedgerStore] = []

    async def store(self) -> BookKeeperLedgerStore:
        made = BookKeeperLedgerStore(self._url, self.clock, Random(7), publish_time_of, cache_bytes=1 << 20)
        self._stores.append(await made.__aenter__())
        return made

    async def open(self, store: BookKeeperLedgerStore) -> TopicLog:
        return await TopicLog.open(
            "t/n/topic", ledgers=store, metadata=self.records, ids=store, clock=self.clock, settings=KEEP
        )

    async def record_key(self) -> str:
        return "/topic-logs/t/n/topic"

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


@pytest.fixture
async def brokers(running: BookKeeper) -> AsyncIterator[Brokers]:
    made = Brokers(running)
    async with made.metadata:
        yield made
        await made.close()


async def fill(topic: TopicLog, first: int, count: int) -> Receipts:
    receipts = Receipts()
    for number in range(first, first + count):
        topic.append(b"%d" % number, 1, receipts, number)
    await receipts.wait(count)
    return receipts


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_takeover_finds_everything_and_the_former_owner_confirms_nothing(brokers: Brokers) -> None:
    one, two = await brokers.store(), await brokers.store()
    old = await brokers.open(one)
    cursor = await old.create_cursor("s", EARLIEST, {})
    assert not (await fill(old, 0, 100)).failures
    cursor.ack_cumulative(old.last_position)
    await old.flush_state()
    new = await brokers.open(two)
    assert await read_all(new) == numbers(100)
    assert new.cursors["s"].mark_delete == new.last_position
    late = await fill(old, 100, 10)
    assert len(late.failures) == 10
    later = await fill(old, 110, 1)
    assert [code for _, code in later.failures] == ["fenced"], "the record names another owner"
    assert not (await fill(new, 100, 50)).failures
    assert await read_all(new) == numbers(150)
    await new.close()
    await old.close()


async def test_owner_goes_on_when_another_process_closes_its_ledger(brokers: Brokers) -> None:
    """BookKeeper's autorecovery does so when a bookie of an open ledger has been away for half a minute."""
    one, other = await brokers.store(), await brokers.store()
    topic = await brokers.open(one)
    assert not (await fill(topic, 0, 50)).failures
    (open_ledger,) = (one.id for one in topic.stats().ledgers)
    await other.recover(open_ledger)
    refused = await fill(topic, 50, 5)
    assert [code for _, code in refused.failures] == ["bookkeeper-ledger-fenced"] * 5
    assert not (await fill(topic, 50, 50)).failures, "producers send again"
    assert await read_all(topic) == numbers(100)
    reopened = await brokers.open(other)
    assert await read_all(reopened) == numbers(100), "nothing is lost, nothing is there twice"
    await reopened.close()
    with pytest.raises(Fenced):
        await topic.close()


async def test_announced_ledger_without_node_is_empty_and_cannot_be_created_later(brokers: Brokers) -> None:
    one = await brokers.store()
    topic = await brokers.open(one)
    assert not (await fill(topic, 0, 10)).failures
    await topic.close()
    key = await brokers.record_key()
    found = await brokers.records.load(key)
    assert found is not None
    record = decode_record(found.value)
    gone = await one.allocate()
    await one.delete(gone)
    changed = replace(record, ledgers=(*record.ledgers, LedgerRow(gone)))
    await brokers.records.save(key, encode_record(changed), version=found.version)
    again = await brokers.open(one)
    assert await read_all(again) == numbers(10)
    assert not (await fill(again, 10, 10)).failures
    await again.close()


async def test_rolls_trims_and_deletes(brokers: Brokers) -> None:
    one, two = await brokers.store(), await brokers.store()
    topic = await brokers.open(one)
    for first in range(0, 300, 100):
        assert not (await fill(topic, first, 100)).failures
        await topic.roll()
    assert len(topic.stats().ledgers) == 4
    assert await topic.position_at_time(150) == (await topic.read(EARLIEST, 1, 1, LATEST))[0].position._replace(
        ledger=topic.stats().ledgers[1].id, entry=50
    )
    ledgers = [one.id for one in topic.stats().ledgers]
    topic.settings = replace(KEEP, retention_ms=0, retention_bytes=0)
    assert await topic.trim() == 3
    for ledger in ledgers[:3]:
        assert (await two.summarize(ledger)).entries == 0
    await topic.delete()
    await asyncio.sleep(0)
    assert await brokers.records.load(await brokers.record_key()) is None
