"""A full device: appends are refused, everything else works, and appends resume when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from anabranch.storage.interface import Payload, StorageError, StorageFull, StoredEntry
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.settings import StorageSettings
from tests.support.in_memory.simulated_disk import SimBlocking, SimClock, SimDisk

SETTINGS = StorageSettings(
    dir=Path("/data"),
    log_bytes_max=64 << 10,
    direct_bytes_min=40_000,
    write_behind_bytes=8_000,
    write_behind_ms=10,
    write_behind_bytes_max=64 << 10,
    cache_bytes=10_000,
    reserve_bytes=8192,
)


def publish_time_of(payload: Payload) -> int:
    return 0


class Owner:
    """Behaves like a topic: continues in a new ledger after a failure, and records what was acknowledged."""

    def __init__(self, store: EmbeddedLedgerStore) -> None:
        self.store = store
        self.acked: list[tuple[int, int, bytes]] = []
        self.errors: list[StorageError] = []
        self.ledger = 0
        self.writer = store.create(1)
        self.roll()

    def roll(self) -> None:
        self.ledger += 1
        if self.ledger > 1:
            self.writer = self.store.create(self.ledger)

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        self.acked += [(*entry.position, bytes(entry.payload)) for entry in entries]

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        self.errors.append(error)

    async def check(self, store: EmbeddedLedgerStore) -> None:
        for ledger, entry, payload in self.acked:
            (found,) = await store.read(ledger, entry, entry + 1, 1, 1)
            assert bytes(found.payload) == payload


async def turns(count: int = 60) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def fill_up(owner: Owner, random: Random, size_max: int) -> None:
    for _ in range(5000):
        try:
            for _ in range(random.randint(1, 8)):
                owner.writer.append(random.randbytes(random.randint(1, size_max)), 1, owner, None)
        except StorageFull:
            return
        await turns(random.randint(1, 8))
    raise AssertionError("the device never got full")


@pytest.mark.parametrize("size_max", [300, 20_000])
@pytest.mark.parametrize("seed", range(6))
async def test_full_device_refuses_appends_until_there_is_room(seed: int, size_max: int) -> None:
    random = Random(seed)
    disk, clock = SimDisk(), SimClock()
    disk.bytes_max = random.randint(200_000, 400_000)
    store = EmbeddedLedgerStore(SETTINGS, disk, SimBlocking(), clock, publish_time_of)
    await store.__aenter__()
    owner = Owner(store)
    await fill_up(owner, random, size_max)
    await turns()
    assert store.stats().state == "storage-full"
    assert all(isinstance(error, StorageFull) for error in owner.errors)
    with pytest.raises(StorageFull):
        store.create(1000)
    await owner.check(store)  # reading still works
    acked = len(owner.acked)
    disk.bytes_max = 0
    for _ in range(3):
        clock.advance(0.25)
        await turns()
    assert store.stats().state == "storage-full"

    disk.bytes_max = None  # room again; the store must find out itself
    for _ in range(4):
        clock.advance(0.25)
        await turns()
    assert store.stats().state == "open"
    owner.roll()
    for _ in range(20):
        owner.writer.append(random.randbytes(100), 1, owner, None)
    await turns()
    assert len(owner.acked) == acked + 20
    await owner.check(store)

    survivor = EmbeddedLedgerStore(SETTINGS, disk.after_power_cut(random), SimBlocking(), SimClock(), publish_time_of)
    async with survivor:
        await owner.check(survivor)


async def test_deleting_on_a_full_device_resumes_appends() -> None:
    random = Random(1)
    disk, clock = SimDisk(), SimClock()
    disk.bytes_max = 300_000
    async with EmbeddedLedgerStore(SETTINGS, disk, SimBlocking(), clock, publish_time_of) as store:
        owner = Owner(store)
        await fill_up(owner, random, 300)
        await turns()
        await store.delete(1)
        for _ in range(4):
            clock.advance(0.25)
            await turns()
        assert store.stats().state == "open"
        writer = store.create(2)
        owner.acked.clear()
        writer.append(b"again", 1, owner, None)
        await turns()
        assert [(ledger, entry) for ledger, entry, _ in owner.acked] == [(2, 0)]


async def test_store_opens_on_a_full_device_for_reading() -> None:
    disk = SimDisk()
    async with EmbeddedLedgerStore(SETTINGS, disk, SimBlocking(), SimClock(), publish_time_of) as store:
        owner = Owner(store)
        owner.writer.append(b"one", 1, owner, None)
        await turns()
    disk.bytes_max = 0
    async with EmbeddedLedgerStore(SETTINGS, disk, SimBlocking(), SimClock(), publish_time_of) as store:
        assert store.stats().state == "storage-full"
        await owner.check(store)


async def test_io_error_stops_confirming_permanently() -> None:
    disk, clock = SimDisk(), SimClock()
    store = EmbeddedLedgerStore(SETTINGS, disk, SimBlocking(), clock, publish_time_of)
    await store.__aenter__()
    owner = Owner(store)
    owner.writer.append(b"one", 1, owner, None)
    await turns()
    disk.cut_at = disk.steps + 1
    owner.writer.append(b"two", 1, owner, None)
    await turns()
    assert [error.code for error in owner.errors] == ["storage"]
    assert len(owner.acked) == 1
    disk.cut_at = None
    clock.advance(1)
    await turns()
    with pytest.raises(StorageError, match="the disk failed"):
        store.create(2)
    await owner.check(store)


@pytest.mark.parametrize("is_tight", [False, True])
async def test_failed_roll_leaves_the_old_log_file_usable(is_tight: bool) -> None:
    """The next group may fit into the old file: its records must count there, and those before it must stay.

    There is never room to allocate a log file, so files grow, and the new one fails after its head was written.
    """
    disk, clock = SimDisk(), SimClock()

    def leave(room: int) -> None:
        disk.bytes_max = sum(len(node.data) for node in disk.names.values()) + room

    if is_tight:
        leave(30_000)
    store = EmbeddedLedgerStore(SETTINGS, disk, SimBlocking(), clock, publish_time_of)
    await store.__aenter__()
    owner = Owner(store)
    while store.stats().log_bytes < 55_000 or not (is_tight or store.stats().log_number > 1):
        if is_tight:
            leave(30_000)
        owner.writer.append(bytes(2000), 1, owner, None)
        await turns()
    number = store.stats().log_number
    if is_tight:
        leave(15_000)
    else:
        disk.bytes_max = 0
    owner.writer.append(bytes(20_000), 1, owner, None)  # does not fit: needs a new file
    await turns()
    assert [error.code for error in owner.errors] == ["storage-full"]
    leave(SETTINGS.reserve_bytes + 3_000)
    for _ in range(3):
        clock.advance(0.25)
        await turns()
    owner.roll()
    owner.writer.append(b"small", 1, owner, None)
    await turns()
    assert owner.acked[-1] == (2, 0, b"small")
    assert store.stats().log_number == number, "this is the case that is meant here"
    survivor = EmbeddedLedgerStore(
        SETTINGS, disk.after_power_cut(Random(3)), SimBlocking(), SimClock(), publish_time_of
    )
    async with survivor:
        await owner.check(survivor)
