"""The topic log on ledgers in memory: order, switches, failures, trimming, cursors, takeover."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.interface import ANY, StoreUnavailable
from anabranch.model.errors import AlreadyExists, Error, NotFound
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.storage.interface import Fenced, StorageError, StorageFull, Superseded
from anabranch.storage.topic.topic_log import (
    CLOSED_LEDGERS_MAX,
    StoredEntry,
    TopicLog,
    TopicLogSettings,
    TopicTerminated,
)
from anabranch.storage.topic.topic_record import decode_record
from tests.support.in_memory.topic_log import Receipts, TopicWorld, read_all

KEY = "/topic-logs/t/n/topic"
KEEP = TopicLogSettings(retention_ms=-1, retention_bytes=-1)


@pytest.fixture
def world() -> TopicWorld:
    return TopicWorld()


def numbers(entries: list[StoredEntry] | None) -> list[int] | None:
    return None if entries is None else [int(bytes(entry.payload)) for entry in entries]


async def test_a_new_topic_is_empty(world: TopicWorld) -> None:
    topic = await world.open()
    assert topic.last_position == EARLIEST
    assert topic.first_position == topic.after(EARLIEST) == Position(1, 0)
    assert await topic.read(EARLIEST, 10, 1000, LATEST) == []
    assert topic.read_cached(EARLIEST, 10, 1000, LATEST) == []
    assert (topic.total_messages, topic.total_bytes, dict(topic.cursors)) == (0, 0, {})
    await topic.close()


async def test_opening_a_missing_topic_without_create_fails(world: TopicWorld) -> None:
    with pytest.raises(NotFound):
        await world.open(create=False)
    await (await world.open()).close()
    await (await world.open(create=False)).close()


async def test_opening_costs_one_metadata_write_and_first_use_none(world: TopicWorld) -> None:
    topic = await world.open()
    before = await world.metadata.get(KEY)
    await topic.create_cursor("s", EARLIEST, {})
    await world.fill(topic, 3)
    assert await world.metadata.get(KEY) == before
    await topic.close()


async def test_receipts_come_in_order_and_entries_are_read_back(world: TopicWorld) -> None:
    topic = await world.open()
    assert await world.fill(topic, 5, messages=2) == [Position(1, entry) for entry in range(5)]
    assert (topic.last_position, topic.total_messages, topic.total_bytes) == (Position(1, 4), 10, 5)
    assert numbers(topic.read_cached(Position(1, 1), 2, 1000, LATEST)) == [1, 2]
    assert numbers(await topic.read(Position(1, 1), 9, 1000, Position(1, 3))) == [1, 2, 3]
    assert numbers(await topic.read(Position(1, 1), 9, 1, LATEST)) == [1]
    assert numbers(topic.read_cached(Position(1, 3), 9, 1000, Position(1, 2))) == []
    await topic.close()


async def test_rolls_by_size_without_losing_order(world: TopicWorld) -> None:
    topic = await world.open(TopicLogSettings(ledger_bytes_max=20, retention_ms=-1, retention_bytes=-1))
    receipts = Receipts()
    for number in range(300):
        topic.append(b"%d" % number, 1, receipts, number)
        if number % 7 == 0:
            await asyncio.sleep(0)
    await world.settle(lambda: len(receipts.outcomes) == 300)
    assert [context for context, _ in receipts.outcomes] == list(range(300))
    assert receipts.positions == sorted(receipts.positions)
    assert len(topic.stats().ledgers) > 3
    assert await read_all(topic) == [b"%d" % number for number in range(300)]
    crossing = topic.read_cached(topic.first_position, 300, 1 << 20, LATEST)
    assert numbers(crossing) == list(range(300))
    await topic.close()
    world.crash()
    topic = await world.open()
    assert await read_all(topic) == [b"%d" % number for number in range(300)]
    await topic.close()


async def test_positions_grow_over_restarts(world: TopicWorld) -> None:
    seen: list[Position] = []
    for first in range(0, 9, 3):
        topic = await world.open()
        seen += await world.fill(topic, 3, first=first)
        if first == 3:
            world.crash()
        else:
            await topic.close()
    assert seen == sorted(set(seen))
    topic = await world.open()
    assert await read_all(topic) == [b"%d" % number for number in range(9)]
    assert topic.total_messages == 9
    await topic.close()


async def test_reading_from_a_gap_moves_forward(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 3)
    await topic.close()
    topic = await world.open()
    (first, *_) = await world.fill(topic, 2, first=3)
    assert numbers(await topic.read(Position(1, 3), 9, 1000, LATEST)) == [3, 4]
    assert topic.after(Position(1, 2)) == first
    assert numbers(topic.read_cached(Position(1, 99), 1, 1000, LATEST)) == [3]
    await topic.close()


async def test_uncached_entries_need_a_read(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 3)
    world.ledgers.uncached.add(1)
    assert topic.read_cached(EARLIEST, 9, 1000, LATEST) is None
    assert numbers(await topic.read(EARLIEST, 9, 1000, LATEST)) == [0, 1, 2]
    await topic.close()


async def test_damaged_entry_does_not_hold_a_cursor_back(world: TopicWorld) -> None:
    topic = await world.open()
    cursor = await topic.create_cursor("s", EARLIEST, {})
    await world.fill(topic, 3)
    world.ledgers.corrupt.add((1, 1))
    for entry in await topic.read(EARLIEST, 1, 1000, LATEST) + await topic.read(Position(1, 1), 9, 1000, LATEST):
        cursor.ack(entry.position, 1)
    assert cursor.mark_delete == Position(1, 2)
    assert not cursor.has_backlog
    await topic.close()


async def test_a_damaged_entry_is_skipped_and_counted_once(world: TopicWorld, caplog: pytest.LogCaptureFixture) -> None:
    topic = await world.open()
    await world.fill(topic, 5)
    world.ledgers.corrupt |= {(1, 1), (1, 4)}
    assert await read_all(topic) == [b"0", b"2", b"3"]
    assert await read_all(topic) == [b"0", b"2", b"3"]
    assert topic.stats().corrupt_entries == 2
    logged = [record for record in caplog.records if record.msg == "damaged entry skipped"]
    assert [(vars(record)["file"], vars(record)["offset"]) for record in logged] == [
        ("1.ledger", 100),
        ("1.ledger", 400),
    ]
    await topic.close()


async def test_times_and_message_counts(world: TopicWorld) -> None:
    topic = await world.open(KEEP)
    await world.fill(topic, 5, messages=3)
    await topic.roll()
    second = await world.fill(topic, 5, messages=2, first=5)
    assert await topic.position_at_time(0) == Position(1, 0)
    assert await topic.position_at_time(3) == Position(1, 3)
    assert await topic.position_at_time(5) == second[0]
    assert await topic.position_at_time(100) == topic.after(topic.last_position)
    assert await topic.messages_between(EARLIEST, LATEST) == 25
    assert await topic.messages_between(Position(1, 3), second[1]) == 3 + 4
    assert await topic.messages_between(second[1], Position(1, 3)) == 0
    await topic.close()


# failures


async def test_failed_append_fails_later_ones_and_opens_a_new_ledger(world: TopicWorld) -> None:
    topic = await world.open(KEEP)
    await world.fill(topic, 2)
    world.ledgers.fail_groups = StorageFull("no room")
    receipts = Receipts()
    for number in (2, 3, 4):
        topic.append(b"%d" % number, 1, receipts, number)
    await world.settle(lambda: len(receipts.outcomes) == 3)
    assert receipts.outcomes == [(number, "storage-full") for number in (2, 3, 4)]
    world.ledgers.fail_groups = None
    (again, *_) = await world.fill(topic, 3, first=2)
    assert again.ledger > 1
    assert again.entry == 0
    assert await read_all(topic) == [b"%d" % number for number in range(5)]
    await topic.close()
    world.crash()
    topic = await world.open()
    assert await read_all(topic) == [b"%d" % number for number in range(5)]
    await topic.close()


async def test_record_that_names_the_next_ledger_fixes_the_end_of_a_failed_one(world: TopicWorld) -> None:
    """A failed entry may be stored all the same, and its producer sends it again: it must not appear twice."""
    topic = await world.open(KEEP)
    await world.fill(topic, 2)
    world.ledgers.fail_groups = StorageFull("no room")
    receipts = Receipts()
    topic.append(b"2", 1, receipts, 2)
    await world.settle(lambda: bool(receipts.outcomes))
    world.ledgers.fail_groups = None
    saved: list[bytes] = []
    save = world.records.save

    async def noted(key: str, value: bytes, *, version: int | None) -> int:
        saved.append(value)
        return await save(key, value, version=version)

    world.records.save = noted  # type: ignore[method-assign]  # notes what is saved
    await world.fill(topic, 1, first=2)
    failed, following = decode_record(saved[0]).ledgers
    assert (failed.entries, following.entries) == (2, None)
    await topic.close()


async def test_refused_appends_fail_after_those_in_flight() -> None:
    world = TopicWorld(auto=False)
    topic = await world.open(KEEP)
    receipts = Receipts()
    topic.append(b"0", 1, receipts, 0)
    world.ledgers.refusal = StorageFull("no room")
    topic.append(b"1", 1, receipts, 1)
    world.ledgers.refusal = None
    topic.append(b"2", 1, receipts, 2)  # there is room again, but 1 failed: 2 must not overtake it
    assert receipts.outcomes == []
    world.ledgers.commit()
    assert receipts.outcomes == [(0, Position(1, 0)), (1, "storage-full"), (2, "storage-full")]
    topic.append(b"3", 1, receipts, 3)
    world.ledgers.commit()
    assert receipts.outcomes[-1] == (3, Position(1, 1)), "the ledger itself is sound"


async def test_many_refusals_cost_no_metadata_writes(world: TopicWorld) -> None:
    topic = await world.open(KEEP)
    before = await world.metadata.get(KEY)
    world.ledgers.refusal = StorageFull("no room")
    receipts = Receipts()
    for number in range(50):
        topic.append(b"%d" % number, 1, receipts, number)
        await asyncio.sleep(0)
    await world.settle(lambda: len(receipts.outcomes) == 50)
    assert len(receipts.failures) == 50
    assert await world.metadata.get(KEY) == before
    world.ledgers.refusal = None
    await world.fill(topic, 1)
    await topic.close()


async def test_append_failure_during_a_ledger_switch() -> None:
    world = TopicWorld(auto=False)
    topic = await world.open(KEEP)
    receipts = Receipts()
    for number in (0, 1):
        topic.append(b"%d" % number, 1, receipts, number)
    world.ledgers.commit()
    topic.append(b"2", 1, receipts, 2)
    rolling = asyncio.ensure_future(topic.roll())
    await world.settle()
    topic.append(b"3", 1, receipts, 3)  # waits for the next ledger, behind 2
    assert world.ledgers.queued == 1
    world.ledgers.fail_groups = StorageFull("no room")
    world.ledgers.commit()
    world.ledgers.fail_groups = None
    await rolling
    assert receipts.failures == [(2, "storage-full"), (3, "storage-full")]
    for number in (2, 3):
        topic.append(b"%d" % number, 1, receipts, number)
    await world.settle()
    world.ledgers.commit()
    assert await read_all(topic) == [b"0", b"1", b"2", b"3"]


class Moody:
    """A record store that refuses to save while `is_down`."""

    def __init__(self, world: TopicWorld) -> None:
        self.inner = world.records
        self.is_down = False
        self.load, self.remove = self.inner.load, self.inner.remove

    async def save(self, key: str, value: bytes, *, version: int | None) -> int:
        if self.is_down:
            raise StoreUnavailable("no metadata")
        return await self.inner.save(key, value, version=version)


async def test_without_metadata_a_sound_ledger_is_continued(world: TopicWorld) -> None:
    moody = Moody(world)
    world.records = moody  # type: ignore[assignment]  # the same port, another class
    topic = await world.open(TopicLogSettings(ledger_bytes_max=4, retention_ms=-1, retention_bytes=-1))
    moody.is_down = True
    await world.fill(topic, 8)
    await world.settle()
    assert len(topic.stats().ledgers) == 1
    moody.is_down = False
    await world.fill(topic, 4, first=8)
    await world.settle()
    assert len(topic.stats().ledgers) > 1
    assert await read_all(topic) == [b"%d" % number for number in range(12)]
    await topic.close()


async def test_without_metadata_a_failed_ledger_refuses_appends(world: TopicWorld) -> None:
    moody = Moody(world)
    world.records = moody  # type: ignore[assignment]  # the same port, another class
    topic = await world.open(KEEP)
    receipts = Receipts()
    moody.is_down, world.ledgers.fail_groups = True, StorageFull("no room")
    topic.append(b"0", 1, receipts, 0)
    await world.settle(lambda: len(receipts.outcomes) == 1)
    world.ledgers.fail_groups = None
    topic.append(b"0", 1, receipts, 1)
    await world.settle(lambda: len(receipts.outcomes) == 2)
    assert receipts.outcomes == [(0, "storage-full"), (1, "topic-unavailable")]
    moody.is_down = False
    await world.fill(topic, 1)
    await topic.close()


async def test_without_metadata_cursor_changes_are_still_written(world: TopicWorld) -> None:
    moody = Moody(world)
    world.records = moody  # type: ignore[assignment]  # the same port, another class
    topic = await world.open(TopicLogSettings(retention_ms=-1, retention_bytes=-1, state_bytes_max=64))
    cursor = await topic.create_cursor("s", EARLIEST, {})
    positions = await world.fill(topic, 200)
    moody.is_down = True
    for position in positions[:150:2]:
        cursor.ack(position, 0)
        await topic.flush_state()  # far more than triggers a new ledger
    acknowledged = cursor.state.holes
    assert len(topic.stats().state_ledgers) == 1
    world.crash()
    moody.is_down = False
    topic = await world.open(TopicLogSettings(retention_ms=-1, retention_bytes=-1, state_bytes_max=64))
    cursor = topic.cursors["s"]
    assert cursor.state.holes == acknowledged
    before = topic.stats().state_ledgers
    for position in positions[1:150:2]:
        cursor.ack(position, 0)
        await topic.flush_state()
    await world.settle()
    assert topic.stats().state_ledgers != before, "no fresh ledger although there is metadata"
    await topic.close()


async def test_failed_state_write_is_repeated_when_metadata_is_back(world: TopicWorld) -> None:
    """After a failed write of state, the old ledger cannot be continued."""
    moody = Moody(world)
    world.records = moody  # type: ignore[assignment]  # the same port, another class
    topic = await world.open(KEEP)
    cursor = await topic.create_cursor("s", EARLIEST, {})
    positions = await world.fill(topic, 4)
    moody.is_down, world.ledgers.fail_groups = True, StorageFull("no room")
    cursor.ack(positions[0], 0)
    with pytest.raises(StorageFull):
        await topic.flush_state()
    world.ledgers.fail_groups = None
    with pytest.raises(StoreUnavailable):
        await topic.flush_state()
    moody.is_down = False
    await topic.flush_state()
    world.crash()
    assert (await world.open(KEEP)).cursors["s"].mark_delete == positions[0]


async def test_former_owner_cannot_open_the_topic(world: TopicWorld) -> None:
    """Opening would seal the ledger that the current owner writes to, and its later confirmations would be lost."""
    holder = await world.open(KEEP, ownership_epoch=7)
    await world.fill(holder, 2)
    before = await world.metadata.get(KEY)
    with pytest.raises(Superseded):
        await world.open(KEEP, ownership_epoch=6)
    assert await world.metadata.get(KEY) == before, "nothing was touched"
    await world.fill(holder, 1, first=2)
    await holder.close()
    again = await world.open(KEEP, ownership_epoch=7)
    assert await read_all(again) == [b"0", b"1", b"2"]
    await again.close()
    await (await world.open(KEEP)).close()  # without a cluster there is no other broker
    with pytest.raises(Superseded):
        await world.open(KEEP, ownership_epoch=6)
    later = await world.open(KEEP, ownership_epoch=9)
    assert await read_all(later) == [b"0", b"1", b"2"]
    await later.close()


async def test_a_stale_owner_is_fenced_by_the_epoch(world: TopicWorld) -> None:
    old = await world.open(KEEP)
    await world.fill(old, 2)
    world.ledgers, before = world.ledgers.crashed(), world.ledgers
    new = await world.open(KEEP)
    await world.fill(new, 1, first=2)
    await old.roll()  # detected at its next metadata write
    receipts = Receipts()
    old.append(b"9", 1, receipts, 9)
    await world.settle(lambda: len(receipts.outcomes) == 1)
    assert receipts.outcomes == [(9, "fenced")]
    with pytest.raises(Fenced):
        await old.set_properties({"a": "b"})
    with pytest.raises(Fenced):
        await old.create_cursor("s", EARLIEST, {})
    with pytest.raises(Fenced):
        await old.flush_state()
    await old.close()
    assert before is not world.ledgers
    assert await read_all(new) == [b"0", b"1", b"2"]
    await new.close()


async def test_lost_response_of_own_write_does_not_fence(world: TopicWorld) -> None:
    topic = await world.open(KEEP)
    stored = await world.metadata.get(KEY)
    assert stored is not None
    await world.metadata.put(KEY, stored.value, expected=ANY)  # same epoch, another version
    await topic.set_properties({"a": "b"})
    assert topic.properties == {"a": "b"}
    await topic.close()


# the end of topics and ledgers


async def test_terminate_is_final(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 2)
    assert await topic.terminate() == Position(1, 1)
    receipts = Receipts()
    topic.append(b"2", 1, receipts, 2)
    await world.settle(lambda: len(receipts.outcomes) == 1)
    assert receipts.outcomes == [(2, TopicTerminated.code)]
    await topic.close()
    topic = await world.open()
    assert topic.is_terminated
    assert await topic.terminate() == Position(1, 1)
    topic.append(b"3", 1, receipts, 3)
    await world.settle(lambda: len(receipts.outcomes) == 2)
    assert receipts.outcomes[-1] == (3, TopicTerminated.code)
    assert await read_all(topic) == [b"0", b"1"]
    assert topic.after(topic.last_position) > topic.last_position
    await topic.close()


async def test_trim_drops_ledgers_that_all_durable_cursors_passed(world: TopicWorld) -> None:
    topic = await world.open()
    await topic.create_cursor("slow", EARLIEST, {})
    reader = await topic.create_cursor("reader", EARLIEST, {}, durable=False)
    first = await world.fill(topic, 3, messages=2)
    await topic.roll()
    second = await world.fill(topic, 3, messages=2, first=3)
    await topic.roll()
    await world.settle()
    assert await topic.trim() == 0
    topic.cursors["slow"].ack_cumulative(first[-1])
    assert await topic.trim() == 1
    assert first[0].ledger not in world.ledgers.ledger_ids
    assert topic.first_position == second[0]
    assert (topic.total_messages, topic.stats().trimmed_messages) == (6, 6)
    assert reader.first_unacked() == second[0], "a reader does not hold data back"
    assert await topic.cursors["slow"].backlog_messages() == 6
    assert numbers(await topic.read(first[0], 9, 1000, LATEST)) == [3, 4, 5]
    topic.cursors["slow"].ack_cumulative(second[-1])
    assert await topic.trim() == 1
    assert topic.last_position == second[-1]
    assert topic.first_position > second[-1]
    await topic.close()
    world.crash()
    topic = await world.open()
    assert topic.last_position == second[-1]
    assert await topic.cursors["slow"].backlog_messages() == 0
    (new,) = await world.fill(topic, 1, first=6)
    assert new > second[-1]
    assert topic.cursors["slow"].first_unacked() == new
    await topic.close()


async def test_held_positions_are_not_trimmed(world: TopicWorld) -> None:
    topic = await world.open()
    await topic.create_cursor("fast", EARLIEST, {})
    first = await world.fill(topic, 3)
    await topic.roll()
    second = await world.fill(topic, 3, first=3)
    await topic.roll()
    topic.cursors["fast"].ack_cumulative(second[-1])
    topic.held_behind = EARLIEST
    assert await topic.trim() == 0
    topic.held_behind = first[-1]
    assert await topic.trim() == 1
    assert topic.first_position == second[0]
    topic.held_behind = None
    assert await topic.trim() == 1
    await topic.close()


async def test_topic_that_is_only_opened_and_closed_keeps_few_ledgers(world: TopicWorld) -> None:
    """No sweep comes between, and every life of the topic has a ledger of its own."""
    kept = []
    for number in range(4 * CLOSED_LEDGERS_MAX):
        topic = await world.open()
        (last,) = await world.fill(topic, 1, first=number)
        await topic.close()
        kept.append(len(world.ledgers.ledger_ids))
    assert max(kept) <= CLOSED_LEDGERS_MAX + 3, "data, cursors, and what the next open deletes"
    topic = await world.open()
    assert topic.last_position == last
    assert (await read_all(topic))[-1] == b"%d" % number
    await topic.close()


async def test_close_keeps_what_a_durable_cursor_has_not_passed(world: TopicWorld) -> None:
    topic = await world.open()
    await topic.create_cursor("slow", EARLIEST, {})
    count = 2 * CLOSED_LEDGERS_MAX
    positions = []
    for number in range(count):
        positions += await world.fill(topic, 1, first=number)
        await topic.close()
        topic = await world.open()
    world.crash()
    topic = await world.open()
    assert await read_all(topic) == [b"%d" % number for number in range(count)]
    topic.cursors["slow"].ack_cumulative(positions[-3])
    await topic.close()
    assert not {one.ledger for one in positions[:-2]} & set(world.ledgers.ledger_ids)
    topic = await world.open()
    assert await topic.cursors["slow"].backlog_messages() == 2
    await topic.close()


async def test_a_topic_without_cursors_trims_itself_when_it_rolls(world: TopicWorld) -> None:
    topic = await world.open(TopicLogSettings(ledger_bytes_max=4))
    for first in range(0, 12, 2):
        await world.fill(topic, 2, first=first)
        await world.settle()
    assert len(topic.stats().ledgers) <= 2
    assert len(world.ledgers.ledger_ids) <= 2
    assert topic.stats().trimmed_messages + topic.total_messages == 12
    await topic.close()


async def test_trim_rolls_an_old_ledger(world: TopicWorld) -> None:
    topic = await world.open(TopicLogSettings(ledger_age_max_ms=1000, retention_ms=-1, retention_bytes=-1))
    await world.fill(topic, 1)
    await topic.trim()
    assert len(topic.stats().ledgers) == 1
    world.clock.advance(1)
    await topic.trim()
    assert [ledger.is_sealed for ledger in topic.stats().ledgers] == [True, False]
    await topic.close()


async def test_settings_change_at_run_time(world: TopicWorld) -> None:
    topic = await world.open(KEEP)
    await world.fill(topic, 1)
    await topic.roll()
    await world.settle()
    assert await topic.trim() == 0
    topic.settings = TopicLogSettings(ledger_bytes_max=1)
    assert await topic.trim() == 1
    await world.fill(topic, 1)
    await world.settle()
    assert topic.stats().ledgers[-1].entries == 0, "the new size counts at once"
    await topic.close()


async def test_delete_removes_ledgers_and_record(world: TopicWorld) -> None:
    topic = await world.open()
    await topic.create_cursor("s", EARLIEST, {})
    await world.fill(topic, 3)
    await topic.roll()
    await world.fill(topic, 3)
    await topic.delete()
    assert world.ledgers.ledger_ids == set()
    assert await world.metadata.get(KEY) is None
    with pytest.raises(StorageError):
        await topic.trim()
    topic = await world.open()
    assert (dict(topic.cursors), topic.last_position) == ({}, EARLIEST)
    await topic.close()


async def test_next_open_finishes_an_interrupted_deletion(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 3)
    stored = await world.metadata.get(KEY)
    assert stored is not None
    await topic.close()
    await world.metadata.put(KEY, stored.value[:-1] + b',"deleted":true}', expected=ANY)
    with pytest.raises(NotFound):
        await world.open(create=False)
    assert world.ledgers.ledger_ids == set()


# cursors and blobs


async def test_cursors_survive_close_and_crash(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 10, messages=2)
    cursor = await topic.create_cursor("s", Position(1, 2), {"k": "v"})
    assert (cursor.first_unacked(), cursor.backlog_entries, await cursor.backlog_messages()) == (Position(1, 2), 8, 16)
    assert cursor.ack(Position(1, 2), 2)
    assert cursor.ack(Position(1, 5), 2)
    assert not cursor.ack(Position(1, 6), 2, [0b01], 2)
    await cursor.flush()
    world.crash()
    topic = await world.open()
    cursor = topic.cursors["s"]
    assert cursor.properties == {"k": "v"}
    assert (cursor.mark_delete, cursor.is_acked(Position(1, 5))) == (Position(1, 2), True)
    assert cursor.ack_set(Position(1, 6)) == (1,)
    assert (cursor.backlog_entries, await cursor.backlog_messages(), cursor.consumed_messages) == (6, 12, 8)
    cursor.ack(Position(1, 7), 2)
    await topic.close()
    topic = await world.open()
    assert topic.cursors["s"].is_acked(Position(1, 7))
    await topic.close()


async def test_cursors_survive_owners_that_crash_before_writing(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 3)
    cursor = await topic.create_cursor("s", EARLIEST, {})
    cursor.ack(Position(1, 0), 1)
    await cursor.flush()
    for _ in range(3):
        world.crash()
        topic = await world.open()
        assert topic.cursors["s"].mark_delete == Position(1, 0)
    await topic.close()


async def test_acks_are_written_by_timer_only_if_there_are_any(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 3)
    cursor = await topic.create_cursor("s", EARLIEST, {})
    groups = world.ledgers.groups
    world.clock.advance(10)
    await world.settle()
    assert world.ledgers.groups == groups
    for entry in range(3):
        cursor.ack(Position(1, entry), 1)
    await world.settle()
    assert world.ledgers.groups == groups, "an ack does not pay for durability"
    world.clock.advance(0.25)
    await world.settle()
    assert world.ledgers.groups == groups + 1, "all acks together do, once"
    world.crash()
    topic = await world.open()
    assert not topic.cursors["s"].has_backlog
    await topic.close()


async def test_create_delete_and_create_again(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 3)
    await topic.create_cursor("s", EARLIEST, {})
    with pytest.raises(AlreadyExists):
        await topic.create_cursor("s", EARLIEST, {})
    topic.cursors["s"].ack(Position(1, 0), 1)
    await topic.delete_cursor("s")
    await topic.delete_cursor("s")
    assert "s" not in topic.cursors
    world.crash()
    topic = await world.open()
    assert dict(topic.cursors) == {}
    cursor = await topic.create_cursor("s", LATEST, {})
    assert not cursor.has_backlog
    await world.fill(topic, 1)
    assert cursor.first_unacked() == topic.last_position
    await topic.close()


async def test_non_durable_cursors_are_not_stored(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 3)
    groups = world.ledgers.groups
    cursor = await topic.create_cursor("r", Position(1, 1), {}, durable=False)
    cursor.ack(Position(1, 1), 1)
    cursor.ack_cumulative(Position(1, 1))
    await cursor.flush()
    assert (world.ledgers.groups, cursor.backlog_entries) == (groups, 1)
    await topic.close()
    topic = await world.open()
    assert dict(topic.cursors) == {}
    await topic.close()


async def test_seek_back_and_forth(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 10, messages=3)
    cursor = await topic.create_cursor("s", EARLIEST, {})
    cursor.ack(Position(1, 4), 3)
    cursor.ack_cumulative(Position(1, 7))
    assert await cursor.backlog_messages() == 6
    await cursor.flush()
    cursor.seek(Position(1, 2))
    assert (cursor.first_unacked(), cursor.is_acked(Position(1, 4))) == (Position(1, 2), False)
    assert await cursor.backlog_messages() == 24
    cursor.ack(Position(1, 5), 3)
    await cursor.flush()
    world.crash()
    topic = await world.open()
    cursor = topic.cursors["s"]
    assert (cursor.first_unacked(), cursor.backlog_entries, await cursor.backlog_messages()) == (Position(1, 2), 7, 21)
    cursor.seek(EARLIEST)
    assert cursor.backlog_entries == 10
    cursor.seek(LATEST)
    assert (cursor.backlog_entries, await cursor.backlog_messages()) == (0, 0)
    await topic.close()


async def test_recount_with_holes(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 10, messages=3)
    cursor = await topic.create_cursor("s", EARLIEST, {})
    for entry in (3, 5, 6, 9):
        cursor.ack(Position(1, entry), 3)
    cursor.ack_cumulative(Position(1, 3))
    assert (cursor.backlog_entries, await cursor.backlog_messages()) == (3, 9)
    await topic.close()


async def test_cumulative_ack_with_a_hint_stays_exact(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 10, messages=3)
    cursor = await topic.create_cursor("s", EARLIEST, {})
    assert await cursor.backlog_messages() == 30
    cursor.ack_cumulative(Position(1, 3), 12)
    assert cursor.consumed_messages == 12
    cursor.ack_cumulative(Position(1, 3), 12)
    assert cursor.consumed_messages == 12, "nothing new was acknowledged"
    await topic.close()


async def test_cursor_properties_change(world: TopicWorld) -> None:
    topic = await world.open()
    cursor = await topic.create_cursor("s", EARLIEST, {"a": "1"})
    cursor.properties = {"b": "2"}
    await cursor.flush()
    world.crash()
    topic = await world.open()
    assert topic.cursors["s"].properties == {"b": "2"}
    await topic.close()


async def test_blobs_survive_and_the_last_value_counts(world: TopicWorld) -> None:
    topic = await world.open()
    await topic.save_state("dedup", b"one")
    topic.save_state_nowait("dedup", b"two")
    topic.save_state_nowait("dedup", b"three")
    await topic.save_state("epoch", b"7")
    topic.save_state_nowait("dedup", b"never written")
    assert topic.state("dedup") == b"never written"
    world.crash()
    topic = await world.open()
    assert (topic.state("dedup"), topic.state("epoch"), topic.state("nothing")) == (b"three", b"7", None)
    await topic.close()


async def test_the_state_ledger_is_rewritten_when_it_grows(world: TopicWorld) -> None:
    topic = await world.open()
    await topic.create_cursor("s", EARLIEST, {"k": "v"})
    ledger = topic.stats().state_ledgers
    for round_ in range(8):
        await topic.save_state("blob", bytes([round_]) * 60_000)
    assert topic.stats().state_ledgers != ledger
    await world.settle()
    assert not set(ledger) & world.ledgers.ledger_ids, "the old one is gone"
    world.crash()
    topic = await world.open()
    assert topic.state("blob") == bytes([7]) * 60_000
    assert topic.cursors["s"].properties == {"k": "v"}
    await topic.close()


async def test_unwritable_state_is_kept_and_written_later(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 5)
    cursor = await topic.create_cursor("s", EARLIEST, {})
    for outage in ("fail_groups", "refusal"):
        setattr(world.ledgers, outage, StorageFull("no room"))
        cursor.ack(Position(1, 0 if outage == "refusal" else 1), 1)
        with pytest.raises(StorageFull):
            await cursor.flush()
        with pytest.raises(StorageFull):
            await topic.create_cursor("late", EARLIEST, {})
        assert "late" not in topic.cursors
        setattr(world.ledgers, outage, None)
    world.clock.advance(1.5)
    await world.settle()
    world.crash()
    topic = await world.open()
    assert topic.cursors["s"].mark_delete == Position(1, 1)
    assert "late" not in topic.cursors
    await topic.close()


async def test_an_unfinished_snapshot_changes_nothing() -> None:
    world = TopicWorld(auto=False)
    topic = await world.open()
    blobs = {f"b{number}": bytes([number]) * 700_000 for number in range(4)}  # a snapshot of several entries
    saving = [asyncio.ensure_future(topic.save_state(key, value)) for key, value in blobs.items()]
    await world.settle()
    assert world.ledgers.queued > 2
    world.ledgers.commit(world.ledgers.queued - 1)
    world.crash()
    for task in saving:
        task.cancel()
    again = await world.open()
    assert again.state("b0") is None
    saving = [asyncio.ensure_future(again.save_state(key, value)) for key, value in blobs.items()]
    await world.settle()
    world.ledgers.commit()
    await asyncio.gather(*saving)
    world.crash()
    again = await world.open()
    assert {key: again.state(key) for key in blobs} == blobs


async def test_topic_properties(world: TopicWorld) -> None:
    topic = await world.open()
    await topic.set_properties({"a": "b"})
    await topic.close()
    topic = await world.open()
    assert topic.properties == {"a": "b"}
    await topic.close()


async def test_closed_topic_raises_on_use(world: TopicWorld) -> None:
    topic: TopicLog = await world.open()
    await topic.close()
    await topic.close()
    receipts = Receipts()
    topic.append(b"0", 1, receipts, 0)
    await world.settle(lambda: len(receipts.outcomes) == 1)
    assert receipts.outcomes == [(0, "storage")]
    with pytest.raises(Error):
        await topic.create_cursor("s", EARLIEST, {})


async def test_no_ledgers_pile_up_when_a_topic_is_opened_and_closed(world: TopicWorld) -> None:
    topic = await world.open()
    await topic.create_cursor("s", EARLIEST, {})
    await world.fill(topic, 1)
    await topic.close()
    for _ in range(5):
        topic = await world.open()
        await world.settle()
        await topic.close()
    topic = await world.open()
    assert len(topic.stats().ledgers) == 2
    assert len(topic.stats().state_ledgers) == 2
    await topic.close()
