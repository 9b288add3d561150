"""Ledgers on real bookies: contract of the storage port, faults of bookies, fencing, BookKeeper's Java client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from anabranch.runtime.clock import SystemClock
from anabranch.storage.bookkeeper import packets
from anabranch.storage.bookkeeper.entry_body import body_head
from anabranch.storage.bookkeeper.errors import EntryTooLarge, LedgerFenced, NotEnoughBookies
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, Quorums, Segment
from anabranch.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from anabranch.storage.bookkeeper.ledger_writer import PAYLOAD_BYTES_MAX, BookKeeperWriter
from anabranch.storage.bookkeeper.settings import parse_storage_url
from anabranch.storage.interface import CorruptEntry, Fenced, IgnoringListener, LedgerNotFound
from tests.services.bookkeeper import BookKeeper, JavaLedgers
from tests.support.traffic.ledger_calls import Sink, append, expected, fill, payload_of, publish_time_of, read_all

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bookkeeper")]


@asynccontextmanager
async def open_store(bookies: BookKeeper, *, timeout_ms: int = 5000) -> AsyncIterator[BookKeeperLedgerStore]:
    url = parse_storage_url(f"{bookies.url}?ensemble=3&write-quorum=3&ack-quorum=2&timeout-ms={timeout_ms}")
    store = BookKeeperLedgerStore(url, SystemClock(), Random(7), publish_time_of, cache_bytes=1 << 20)
    async with store:
        yield store


async def new_ledger(store: BookKeeperLedgerStore) -> BookKeeperWriter:
    writer = store.create(await store.allocate())
    assert isinstance(writer, BookKeeperWriter)
    return writer


async def test_appends_are_confirmed_in_order_and_read_back(running: BookKeeper) -> None:
    sink, ends = Sink(), list[int]()

    class Listener(IgnoringListener):
        def on_group_end(self) -> None:
            ends.append(len(sink.durable))

    async with open_store(running) as store, open_store(running) as other:
        store.start(Listener())
        writer = await new_ledger(store)
        ledger = writer.ledger_id
        assert store.read_cached(ledger, 0, 10, 1000) == []
        await fill(writer, sink, 500)
        assert sink.durable == [(ledger, number) for number in range(500)]
        assert ends[-1] == 500
        assert writer.durable_entry_id == 499
        assert await read_all(store, ledger, 500) == expected(500)
        sealed = await writer.seal()
        assert sealed.entries == 500 and sealed.last_publish_ms == 499
        assert await other.summarize(ledger) == sealed
        assert await read_all(other, ledger, 500) == expected(500)
        assert await other.messages_before(ledger, 0) == 0
        for entry in (1, 2, 250, 499, 500):
            assert await other.messages_before(ledger, entry) == sum(1 + n % 3 for n in range(entry))
        for publish_ms, entry in ((0, 0), (1, 1), (250, 250), (499, 499), (500, 500)):
            assert await other.first_entry_at(ledger, publish_ms, 500) == entry
        await other.delete(ledger)
        await other.delete(ledger)
    async with open_store(running) as late:
        with pytest.raises(LedgerNotFound):
            await late.read(ledger, 0, 500, 10, 1000)
        assert (await late.summarize(ledger)).entries == 0, "and nobody can create it any more"


async def test_large_entries_and_the_limit(running: BookKeeper) -> None:
    async with open_store(running) as store, open_store(running) as other:
        writer, sink = await new_ledger(store), Sink()
        append(writer, sink, 20, 300_000)
        writer.append(payload_of(20, PAYLOAD_BYTES_MAX), 1, sink, None)
        with pytest.raises(EntryTooLarge, match="above the limit of bookies"):
            writer.append(payload_of(21, PAYLOAD_BYTES_MAX + 1), 1, sink, None)
        await sink.wait(21)
        assert not sink.failed
        await writer.seal()
        assert (await read_all(other, writer.ledger_id, 20)) == expected(20, 300_000)
        (last,) = await other.read(writer.ledger_id, 20, 21, 10, 100)
        assert bytes(last.payload) == payload_of(20, PAYLOAD_BYTES_MAX)


async def test_seal_of_a_foreign_ledger_fences_its_writer_and_keeps_what_it_confirmed(running: BookKeeper) -> None:
    async with open_store(running) as old, open_store(running) as new:
        writer, sink = await new_ledger(old), Sink()
        await fill(writer, sink, 300)
        append(writer, sink, 2000)
        found = await new.summarize(writer.ledger_id)
        await sink.wait(2300)
        told = len(sink.durable)
        assert 300 <= told <= found.entries <= 2300
        assert all(isinstance(error, LedgerFenced) for _, _, error in sink.failed)
        assert await read_all(new, writer.ledger_id, found.entries) == expected(found.entries)
        assert found.messages == sum(1 + n % 3 for n in range(found.entries))
        if sink.failed:
            append(writer, sink, 1)
            await sink.wait(2301)
            assert isinstance(sink.failed[-1][2], LedgerFenced)
            with pytest.raises(LedgerFenced):
                await writer.seal()


async def test_two_recoveries_of_an_empty_and_a_full_ledger_agree(running: BookKeeper) -> None:
    async with open_store(running) as old, open_store(running) as one, open_store(running) as two:
        empty, full, sink = await new_ledger(old), await new_ledger(old), Sink()
        await fill(full, sink, 50)
        for ledger, entries in ((empty.ledger_id, 0), (full.ledger_id, 50)):
            found = await asyncio.gather(one.summarize(ledger), two.summarize(ledger))
            assert found[0] == found[1]
            assert found[0].entries == entries


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_one_bookie_less_loses_nothing_and_stops_nothing(running: BookKeeper, how: str) -> None:
    async with open_store(running, timeout_ms=1500) as store, open_store(running) as other:
        writer, sink = await new_ledger(store), Sink()
        await fill(writer, sink, 200)
        victim = next(one for one in running.bookies if one.address == writer.ensemble[1])
        append(writer, sink, 2000)
        victim.kill9() if how == "kill" else victim.pause()
        try:
            await sink.wait(2200)
            while victim.address in writer.ensemble:  # noticed by the broken connection, or by the overdue answer
                append(writer, sink, 1)
                await asyncio.sleep(0.02)
            await sink.wait(writer.next_entry_id)
            assert not sink.failed
            entries = writer.next_entry_id
            assert len(writer.metadata.segments) == 2
            assert (await writer.seal()).entries == entries
            assert await read_all(other, writer.ledger_id, entries) == expected(entries)
        finally:
            if how == "freeze":
                victim.resume()


async def test_quorum_gone_fails_appends_and_comes_back(running: BookKeeper) -> None:
    async with open_store(running) as store, open_store(running) as other:
        writer, sink = await new_ledger(store), Sink()
        await fill(writer, sink, 100)
        stopped = running.bookies[:3]
        await asyncio.gather(*(asyncio.to_thread(bookie.stop) for bookie in stopped))
        append(writer, sink, 10)
        await sink.wait(110)
        assert len(sink.durable) == 100
        assert all(isinstance(error, NotEnoughBookies) for _, _, error in sink.failed)
        assert (await writer.seal()).entries == 100, "closing needs no bookie"
        with pytest.raises(NotEnoughBookies, match="a new ledger needs 3 writable bookies"):
            await store.allocate()
        await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in stopped))
        assert await read_all(other, writer.ledger_id, 100) == expected(100)
        again = await new_ledger(store)
        await fill(again, Sink(), 100)


async def test_read_only_bookie_is_replaced_and_still_read(running: BookKeeper) -> None:
    async with open_store(running) as store, open_store(running) as other:
        writer, sink = await new_ledger(store), Sink()
        await fill(writer, sink, 100)
        full = next(one for one in running.bookies if one.address == writer.ensemble[0])
        await asyncio.to_thread(running.restart, full, is_read_only=True)
        try:
            while full.address in writer.ensemble:  # its answer may come after those of the ack quorum
                await fill(writer, sink, 100)
            entries = writer.next_entry_id
            await writer.seal()
            assert await read_all(other, writer.ledger_id, entries) == expected(entries)
            assert full.address not in (await new_ledger(store)).ensemble
        finally:
            await asyncio.to_thread(running.restart, full)


async def test_nothing_is_confirmed_without_a_valid_session(running: BookKeeper) -> None:
    class Doubtful(IgnoringListener):
        state: bool | Fenced = False
        fenced = 0

        def may_confirm(self) -> bool:
            if isinstance(self.state, Fenced):
                raise self.state
            return self.state

        def on_fenced(self) -> None:
            self.fenced += 1

    listener = Doubtful()
    async with open_store(running) as store:
        store.start(listener)
        writer, sink = await new_ledger(store), Sink()
        append(writer, sink, 50)
        await asyncio.sleep(0.3)
        assert not sink.durable and store.read_cached(writer.ledger_id, 0, 10, 1000) == []
        listener.state = True
        await sink.wait(50)
        listener.state = Fenced("another broker serves the topics of this one")
        append(writer, sink, 50)
        await sink.wait(100)
        assert len(sink.failed) == 50 and listener.fenced == 1
        with pytest.raises(Fenced):
            await store.allocate()
        with pytest.raises(Fenced):
            await writer.seal()


async def test_java_reads_what_this_client_wrote_and_the_other_way_round(
    running: BookKeeper, java: JavaLedgers
) -> None:
    async with open_store(running) as store:
        writer, sink = await new_ledger(store), Sink()
        await fill(writer, sink, 100)
        await writer.seal()
        last, length, *entries = await asyncio.to_thread(java, "read", str(writer.ledger_id))
        assert (int(last), len(entries)) == (99, 100)
        assert int(length) == writer.durable_bytes + 100 * 21
        assert all(payload_of(number).decode() in entry for number, entry in enumerate(entries))

        (theirs,) = await asyncio.to_thread(java, "create", "3", "3", "2", "CRC32C")
        await asyncio.to_thread(java, "append", theirs, "40", "x")
        found = await store.recover(int(theirs))
        assert found.last_entry == 39
        with pytest.raises(AssertionError, match="fenced"):
            await asyncio.to_thread(java, "append", theirs, "1", "y")

        writer = await new_ledger(store)
        await fill(writer, Sink(), 30)
        last, _, *entries = await asyncio.to_thread(java, "read", str(writer.ledger_id))  # recovers it
        assert (int(last), len(entries)) == (29, 30)
        late = Sink()
        append(writer, late, 1)
        await late.wait(1)
        assert isinstance(late.failed[0][2], LedgerFenced)


async def test_empty_ledger_of_another_broker_is_not_deleted_at_once(running: BookKeeper) -> None:
    """Its writer may have stalled, and only a ledger that exists is certain to be fenced."""
    async with open_store(running) as old, open_store(running) as new, open_store(running) as third:
        writer = await new_ledger(old)
        assert (await new.summarize(writer.ledger_id)).entries == 0
        await new.delete(writer.ledger_id)
        await third.delete(writer.ledger_id)
        assert (await third.recover(writer.ledger_id)).is_closed, "it is still there"
        own = await new_ledger(old)
        await old.delete(own.ledger_id)
        with pytest.raises(LedgerNotFound):
            await third.recover(own.ledger_id)


async def test_entry_that_is_damaged_or_missing_on_all_replicas_is_reported_as_damaged(running: BookKeeper) -> None:
    """Otherwise its readers would wait for it for ever."""
    async with open_store(running) as store:
        members = tuple(one.address for one in running.bookies[:3])
        ledger = await store.allocate()
        await store.delete(ledger)
        metadata = LedgerMetadata(Quorums(), (Segment(0, members),)).closed(0, 40)
        assert await store.nodes.create_at(ledger, metadata) is not None
        connection = await store.bookies.connect(members[0])
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        class Stored:
            def on_add(self, bookie: str, entry: int, code: int) -> None:
                stored.set_result(code)

        head = body_head(ledger, 0, -1, 40, b"x" * 40)
        connection.add(ledger, 0, packets.master_key(b""), head, b"y" * 40, packets.Flag.NONE, Stored())
        assert await stored == packets.Code.OK, "a bookie checks no digest"
        with pytest.raises(CorruptEntry, match=r"(?=.*damaged entry)(?=.*no (ledger|entry))"):
            await store.read(ledger, 0, 1, 1, 100)


async def test_fewer_copies_when_bookies_are_missing_and_the_url_allows_it(running: BookKeeper) -> None:
    url = parse_storage_url(f"{running.url}?ensemble=4&ack-quorum=2&ensemble-min=2")
    async with BookKeeperLedgerStore(url, SystemClock(), Random(7), publish_time_of, cache_bytes=1 << 20) as store:
        assert len((await new_ledger(store)).ensemble) == 4
        stopped = running.bookies[2:]
        await asyncio.gather(*(asyncio.to_thread(bookie.stop) for bookie in stopped))
        writer, sink = await new_ledger(store), Sink()
        while len(writer.ensemble) > 2:  # until ZooKeeper has said that they are gone
            writer = await new_ledger(store)
        await fill(writer, sink, 100)
        await writer.seal()
        async with open_store(running) as other:
            assert await read_all(other, writer.ledger_id, 100) == expected(100)
        await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in stopped))


async def test_recovery_takes_spares_of_another_rack(running: BookKeeper) -> None:
    first, second, third, fourth = (one.address for one in running.bookies)
    racks = f"{first}@a,{second}@a,{third}@a,{fourth}@b"
    url = parse_storage_url(f"{running.url}?racks={racks}")
    async with BookKeeperLedgerStore(url, SystemClock(), Random(7), publish_time_of, cache_bytes=1 << 20) as store:
        assert store.directory.spares([first, second])[0] == fourth
        for _ in range(5):
            assert fourth in (await new_ledger(store)).ensemble
