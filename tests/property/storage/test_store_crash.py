"""Random loads, a power cut or a kill at any disk operation, any flipped byte: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.storage.interface import CorruptEntry, LedgerWriter, Payload, StorageError, StorageFull, StoredEntry
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.log import released_ledgers
from anabranch.storage.settings import StorageSettings
from tests.support.in_memory.simulated_disk import SimBlocking, SimClock, SimDisk

SETTINGS = StorageSettings(
    dir=Path("/data"),  # a name on the simulated disk
    log_bytes_max=64 << 10,
    direct_bytes_min=6_000,
    index_step_bytes=4_000,
    index_step_entries=8,
    write_behind_bytes=3_000,
    write_behind_ms=10,
    write_behind_bytes_max=64 << 10,
    cache_bytes=20_000,
    reserve_bytes=4096,
)


def publish_time_of(payload: Payload) -> int:
    return int.from_bytes(payload[:4], "little")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Fails on an error in a callback, and on a hang."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(main())
    assert not complaints


class Load:
    """Appends in random portions to a few ledgers, seals and deletes some; records what was acknowledged.

    `evicts`: sealed ledgers leave memory at once, as those of unloaded topics do.
    """

    def __init__(
        self, disk: SimDisk, random: Random, *, evicts: bool = False, settings: StorageSettings = SETTINGS
    ) -> None:
        self.disk = disk
        self.random = random
        self.clock = SimClock()
        self.sent: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.acked: set[tuple[int, int]] = set()
        self.deleted: set[int] = set()
        self.next_ledger = 1
        self.evicts = evicts
        self.settings = settings
        self.checkpoints = 0

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        for entry in entries:
            key = entry.position
            assert key[1] == 0 or (key[0], key[1] - 1) in self.acked, "confirmed in order, without holes"
            self.acked.add(key)

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        assert entry.position not in self.acked

    def store(self) -> EmbeddedLedgerStore:
        return EmbeddedLedgerStore(self.settings, self.disk, SimBlocking(), self.clock, publish_time_of)

    async def run(self, rounds: int, *, closes: bool) -> None:
        store = self.store()
        try:
            await store.__aenter__()
            writers: list[LedgerWriter] = []
            for _ in range(rounds):
                await self._round(store, writers)
                self.checkpoints = store.stats().checkpoints
            if closes:
                await store.close()
        except (StorageError, OSError):
            return  # the power cut, seen from inside

    async def _round(self, store: EmbeddedLedgerStore, writers: list[LedgerWriter]) -> None:
        random = self.random
        if not writers or (len(writers) < 4 and random.random() < 0.3):
            writers.append(store.create(self.next_ledger))
            self.next_ledger += 1
        for _ in range(random.randint(1, 12)):
            writer = random.choice(writers)
            size = random.choice([0, 4, 50, 300, 300, 5_000])
            payload = (len(self.sent).to_bytes(4, "little") + random.randbytes(size))[: max(size, 4)]
            messages = random.randint(1, 5)
            entry_id = writer.append(payload, messages, self, None)
            self.sent[writer.ledger_id, entry_id] = (messages, payload)
        for _ in range(random.randint(0, 6)):
            await asyncio.sleep(0)
        if random.random() < 0.2:
            self.clock.advance(0.02)
        if random.random() < 0.1:
            writer = writers.pop(random.randrange(len(writers)))
            await writer.seal()
            if random.random() < 0.5:
                self.deleted.add(writer.ledger_id)
                await store.delete(writer.ledger_id)
            elif self.evicts:
                store.evict(writer.ledger_id)


async def survivors(load: Load, disk: SimDisk) -> None:
    """Open the store after the crash and compare it with what was acknowledged."""
    load.disk = disk
    store = load.store()
    async with store:
        for ledger_id in range(1, load.next_ledger):
            if ledger_id in load.deleted:
                continue
            acked = sorted(entry for ledger, entry in load.acked if ledger == ledger_id)
            summary = await store.summarize(ledger_id)
            assert summary.entries >= len(acked), f"ledger {ledger_id}: {summary.entries} of {len(acked)}"
            messages = 0
            for entry_id in range(summary.entries):
                expected_messages, expected = load.sent[ledger_id, entry_id]
                is_acked = entry_id < len(acked)
                try:
                    (entry,) = await store.read(ledger_id, entry_id, summary.entries, 1, 1)
                except CorruptEntry:
                    assert not is_acked, f"acknowledged {ledger_id}:{entry_id} is damaged"
                    continue
                assert (entry.messages, bytes(entry.payload)) == (expected_messages, expected)
                if is_acked:
                    assert await store.messages_before(ledger_id, entry_id) == messages
                    messages += entry.messages


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), cut=st.integers(1, 400), is_power=st.booleans(), rounds=st.integers(1, 40))
def test_crash_at_any_operation_keeps_what_was_acknowledged(seed: int, cut: int, is_power: bool, rounds: int) -> None:
    async def scenario() -> None:
        random = Random(seed)
        disk = SimDisk()
        load = Load(disk, random)
        disk.cut_at = cut
        await load.run(rounds, closes=random.random() < 0.3)
        await survivors(load, disk.after_power_cut(random if is_power else None))

    run(scenario())


def test_crash_with_a_checkpoint_per_finished_ledger_keeps_what_was_acknowledged() -> None:
    """The log is checkpointed long before a file is full; without that, it never would be here."""
    large = replace(SETTINGS, log_bytes_max=1 << 20)
    checkpoints = 0

    async def scenario(seed: int) -> None:
        nonlocal checkpoints
        random = Random(seed)
        disk = SimDisk()
        load = Load(disk, random, evicts=True, settings=large)
        disk.cut_at = random.randint(100, 1200)
        await load.run(60, closes=False)
        checkpoints += load.checkpoints
        await survivors(load, disk.after_power_cut(random))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(released_ledgers, "FINISHED_LEDGERS_MAX", 1)
        for seed in range(20):
            run(scenario(seed))
    assert checkpoints > 20


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(1, 150), min_size=2, max_size=4))
def test_crashes_during_recovery_are_harmless(seed: int, cuts: list[int]) -> None:
    async def scenario() -> None:
        random = Random(seed)
        load = Load(SimDisk(), random)
        for cut in cuts:
            load.disk.cut_at = cut
            await load.run(8, closes=False)
            load.disk = load.disk.after_power_cut(random)
        await survivors(load, load.disk)

    run(scenario())


def flippable(disk: SimDisk) -> list[tuple[str, int]]:
    """Files that hold entries, with the part that was ever written."""
    found = []
    for path, node in sorted(disk.names.items()):
        if path.endswith((".ledger", ".index", ".log")):
            found.append((path, len(node.data.rstrip(b"\0")) if path.endswith(".log") else len(node.data)))
    return [(path, size) for path, size in found if size]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32), place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), closes=st.booleans()
)
def test_flipped_byte_loses_at_most_its_entry(seed: int, place: float, flip: int, closes: bool) -> None:
    async def scenario() -> None:
        random = Random(seed)
        load = Load(SimDisk(), random)
        await load.run(12, closes=closes)
        disk = load.disk.after_power_cut(None)
        if not (files := flippable(disk)):
            return  # everything was deleted
        path, size = random.choice(files)
        disk.names[path].data[int(place * size)] ^= flip
        load.disk = disk
        store = load.store()
        async with store:
            assert store.recovery is not None
            lost = await damages(load, store)
            reported = [path for path, _ in store.recovery.damaged + store.recovery.torn]
        assert len(lost) <= 1
        if lost and ".log" in path:
            assert path in reported
        if ".index" in path:
            assert not lost

    run(scenario())


async def damages(load: Load, store: EmbeddedLedgerStore) -> list[tuple[int, int]]:
    """Acknowledged entries that cannot be read.

    Each must be refused with its file and offset; the others must be intact.
    """
    lost: list[tuple[int, int]] = []
    for ledger_id in sorted({ledger for ledger, _ in load.acked} - load.deleted):
        acked = [entry for ledger, entry in load.acked if ledger == ledger_id]
        summary = await store.summarize(ledger_id)
        for entry_id in sorted(acked):
            if entry_id >= summary.entries:
                lost.append((ledger_id, entry_id))
                continue
            try:
                (entry,) = await store.read(ledger_id, entry_id, summary.entries, 1, 1)
            except CorruptEntry as error:
                assert error.path.endswith(f"/{ledger_id}.ledger")
                assert (error.ledger, error.entry) == (ledger_id, entry_id)
                lost.append((ledger_id, entry_id))
            else:
                assert (entry.messages, bytes(entry.payload)) == load.sent[ledger_id, entry_id]
    return lost


class TightLoad(Load):
    """The same load on a device that is repeatedly full and then has free space again."""

    async def _round(self, store: EmbeddedLedgerStore, writers: list[LedgerWriter]) -> None:
        used = sum(len(node.data) for node in self.disk.names.values())
        self.disk.bytes_max = used + self.random.choice([0, 500, 5_000, 20_000, 80_000, 300_000, 1 << 30])
        try:
            await super()._round(store, writers)
        except StorageFull:
            writers.clear()
        if self.random.random() < 0.4:
            self.clock.advance(0.25)
            await asyncio.sleep(0)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), cut=st.integers(1, 900), is_power=st.booleans(), rounds=st.integers(5, 60))
def test_sometimes_full_device_loses_nothing(seed: int, cut: int, is_power: bool, rounds: int) -> None:
    async def scenario() -> None:
        random = Random(seed)
        disk = SimDisk()
        load = TightLoad(disk, random)
        disk.cut_at = cut
        await load.run(rounds, closes=random.random() < 0.3)
        await survivors(load, disk.after_power_cut(random if is_power else None))

    run(scenario())
