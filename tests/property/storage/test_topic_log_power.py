"""A topic on the real store over a simulated disk: power cuts at any disk operation and full devices, run after run.

Checked after every cut: confirmed entries exist, in order, at their positions, unless they were acknowledged and
trimmed; the cursor is in a state at or after its last flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.errors import Error
from anabranch.model.position import EARLIEST, Position
from anabranch.node.adapters.metadata_records import MetadataRecords
from anabranch.storage.interface import Payload, StorageError
from anabranch.storage.ledger.ledger_ids import LedgerIds
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.settings import StorageSettings
from anabranch.storage.topic.topic_log import StoredEntry, TopicLog, TopicLogSettings
from tests.support.in_memory.simulated_disk import SimBlocking, SimClock, SimDisk

STORAGE = StorageSettings(
    dir=Path("/data"),  # a name on the simulated disk
    log_bytes_max=64 << 10,
    direct_bytes_min=2_000,
    index_step_bytes=1_000,
    index_step_entries=8,
    write_behind_bytes=1_000,
    write_behind_ms=10,
    write_behind_bytes_max=64 << 10,
    cache_bytes=3_000,
    reserve_bytes=4096,
)
TOPIC = TopicLogSettings(ledger_bytes_max=1500, cursor_flush_ms=20, state_bytes_max=200)
BATCH = 4


def publish_time_of(payload: Payload) -> int:
    return 0


class Life:
    """The user of one topic over several runs of its broker."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clock = SimClock()
        self.metadata = MemoryStore(self.clock)
        self.disk = SimDisk()
        self.next = 0
        self.confirmed: dict[Position, int] = {}
        self.acked_once: set[Position] = set()
        self.history: list[frozenset[Position]] = []
        self.flushed = 0
        self.has_cursor = False

    def persisted(self, ledger: int, entry: int, contexts: Sequence[Any]) -> None:
        for number, context in enumerate(contexts, entry):
            position = Position(ledger, number)
            assert not self.confirmed or position > max(self.confirmed), "positions only grow"
            self.confirmed[position] = context

    def persist_failed(self, error: StorageError, context: Any) -> None:
        assert context not in self.confirmed.values()

    async def open(self) -> tuple[EmbeddedLedgerStore, TopicLog]:
        await self.metadata.open()
        store = EmbeddedLedgerStore(STORAGE, self.disk, SimBlocking(), self.clock, publish_time_of)
        await store.__aenter__()
        records = MetadataRecords(self.metadata)
        topic = await TopicLog.open(
            "topic", ledgers=store, metadata=records, ids=LedgerIds(records), clock=self.clock, settings=TOPIC
        )
        return store, topic

    async def live(self, rounds: int, *, is_full_at_times: bool) -> None:
        """Work until the power cut, or until `rounds` are done."""
        try:
            _, topic = await self.open()
            if "s" not in topic.cursors:
                assert not self.has_cursor, "a cursor that was created is there"
                await topic.create_cursor("s", EARLIEST, {})
                self.has_cursor = True
                self.history = [frozenset()]
            for _ in range(rounds):
                if is_full_at_times:
                    used = sum(len(node.data) for node in self.disk.names.values())
                    self.disk.bytes_max = used + 300 if self.random.random() < 0.3 else None
                await self._round(topic)
        except (Error, OSError):
            return  # the cut, seen from inside

    async def _round(self, topic: TopicLog) -> None:
        random, cursor = self.random, topic.cursors["s"]
        for _ in range(random.randint(0, 8)):
            topic.append(b"%d" % self.next + bytes(random.choice([0, 10, 400])), BATCH, self, self.next)
            self.next += 1
        await self._turn(random.randint(0, 12))
        here = [p for p in self.confirmed if p >= topic.first_position]
        for _ in range(random.randint(0, 4)):
            if here:
                self._acknowledge(topic, random.choice(here))
        if random.random() < 0.3:
            made = len(self.history) - 1
            try:
                await cursor.flush()
                self.flushed = max(self.flushed, made)
            except StorageError:
                pass  # a full device; the acks stay in memory
        if random.random() < 0.15:
            await topic.roll()
        if random.random() < 0.15:
            await topic.trim()
        if random.random() < 0.3:
            self.clock.advance(0.03 if random.random() < 0.8 else 2)

    def _acknowledge(self, topic: TopicLog, p: Position) -> None:
        cursor = topic.cursors["s"]
        match self.random.choice(["one", "one", "one", "some", "some", "all", "seek"]):
            case "one":
                cursor.ack(p, BATCH)
            case "some":
                cursor.ack(p, BATCH, [self.random.randrange(1 << BATCH)], BATCH)
            case "all":
                cursor.ack_cumulative(p)
            case _ if self.random.random() < 0.2:
                cursor.seek(p)
        acked = frozenset(p for p in self.confirmed if cursor.is_acked(p))
        self.history.append(acked)
        self.acked_once |= acked

    async def _turn(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    async def check(self, *, is_torn: bool) -> None:
        """Open what is left and compare it with what was confirmed; the next run continues from there."""
        self.disk.bytes_max = None
        store, topic = await self.open()
        found = {entry.position: int(bytes(entry.payload).rstrip(b"\0")) for entry in await entries_of(topic)}
        # A machine that loses power may tear the last group, of which nothing was confirmed; a dead process does not.
        is_whole = topic.stats().corrupt_entries == 0
        assert is_whole or is_torn
        numbers = list(found.values())
        assert numbers == sorted(set(numbers)), "order, nothing twice"
        for p, number in self.confirmed.items():
            if p < topic.first_position:
                assert p in self.acked_once, "trimmed only what was acknowledged"
            else:
                assert found[p] == number, "confirmed entries are there"
        if self.has_cursor:
            cursor = topic.cursors["s"]
            here = [p for p in self.confirmed if p in found]
            recovered = frozenset(p for p in here if cursor.is_acked(p))
            moments = [frozenset(p for p in here if p in acked) for acked in self.history[self.flushed :]]
            assert recovered in moments, "the cursor of one moment at or after its last flush"
            if is_whole:  # the number of messages of a missing entry is unknown
                assert await cursor.backlog_messages() == BATCH * cursor.backlog_entries
            assert cursor.backlog_entries == sum(1 for p in found if not cursor.is_acked(p))
            self.history, self.flushed = [frozenset(p for p in self.confirmed if cursor.is_acked(p))], 0
            self.acked_once |= self.history[0]
        self.confirmed = {p: number for p, number in self.confirmed.items() if p in found}
        await topic.close()
        await store.close()


async def entries_of(topic: TopicLog) -> list[StoredEntry]:
    found: list[StoredEntry] = []
    at = topic.first_position
    while part := await topic.read(at, 7, 1 << 20, topic.last_position):
        found.extend(part)
        at = topic.after(part[-1].position)
    return found


async def lives(seed: int, cuts: list[int], *, is_machine: bool, is_full_at_times: bool) -> None:
    random = Random(seed)
    life = Life(random)
    for cut in cuts:
        life.disk.cut_at = life.disk.steps + cut
        living = asyncio.ensure_future(life.live(60, is_full_at_times=is_full_at_times))
        async with asyncio.timeout(30):
            await living
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        life.disk = life.disk.after_power_cut(random if is_machine else None)
        await life.check(is_torn=is_machine)


cuts_after = st.one_of(st.integers(20, 100), st.integers(20, 900))  # disk operations of one run


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(cuts_after, min_size=1, max_size=4), st.booleans())
def test_power_cuts(seed: int, cuts: list[int], is_machine: bool) -> None:
    asyncio.run(lives(seed, cuts, is_machine=is_machine, is_full_at_times=False))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(cuts_after, min_size=1, max_size=3))
def test_power_cuts_on_a_sometimes_full_device(seed: int, cuts: list[int]) -> None:
    asyncio.run(lives(seed, cuts, is_machine=True, is_full_at_times=True))
