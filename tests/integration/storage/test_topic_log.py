"""The topic log on the real store and SQLite: kill -9, damaged files, many topics, a million holes."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.storage.topic.topic_log import TopicLog, TopicLogSettings
from tests.support.in_memory.topic_log import Receipts
from tests.support.processes.topic_child import real_topics

KEEP_BIG = TopicLogSettings(retention_ms=-1, retention_bytes=-1)
ROOT = Path(__file__).parents[3]


async def fill(topic: TopicLog, count: int, *, size: int = 100, first: int = 0) -> list[Position]:
    """Append first, first+1 … and wait for them."""
    receipts = Receipts()
    for number in range(first, first + count):
        topic.append(b"%-*d" % (size, number), 1, receipts, number)
    await receipts.wait(count)
    assert not receipts.failures
    return receipts.positions


async def fill_ledgers(topic: TopicLog, ledgers: int, entries: int) -> list[Position]:
    """Numbers 0, 1 … over that many ledgers."""
    positions = []
    for part in range(ledgers):
        positions += await fill(topic, entries, first=part * entries)
        await topic.roll()
    return positions


async def read_numbers(topic: TopicLog) -> list[int]:
    found: list[int] = []
    at = topic.first_position
    while entries := await topic.read(at, 1000, 1 << 20, topic.last_position):
        found.extend(int(bytes(entry.payload)) for entry in entries)
        at = topic.after(entries[-1].position)
    return found


def run_and_kill(directory: Path, first: int, lines: int) -> list[list[str]]:
    """The child's output before it was killed, after at least `lines` lines."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.topic_child", str(directory), str(first)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    said = []
    for line in child.stdout:
        said.append(line)
        if len(said) == lines:
            child.kill()
    child.wait()
    return [line.split() for line in said if line.endswith("\n")]


async def test_kill_9_loses_nothing_confirmed(tmp_path: Path) -> None:
    stored: dict[int, Position] = {}
    acked: set[int] = set()
    first = 0
    for lines in (400, 1500, 2500):
        said = run_and_kill(tmp_path, first, lines)
        stored |= {int(line[1]): Position(int(line[2]), int(line[3])) for line in said if line[0] == "stored"}
        acked |= {int(line[1]) for line in said if line[0] == "acked"}
        assert not [line for line in said if line[0] == "failed"]
        first = 1_000_000 * (first // 1_000_000 + 1)
    assert len(acked) > 100
    async with real_topics(tmp_path) as topics:
        topic = await topics.open()
        numbers = await read_numbers(topic)
        assert set(stored) <= set(numbers)
        assert numbers == sorted(numbers)
        assert len(numbers) == len(set(numbers)) == topic.total_messages
        assert list(stored.values()) == sorted(stored.values()), "positions only grow"
        cursor = topic.cursors["s"]
        assert cursor.properties == {"made": "by child"}
        assert all(cursor.is_acked(stored[number]) for number in acked if number in stored)
        assert not any(cursor.is_acked(p) for number, p in stored.items() if number % 3 == 0), "never acknowledged"
        assert cursor.backlog_entries == await cursor.backlog_messages() > 0
        await topic.close()


async def test_close_and_open_over_many_ledgers(tmp_path: Path) -> None:
    async with real_topics(tmp_path) as topics:
        topic = await topics.open()
        positions = await fill_ledgers(topic, 10, 200)
        cursor = await topic.create_cursor("s", EARLIEST, {})
        for p in positions[::2]:
            cursor.ack(p, 1)
        await topic.close()
    async with real_topics(tmp_path) as topics:
        topic = await topics.open()
        assert len(topic.stats().ledgers) == 11
        assert await read_numbers(topic) == list(range(2000))
        cursor = topic.cursors["s"]
        assert (cursor.backlog_entries, await cursor.backlog_messages()) == (1000, 1000)
        assert cursor.next_unacked(positions[1000]) == positions[1001]
        assert await topic.position_at_time(1234) == positions[1234]
        assert await topic.messages_between(positions[9], positions[1500]) == 1491
        cursor.seek(positions[700])
        assert await cursor.backlog_messages() == 1300
        await topic.close()


async def test_trimmed_ledgers_leave_the_disk(tmp_path: Path) -> None:
    async with real_topics(tmp_path) as topics:
        topic = await topics.open(settings=TopicLogSettings())
        cursor = await topic.create_cursor("s", EARLIEST, {})
        positions = await fill_ledgers(topic, 10, 200)
        cursor.ack_cumulative(positions[1500])
        await topic.trim()
        kept = {path.name for path in tmp_path.rglob("*.ledger")}
        assert not {f"{p.ledger}.ledger" for p in positions[:1400]} & kept
        assert await read_numbers(topic) == list(range(1400, 2000))
        await topic.delete()
        assert list(tmp_path.rglob("*.ledger")) == []


async def test_flipped_byte_loses_one_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with real_topics(tmp_path) as topics:
        topic = await topics.open(settings=TopicLogSettings(retention_ms=-1, retention_bytes=-1))
        (position, *_) = await fill(topic, 500)
        await topic.close()
    (path,) = [path for path in tmp_path.rglob("*.ledger") if re.fullmatch(rf"0*{position.ledger}", path.stem)]
    data = bytearray(path.read_bytes())
    at = data.index(b"%-100d" % 321)
    data[at + 50] ^= 0x40
    path.write_bytes(data)
    async with real_topics(tmp_path) as topics:
        topic = await topics.open()
        assert await read_numbers(topic) == [number for number in range(500) if number != 321]
        assert topic.stats().corrupt_entries == 1
        (logged,) = [record for record in caplog.records if record.msg == "damaged entry skipped"]
        assert vars(logged)["file"] == str(path)
        assert 0 < at - vars(logged)["offset"] <= 64
        await topic.close()


async def test_many_topics_share_groups(tmp_path: Path) -> None:
    async with real_topics(tmp_path) as topics:
        logs = await asyncio.gather(*(topics.open(f"t{number}") for number in range(100)))
        await asyncio.gather(*(log.create_cursor("s", EARLIEST, {}) for log in logs))
        before = topics.ledgers.stats().groups
        receipts = Receipts()
        for number in range(5):
            for log in logs:
                log.append(b"%d" % number, 1, receipts, number)
        await receipts.wait(500)
        assert topics.ledgers.stats().groups - before < 50
        for log in logs:
            log.cursors["s"].ack_cumulative(log.last_position)
        await asyncio.gather(*(log.cursors["s"].flush() for log in logs))
        await asyncio.gather(*(log.close() for log in logs))
    async with real_topics(tmp_path) as topics:
        logs = await asyncio.gather(*(topics.open(f"t{number}") for number in range(100)))
        assert not any(log.cursors["s"].has_backlog for log in logs)
        assert all(log.total_messages == 5 for log in logs)
        await asyncio.gather(*(log.close() for log in logs))


async def test_many_holes_survive(tmp_path: Path) -> None:
    async with real_topics(tmp_path, sync="none") as topics:
        topic = await topics.open(settings=KEEP_BIG)
        positions = await fill(topic, 60_000, size=8)
        cursor = await topic.create_cursor("s", EARLIEST, {})
        holes = random.Random(7).sample(positions[1:], 30_000)
        for start in range(0, len(holes), 6_000):
            for p in holes[start : start + 6_000]:
                cursor.ack(p, 1)
            await cursor.flush()
        state_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*.ledger"))
        assert cursor.state.holes == 30_000
        await topic.close()
    async with real_topics(tmp_path, sync="none") as topics:
        topic = await topics.open()
        cursor = topic.cursors["s"]
        assert (cursor.state.holes, cursor.mark_delete < positions[0]) == (30_000, True)
        assert all(cursor.is_acked(p) for p in holes)
        assert state_bytes < 60_000 * 60
        assert len(await topic.read(EARLIEST, 5, 1000, LATEST)) == 5
        await topic.close()
