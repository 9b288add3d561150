"""The embedded store on a real disk: append, read, reopen, recover, delete, count and search."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.disk import File, RealDisk
from anabranch.storage.interface import (
    IgnoringListener,
    LedgerNotFound,
)
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.settings import StorageSettings
from anabranch.storage.volume import VolumeBusy
from tests.support.traffic.ledger_calls import Sink, expected, fill, publish_time_of, read_all


@asynccontextmanager
async def open_store(directory: Path, **changes: Any) -> AsyncIterator[EmbeddedLedgerStore]:
    blocking = ThreadBlocking(2)
    try:
        settings = StorageSettings(dir=directory, **changes)
        async with EmbeddedLedgerStore(settings, RealDisk(), blocking, SystemClock(), publish_time_of) as store:
            yield store
    finally:
        await blocking.close()


async def test_appends_are_confirmed_in_order_and_read_back(tmp_path: Path) -> None:
    sink = Sink()
    async with open_store(tmp_path) as store:
        ends: list[int] = []

        class Listener(IgnoringListener):
            def on_group_end(self) -> None:
                ends.append(len(sink.durable))

        store.start(Listener())
        writer = store.create(7)
        assert store.read_cached(7, 0, 10, 1000) == []
        await fill(writer, sink, 500)
        assert sink.durable == [(7, number) for number in range(500)]
        assert ends[-1] == 500
        assert writer.durable_entry_id == 499
        assert await read_all(store, 7, 500) == expected(500)


@pytest.mark.parametrize("size", [100, 20_000])
async def test_reopened_store_has_everything(tmp_path: Path, size: int) -> None:
    sink = Sink()
    async with open_store(tmp_path) as store:
        writer = store.create(7)
        await fill(writer, sink, 100, size)
        sealed = await writer.seal()
    assert list((tmp_path / "brokers" / "standalone" / "log").iterdir()) == []
    async with open_store(tmp_path) as store:
        assert await store.summarize(7) == sealed
        assert await read_all(store, 7, 100) == expected(100, size)


async def test_absent_ledger_is_empty_and_cannot_be_read(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        assert (await store.summarize(3)).entries == 0
        assert store.read_cached(3, 0, 1, 1) is None
        with pytest.raises(LedgerNotFound):
            await store.read(3, 0, 1, 1, 1)
        await store.delete(3)


async def test_second_process_on_the_same_broker_is_refused(tmp_path: Path) -> None:
    async with open_store(tmp_path):
        with pytest.raises(VolumeBusy, match="another process is running as broker 'standalone'"):
            async with open_store(tmp_path):
                pass
        async with open_store(tmp_path, broker_id="other") as other:
            assert other.volume_id


async def test_flushed_entries_are_readable_by_another_broker(tmp_path: Path) -> None:
    async with (
        open_store(tmp_path, broker_id="one", write_behind_ms=3_600_000) as one,
        open_store(tmp_path, broker_id="two") as two,
    ):
        writers = {ledger: one.create(ledger) for ledger in (1, 2)}
        for writer in writers.values():
            await fill(writer, Sink(), 50)
        with pytest.raises(LedgerNotFound):
            await two.read(1, 0, 50, 1000, 1 << 20)  # durable, but only in the log of the other store
        await asyncio.gather(one.flush(), one.flush())
        for ledger in writers:
            assert len(await read_all(two, ledger, 50)) == 50
        await one.flush()  # nothing to do


async def test_open_waits_while_a_peer_recovers_the_log(tmp_path: Path) -> None:
    async with open_store(tmp_path):
        with pytest.raises(VolumeBusy):
            async with open_store(tmp_path):
                pass
        patient = EmbeddedLedgerStore(
            StorageSettings(dir=tmp_path),
            RealDisk(),
            ThreadBlocking(1),
            SystemClock(),
            publish_time_of,
            busy_seconds=30,
        )
        opening = asyncio.create_task(patient.__aenter__())
        await asyncio.wait([opening], timeout=0.2)
        assert not opening.done()
    await asyncio.wait_for(opening, 30)
    await patient.close()


async def test_recovery_does_not_restore_deleted_ledgers(tmp_path: Path) -> None:
    """When its log is recovered, the owner has released ledgers 1 and 2, deleted 3 and written 4."""

    def files() -> set[int]:
        return {int(path.stem) for path in (tmp_path / "ledgers").rglob("*.ledger")}

    async with (
        open_store(tmp_path, broker_id="two") as two,
        open_store(tmp_path, broker_id="one", write_behind_ms=3_600_000) as one,
    ):
        for ledger in (1, 2, 3):
            writer = one.create(ledger)
            await fill(writer, Sink(), 50)
            await writer.seal()
        await one.delete(3)
        await one.flush()
        assert files() == {1, 2}
        await fill(one.create(4), Sink(), 50)
        await two.delete(1)
        recovery = await two.take_over("one")
        assert recovery.ledgers == {1, 2, 3, 4}, "the log holds all of them"
        assert files() == {2, 4}
        for ledger in (2, 4):
            assert await read_all(two, ledger, 50) == expected(50)


class LateDisk(RealDisk):
    """Simulates a process that has just opened the log when another one finishes its recovery."""

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        if "/brokers/one/" in path and path.endswith(".log"):
            self.unlink(path)
        return file


async def test_late_recovery_does_not_restore_deleted_ledgers(tmp_path: Path) -> None:
    """Two processes recover one log. When the slower one writes, the faster has finished and the ledger was deleted."""
    blocking = ThreadBlocking(2)
    settings = StorageSettings(dir=tmp_path, broker_id="two")
    async with open_store(tmp_path, broker_id="one", write_behind_ms=3_600_000) as one:
        await fill(one.create(1), Sink(), 50)
        async with EmbeddedLedgerStore(settings, LateDisk(), blocking, SystemClock(), publish_time_of) as two:
            assert (await two.take_over("one")).records == 50
        assert list((tmp_path / "ledgers").rglob("*.ledger")) == []
    await blocking.close()


@pytest.mark.parametrize("size", [100, 20_000])
async def test_resident_reads_equal_normal_reads(tmp_path: Path, size: int) -> None:
    async with open_store(tmp_path) as store:
        writer = store.create(7)
        await fill(writer, Sink(), 300, size)
        await writer.seal()
    async with open_store(tmp_path) as store:
        assert store.read_resident(7, 0, 300, 1000, 1 << 20) is None, "its offset is not known yet"
        (first,) = await store.read(7, 0, 300, 1, 1 << 20)
        found = [first]
        while len(found) < 300:
            more = store.read_resident(7, len(found), 300, 40, 1 << 20)
            if more is None:  # the system may drop cached pages at any time
                more = await store.read(7, len(found), 300, 40, 1 << 20)
            assert 0 < len(more) <= 40
            found += more
        assert [(entry.position.entry, entry.messages, bytes(entry.payload)) for entry in found] == expected(300, size)
        assert store.read_resident(7, 300, 300, 40, 1 << 20) is None
