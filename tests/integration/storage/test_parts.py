"""The store on a simulated disk: costs, counts, deletion, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anabranch.storage.interface import (
    CorruptEntry,
    Fenced,
    IgnoringListener,
    LedgerWriter,
    Payload,
    StorageError,
    StoredEntry,
)
from anabranch.storage.ledger.record_format import LEDGER_MAGIC, LOG_MAGIC, NewerFormat, encode_file_head
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.settings import StorageSettings
from anabranch.storage.volume import BadVolume
from tests.support.in_memory.simulated_disk import SimBlocking, SimClock, SimDisk


def publish_time_of(payload: Payload) -> int:
    return int(bytes(payload[:8]))


def payload_of(number: int, size: int = 100) -> bytes:
    return f"{number:08d}".encode().ljust(size, b".")


class Sink:
    def __init__(self) -> None:
        self.durable: list[tuple[int, int]] = []
        self.failed: list[StorageError] = []

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        self.durable += [entry.position for entry in entries]

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        self.failed.append(error)


class World:
    def __init__(self, disk: SimDisk | None = None, broker: str = "standalone", **changes: Any) -> None:
        self.disk = disk or SimDisk()
        self.clock = SimClock()
        self.sink = Sink()
        values = {"log_bytes_max": 64 << 10, "reserve_bytes": 4096, "index_step_entries": 10, **changes}
        self.settings = StorageSettings(dir=Path("/data"), broker_id=broker, **values)
        self.store = EmbeddedLedgerStore(self.settings, self.disk, SimBlocking(), self.clock, publish_time_of)

    def append(self, writer: LedgerWriter, count: int, size: int = 100) -> None:
        for _ in range(count):
            number = writer.next_entry_id
            writer.append(payload_of(number, size), 1 + number % 3, self.sink, None)

    async def settle(self) -> None:
        await turns()
        self.clock.advance(2)
        await turns()


async def turns(count: int = 80) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def messages_in(count: int) -> int:
    return sum(1 + number % 3 for number in range(count))


async def test_syncs_per_group_do_not_grow_with_the_number_of_ledgers() -> None:
    syncs = {}
    log_steps = 2
    for ledgers in (1, 1000):
        world = World(log_bytes_max=log_steps << 20)
        async with world.store as store:
            writers = [store.create(number + 1) for number in range(ledgers)]
            world.append(writers[0], 1)
            await turns()
            before = len(world.disk.syncs)
            for _ in range(5):
                for writer in writers:
                    world.append(writer, 1)
                await turns(8)
            syncs[ledgers] = len(world.disk.syncs) - before
            assert len(world.sink.durable) == 1 + 5 * ledgers
    assert syncs[1] == 5
    assert syncs[1000] <= 5 + 2 + log_steps, "a second log file and its preparation, whatever the number of ledgers"


async def test_counts_and_searches_across_memory_and_file() -> None:
    world = World(cache_bytes=20_000)
    async with world.store as store:
        writer = store.create(1)
        for _ in range(10):
            world.append(writer, 20)
            await world.settle()
        assert store.read_cached(1, 0, 1, 1) is None, "evicted"
        assert store.read_cached(1, 199, 1, 1)
        for entry in (0, 1, 9, 10, 11, 57, 150, 179, 185, 199, 200):
            assert await store.messages_before(1, entry) == messages_in(entry), entry
            assert await store.first_entry_at(1, entry, 200) == min(entry, 200)
        assert await store.first_entry_at(1, 50, 40) == 40
        await writer.seal()
    again = World(world.disk, cache_bytes=20_000)
    async with again.store as store:
        for entry in (0, 9, 10, 57, 199, 200):
            assert await store.messages_before(1, entry) == messages_in(entry), entry
            assert await store.first_entry_at(1, entry, 200) == min(entry, 200)


async def test_reads_respect_their_bounds_and_cross_from_file_to_memory() -> None:
    world = World(cache_bytes=20_000)
    async with world.store as store:
        writer = store.create(1)
        for _ in range(10):
            world.append(writer, 20)
            await world.settle()
        for bounds, expected in [
            ((0, 200, 7, 10_000), 7),
            ((0, 200, 100, 350), 3),
            ((0, 200, 100, 1), 1),
            ((0, 5, 100, 10_000), 5),
        ]:
            assert len(await store.read(1, *bounds)) == expected
        assert await store.read(1, 200, 300, 10, 10) == []
        got: list[int] = []
        while len(got) < 200:
            got += [entry.position.entry for entry in await store.read(1, len(got), 200, 33, 1 << 20)]
        assert got == list(range(200))


async def test_only_durable_entries_are_visible() -> None:
    world = World()
    async with world.store as store:
        writer = store.create(1)
        world.append(writer, 3)
        assert (writer.next_entry_id, writer.durable_entry_id) == (3, -1)
        assert store.read_cached(1, 0, 10, 1000) == []
        assert await store.read(1, 0, 3, 10, 1000) == []
        await turns()
        assert len(store.read_cached(1, 0, 10, 1000) or []) == 3
        assert store.read_cached(1, 3, 10, 1000) == []


async def test_checkpoints_keep_the_log_short_and_recycle_files() -> None:
    world = World(write_behind_bytes=1 << 20)
    async with world.store as store:
        writer = store.create(1)
        for _ in range(60):
            world.append(writer, 50)
            await turns(30)
        stats = store.stats()
        assert stats.log_number > 3
        assert stats.checkpoints >= stats.log_number - 2
        logs = [name for name in world.disk.names if name.endswith(".log")]
        assert len(logs) <= 3
        assert any(name.endswith("spare.log") for name in logs)
    assert not [name for name in world.disk.names if name.endswith(".log")]


async def test_opening_after_a_crash_reads_the_tail_only() -> None:
    """The bytes read grow with the log, not with the ledger."""
    read = {}
    for entries in (1_000, 16_000):
        world = World(index_step_bytes=8 << 10, index_step_entries=64)
        await world.store.__aenter__()
        writer = world.store.create(1)
        for _ in range(entries // 100):
            world.append(writer, 100)
            await turns(20)
        disk = world.disk.after_power_cut(None)
        again = World(disk, index_step_bytes=8 << 10, index_step_entries=64)
        before = disk.bytes_read
        async with again.store as store:
            assert (await store.summarize(1)).entries == entries
            read[entries] = disk.bytes_read - before
    assert read[16_000] < 3 * read[1_000]


async def test_a_deleted_ledger_stays_deleted_after_a_crash() -> None:
    world = World()
    await world.store.__aenter__()
    writer = world.store.create(7)
    world.append(writer, 10)
    await world.settle()
    assert "/data/ledgers/07/7.ledger" in world.disk.names
    await world.store.delete(7)
    await turns()
    assert "/data/ledgers/07/7.ledger" not in world.disk.names
    again = World(world.disk.after_power_cut(None))
    async with again.store as store:
        assert "/data/ledgers/07/7.ledger" not in again.disk.names
        assert (await store.summarize(7)).entries == 0


async def test_deleting_while_the_ledger_is_still_being_written_behind() -> None:
    world = World()
    async with world.store as store:
        writer = store.create(7)
        world.append(writer, 10)
        await turns()
        world.clock.advance(2)  # the write-behind starts now
        await store.delete(7)
        await world.settle()
        assert not [name for name in world.disk.names if "/7." in name]
        assert store.stats().unwritten_bytes == 0


@pytest.mark.parametrize(("sync", "syncs"), [("none", 0), ("group", 1), ("linger:5ms", 1)])
async def test_sync_policies(sync: str, syncs: int) -> None:
    world = World(sync=sync)
    async with world.store as store:
        writer = store.create(1)
        world.append(writer, 1)
        await turns()
        world.clock.advance(0.01)
        await turns()
        before = len(world.disk.syncs)
        world.append(writer, 1)
        await turns()
        assert (len(world.sink.durable) == 1) == (sync == "linger:5ms"), "lingering waits for more"
        world.append(writer, 1)
        world.clock.advance(0.006)
        await turns()
        assert len(world.sink.durable) == 3
        groups = 2 if sync == "group" else 1
        assert len(world.disk.syncs) - before == syncs * groups


async def test_fenced_store_confirms_nothing_and_notifies() -> None:
    owner = World(broker="a")
    await owner.store.__aenter__()
    fenced: list[bool] = []

    class Listener(IgnoringListener):
        def on_fenced(self) -> None:
            fenced.append(True)

    owner.store.start(Listener())
    writer = owner.store.create(1)
    owner.append(writer, 5)
    await turns()
    other = World(owner.disk, broker="b")
    async with other.store as successor:
        recovery = await successor.take_over("a")
        assert (recovery.records, recovery.ledgers) == (5, {1})
        owner.append(writer, 5)
        await turns()
        assert len(owner.sink.durable) == 5
        assert [type(error) for error in owner.sink.failed] == [Fenced] * 5
        assert fenced == [True]
        with pytest.raises(Fenced):
            owner.append(writer, 1)
        with pytest.raises(Fenced):
            owner.store.create(2)
        assert (await successor.summarize(1)).entries == 5
        with pytest.raises(StorageError, match="is this one"):
            await successor.take_over("b")
    await owner.store.close()


async def test_seal_waits_for_queued_appends_and_refuses_more() -> None:
    world = World()
    async with world.store as store:
        writer = store.create(1)
        empty = await store.create(2).seal()
        assert (empty.entries, empty.bytes, empty.last_publish_ms) == (0, 0, 0)
        world.append(writer, 12)
        summary = await writer.seal()
        assert (summary.entries, summary.messages, summary.bytes) == (12, messages_in(12), 1200)
        assert summary.last_publish_ms == 11
        assert len(world.sink.durable) == 12
        with pytest.raises(StorageError, match="ledger 1 is sealed"):
            world.append(writer, 1)


async def test_closing_makes_queued_entries_durable() -> None:
    world = World()
    async with world.store as store:
        world.append(store.create(1), 30)
    assert len(world.sink.durable) == 30
    async with World(world.disk).store as store:
        assert (await store.summarize(1)).entries == 30


async def test_corrupt_entry_is_reported_and_its_neighbours_are_read() -> None:
    world = World()
    async with world.store as store:
        world.append(store.create(1), 30)
    node = world.disk.names["/data/ledgers/01/1.ledger"]
    node.data[node.data.index(payload_of(7)) + 20] ^= 1
    async with World(world.disk).store as store:
        assert [entry.position.entry for entry in await store.read(1, 0, 30, 100, 1 << 20)] == list(range(7))
        with pytest.raises(
            CorruptEntry, match=r"checksum mismatch in /data/ledgers/01/1.ledger at offset 1012 "
        ) as caught:
            await store.read(1, 7, 30, 100, 1 << 20)
        assert (caught.value.ledger, caught.value.entry) == (1, 7)
        assert [entry.position.entry for entry in await store.read(1, 8, 30, 100, 1 << 20)] == list(range(8, 30))
        assert await store.messages_before(1, 30) == messages_in(30)


async def test_lost_index_is_rebuilt() -> None:
    world = World()
    async with world.store as store:
        world.append(store.create(1), 100)
    index = bytes(world.disk.names["/data/ledgers/01/1.index"].data)
    del world.disk.names["/data/ledgers/01/1.index"]
    async with World(world.disk).store as store:
        assert await store.messages_before(1, 55) == messages_in(55)
    assert bytes(world.disk.names["/data/ledgers/01/1.index"].data) == index


async def test_newer_formats_and_foreign_volumes_are_refused() -> None:
    world = World()
    async with world.store as store:
        world.append(store.create(1), 3)
    disk = world.disk
    disk.names["/data/ledgers/01/1.ledger"].write(encode_file_head(LEDGER_MAGIC, 1, format_=2), 0)
    async with World(disk).store as store:
        with pytest.raises(NewerFormat, match=r"1\.ledger has format 2"):
            await store.summarize(1)
    disk.make_dir("/data/brokers/standalone/log/00000009")
    log = disk.open("/data/brokers/standalone/log/00000009/00000001.log", create=True)
    log.pwritev([encode_file_head(LOG_MAGIC, 1, format_=3)], 0)
    with pytest.raises(NewerFormat, match=r"00000001\.log has format 3"):
        await World(disk).store.__aenter__()
    volume = disk.names["/data/volume.json"]
    volume.data = bytearray(b'{"format": 2, "volume_id": "x"}')
    with pytest.raises(NewerFormat, match=r"volume\.json has format 2"):
        await World(disk, broker="c").store.__aenter__()
    volume.data = bytearray(b"not json")
    with pytest.raises(BadVolume, match=r"/data/volume\.json"):
        await World(disk, broker="d").store.__aenter__()


async def test_large_batches_are_written_once() -> None:
    world = World(direct_bytes_min=20_000)
    async with world.store as store:
        writer = store.create(1)
        world.append(writer, 1)
        await turns()
        before = store.stats().log_bytes
        world.append(writer, 10, size=5000)
        await turns()
        assert store.stats().log_bytes == before
        assert store.stats().unwritten_bytes == 0, "the waiting entry was carried along"
        assert len(world.sink.durable) == 11
    again = World(world.disk)
    async with again.store as store:
        assert [len(entry.payload) for entry in await store.read(1, 0, 11, 100, 1 << 20)] == [100] + [5000] * 10


@pytest.mark.parametrize(
    ("name", "value"),
    [("broker_id", "../x"), ("broker_id", ""), ("sync", "linger:ms"), ("sync", "often"), ("log_bytes_max", 1)],
)
def test_bad_settings_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"storage.{name}"):
        StorageSettings(dir=Path("/data"), **{name: value})  # type: ignore[arg-type]  # wrong on purpose
