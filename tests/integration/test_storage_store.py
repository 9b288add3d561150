"""The embedded store on a real disk: append, read, reopen, recover, delete, count and search."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.disk import RealDisk
from anabranch.storage.ledgers import EmbeddedLedgers
from anabranch.storage.port import Append, LedgerNotFound, LedgerWriter, Payload, StorageError
from anabranch.storage.settings import StorageSettings
from anabranch.storage.volume import VolumeBusy


def publish_time_of(payload: Payload) -> int:
    return int(bytes(payload[:8]))


def payload_of(number: int, size: int = 100) -> bytes:
    return f"{number:08d}".encode().ljust(size, bytes([number % 251]))


class Sink:
    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.failed: list[tuple[int, int, StorageError]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def appended(self, appends: Sequence[Append]) -> None:
        self.told += [(append.writer.ledger_id, append.entry_id) for append in appends]
        self._wake()

    def append_failed(self, append: Append, error: StorageError) -> None:
        self.failed.append((append.writer.ledger_id, append.entry_id, error))
        self._wake()

    def _wake(self) -> None:
        for count, waiter in self._waiting:
            if len(self.told) + len(self.failed) >= count and not waiter.done():
                waiter.set_result(None)

    async def wait(self, count: int) -> None:
        if len(self.told) + len(self.failed) < count:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append((count, waiter))
            await asyncio.wait_for(waiter, 30)


@asynccontextmanager
async def open_store(directory: Path, **changes: Any) -> AsyncIterator[EmbeddedLedgers]:
    blocking = ThreadBlocking(2)
    try:
        settings = StorageSettings(dir=directory, **changes)
        async with EmbeddedLedgers(settings, RealDisk(), blocking, SystemClock(), publish_time_of) as store:
            yield store
    finally:
        await blocking.close()


async def fill(writer: LedgerWriter, sink: Sink, count: int, size: int = 100) -> None:
    start = writer.next_entry_id
    for number in range(start, start + count):
        writer.append(payload_of(number, size), 1 + number % 3, sink, None)
    await sink.wait(start + count)


async def read_all(store: EmbeddedLedgers, ledger_id: int, entries: int) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    while len(found) < entries:
        part = await store.read(ledger_id, len(found), entries, 1000, 1 << 20)
        assert part
        found += [(entry.entry_id, entry.messages, bytes(entry.payload)) for entry in part]
    return found


def expected(count: int, size: int = 100) -> list[tuple[int, int, bytes]]:
    return [(number, 1 + number % 3, payload_of(number, size)) for number in range(count)]


async def test_appended_entries_are_told_in_order_and_read_back(tmp_path: Path) -> None:
    sink = Sink()
    async with open_store(tmp_path) as store:
        ends: list[int] = []
        store.on_group_end = lambda: ends.append(len(sink.told))
        writer = store.create(7)
        assert store.read_cached(7, 0, 10, 1000) == []
        await fill(writer, sink, 500)
        assert sink.told == [(7, number) for number in range(500)]
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
