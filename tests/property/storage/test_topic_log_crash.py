"""A topic under random work with a crash at a random moment: nothing confirmed is lost, nothing is invented.

Groups become durable in random portions, so a crash falls between any two entries of data and state ledgers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.position import EARLIEST, Position
from anabranch.storage.interface import StorageFull
from anabranch.storage.topic.topic_log import StoredEntry, TopicLog, TopicLogSettings
from tests.support.in_memory.topic_log import Receipts, TopicWorld, read_all
from tests.support.models.memory_ledger_store import MemoryLedgerStore

SETTINGS = TopicLogSettings(ledger_bytes_max=40, retention_ms=-1, retention_bytes=-1, state_bytes_max=16)
BATCH = 3
KINDS = (
    *("append",) * 3,
    *("commit",) * 6,
    *("ack",) * 3,
    *("batch-ack",) * 2,
    "cumulative",
    "seek",
    *("flush",) * 3,
    "timer",
    "fail",
    "roll",
)
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 60), st.integers(1, 6)), min_size=10, max_size=60)


@dataclass
class Seen:
    """The view of a user of the topic."""

    receipts: Receipts = field(default_factory=Receipts)
    sent: int = 0
    history: list[frozenset[Position]] = field(default_factory=lambda: [frozenset()])  # acked sets, one per change
    flushed: int = 0  # index into history of what was confirmed durable

    def acked_now(self, topic: TopicLog) -> None:
        cursor = topic.cursors["s"]
        self.history.append(frozenset(p for p in self.receipts.positions if cursor.is_acked(p)))


async def settle(world: TopicWorld) -> None:
    await world.settle(turns=12)


async def work(world: TopicWorld, topic: TopicLog, seen: Seen, plan: list[tuple[str, int, int]]) -> None:
    flushes: list[tuple[asyncio.Future[None], int]] = []
    cursor = topic.cursors["s"]
    for kind, number, extra in plan:
        positions = seen.receipts.positions
        p = positions[number % len(positions)] if positions else None
        match kind:
            case "append":
                for _ in range(extra):
                    topic.append(b"%d" % seen.sent, BATCH, seen.receipts, seen.sent)
                    seen.sent += 1
            case "commit":
                world.ledgers.commit(number // 4 + 1)
            case "fail":
                world.ledgers.fail_groups = StorageFull("no space left")
                world.ledgers.commit(number // 4 + 1)
                world.ledgers.fail_groups = None
            case "ack" if p is not None:
                cursor.ack(p, BATCH)
            case "batch-ack" if p is not None:
                cursor.ack(p, BATCH, [extra], BATCH)
            case "cumulative" if p is not None:
                cursor.ack_cumulative(p)
            case "seek" if p is not None:
                cursor.seek(p)
            case "flush":
                flushes.append((asyncio.ensure_future(cursor.flush()), len(seen.history) - 1))
            case "timer":
                world.clock.advance(2)
            case "roll":
                flushes.append((asyncio.ensure_future(topic.roll()), 0))
        if kind in ("ack", "batch-ack", "cumulative", "seek"):
            seen.acked_now(topic)
        await settle(world)
        for future, index in flushes:
            if future.done() and future.exception() is None:
                seen.flushed = max(seen.flushed, index)
        flushes = [(future, index) for future, index in flushes if not future.done()]
    for future, _ in flushes:
        future.cancel()


async def run(plan: list[tuple[str, int, int]]) -> None:
    world = TopicWorld(auto=False)
    topic = await world.open(SETTINGS)
    creating = asyncio.ensure_future(topic.create_cursor("s", EARLIEST, {}))
    await settle(world)
    world.ledgers.commit()
    await creating
    seen = Seen()
    for _ in range(8):
        topic.append(b"%d" % seen.sent, BATCH, seen.receipts, seen.sent)
        seen.sent += 1
    world.ledgers.commit()
    await work(world, topic, seen, plan)
    confirmed = [(context, position) for context, position in seen.receipts.outcomes if isinstance(position, Position)]
    assert [context for context, _ in seen.receipts.outcomes] == list(range(len(seen.receipts.outcomes))), (
        "outcomes in order"
    )
    dead = world.ledgers
    world.crash(auto=True)
    again = await world.open(SETTINGS)
    await end_crashed(world, dead, topic)
    found = {entry.position: bytes(entry.payload) for entry in await entries_of(again)}
    for context, p in confirmed:
        assert found[p] == b"%d" % context, "confirmed and readable"
    extra = set(found) - {p for _, p in confirmed}
    confirmed_numbers = {context for context, _ in confirmed}
    assert not {int(found[p]) for p in extra} & confirmed_numbers, "nothing is stored twice under a confirmed number"
    contents = await read_all(again)
    assert [int(each) for each in contents] == sorted(int(each) for each in contents), "order"

    cursor = again.cursors["s"]
    recovered = frozenset(p for _, p in confirmed if cursor.is_acked(p))
    possible = [frozenset(p for p in acked if p in found) for acked in seen.history[seen.flushed :]]
    assert recovered in possible, "the acks of one moment at or after the last flush"
    assert await cursor.backlog_messages() == BATCH * cursor.backlog_entries
    await again.close()


async def end_crashed(world: TopicWorld, dead: MemoryLedgerStore, topic: TopicLog) -> None:
    """End the tasks of the crashed process; its later writes are not seen, and its epoch is over."""
    dead.fail_groups = StorageFull("gone")
    closing = asyncio.ensure_future(topic.close())
    while not closing.done():
        dead.commit()
        await settle(world)
    closing.exception()


async def entries_of(topic: TopicLog) -> list[StoredEntry]:
    found: list[StoredEntry] = []
    at = topic.first_position
    while part := await topic.read(at, 7, 1 << 20, topic.last_position):
        found.extend(part)
        at = topic.after(part[-1].position)
    return found


@settings(max_examples=150, deadline=None)
@given(steps)
def test_crash_at_any_moment(plan: list[tuple[str, int, int]]) -> None:
    asyncio.run(run(plan))
