"""Compaction step by step: what remains of an entry, and the state after a crash or disk failure."""

from __future__ import annotations

import pytest

from anabranch.broker.errors import AlreadyRunning
from anabranch.broker.topic.compaction import CURSOR, Keyed, Status, messages_of, remainder
from anabranch.broker.topic.topic import Topic
from anabranch.model.errors import NotAllowed
from anabranch.model.position import EARLIEST, Position
from anabranch.protocol import entry as entries
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.storage.interface import StorageError
from anabranch.storage.topic.compacted_view import BadCompactedEntry, CompactedRow, decode_entry, encode_entry
from anabranch.storage.topic.topic_record import TopicRecord, decode_record, encode_record
from tests.support.in_memory.broker import BrokerWorld


def test_messages_of_an_entry_for_compaction() -> None:
    assert messages_of(entries.build_entry(b"x", key="k")) == [Keyed("t:k", False)]
    assert messages_of(entries.build_entry(b"", key="k")) == [Keyed("t:k", True)]
    assert messages_of(entries.build_entry(b"x")) == [Keyed(None, False)]
    for compress in (False, True):
        batch = entries.build_batch([b"x", b""], keys=["a", "b"], compress=compress)
        assert messages_of(batch) == [Keyed("t:a", False), Keyed("t:b", True)]
    assert messages_of(b"no entry") is None
    null = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, partition_key="k", null_value=True)
    assert messages_of(entries.seal_entry(null, b"ignored")) == [Keyed("t:k", True)]
    chunk = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_chunks_from_msg=2, chunk_id=0)
    assert messages_of(entries.seal_entry(chunk, b"half")) is None
    opaque = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=2, compression=pb.LZ4
    )
    assert messages_of(entries.seal_entry(opaque, b"??")) is None


def test_batch_keeps_the_slots_of_removed_messages() -> None:
    batch = entries.build_batch([b"1", b"2", b"3"], keys=["a", "b", "c"], compress=True)
    payload, words = remainder(batch, [False, True, False])
    assert words == (0b010,)
    assert entries.checksum_ok(payload)
    left = entries.split_batch(payload)
    assert [(one.metadata.compacted_out, one.data) for one in left] == [(True, b""), (False, b"2"), (True, b"")]
    assert messages_of(payload) == [Keyed(None, True, True), Keyed("t:b", False), Keyed(None, True, True)]
    assert remainder(batch, [True, True, True]) == (batch, None)


def test_compacted_entries_and_rows_are_read_back() -> None:
    for words in (None, (5,), (-1, 3)):
        found = decode_entry(encode_entry(Position(7, 9), words, b"data"), 4)
        assert (found.position, found.messages, bytes(found.payload), found.left) == (Position(7, 9), 4, b"data", words)
    with pytest.raises(BadCompactedEntry):
        decode_entry(b"short", 1)
    row = CompactedRow(3, 4, 5, 6, Position(7, 8), Position(7, 7), 2, 9)
    record = TopicRecord(compacted=row, compacting=11)
    assert decode_record(encode_record(record)) == record
    assert decode_record(encode_record(TopicRecord())) == TopicRecord()


async def filled(world: BrokerWorld, *pairs: tuple[str, bytes]) -> Topic:
    topic = await world.topic()
    appended: list[int] = []

    class Sink:
        def persisted(self, ledger: int, entry: int, contexts: object) -> None:
            appended.append(entry)

        def persist_failed(self, error: StorageError, context: object) -> None:
            raise AssertionError(error)

    for key, value in pairs:
        topic.log.append(entries.build_entry(value, key=key), 1, Sink(), None)
    await world.settle(lambda: topic.log.chain.entries >= len(pairs))
    return topic


async def test_crash_during_compaction_keeps_the_old_view() -> None:
    world = await BrokerWorld().start()
    topic = await filled(world, ("a", b"1"), ("a", b"2"))
    topic.compactor.claim()
    await topic.compactor.run()
    before = topic.log.compacted
    assert before is not None and before.row.entries == 1
    writer = await topic.log.compacting.begin()  # and then the lights go out
    begun = writer.ledger_id
    await world.crash()
    topic = await world.topic()
    after = topic.log.compacted
    assert after is not None and after.row == before.row
    await world.settle(lambda: begun not in world.ledgers.ledger_ids)
    assert begun not in world.ledgers.ledger_ids
    assert topic.compactor.stats.status is Status.SUCCESS
    topic.compactor.claim()
    await topic.compactor.run()
    assert topic.compactor.stats.status is Status.SUCCESS


async def test_disk_failure_during_compaction_keeps_the_old_view() -> None:
    world = await BrokerWorld().start()
    topic = await filled(world, ("a", b"1"), ("a", b"2"))
    topic.compactor.claim()
    await topic.compactor.run()
    before = topic.log.compacted
    topic = await filled(world, ("b", b"1"), ("b", b"2"), ("b", b"3"))
    world.ledgers.fail_reads = StorageError("bad sector")
    topic.compactor.claim()
    await topic.compactor.run()
    assert topic.compactor.stats.status is Status.ERROR
    assert topic.compactor.stats.last_error == "bad sector"
    assert topic.log.compacted is before
    world.ledgers.fail_reads = None
    topic.compactor.claim()
    await topic.compactor.run()
    view = topic.log.compacted
    assert view is not None and view is not before and view.row.entries == 2


async def test_deleting_the_topic_deletes_its_view() -> None:
    world = await BrokerWorld().start()
    topic = await filled(world, ("a", b"1"))
    topic.compactor.claim()
    await topic.compactor.run()
    view = topic.log.compacted
    assert view is not None and view.row.ledger in world.ledgers.ledger_ids
    await world.topics.delete(topic.name, force=True)
    assert view.row.ledger not in world.ledgers.ledger_ids


async def test_one_compaction_at_a_time_and_its_cursor_is_its_own() -> None:
    world = await BrokerWorld().start()
    topic = await filled(world, ("a", b"1"))
    topic.compact()
    with pytest.raises(AlreadyRunning):
        topic.compact()
    await world.settle(lambda: topic.compactor.stats.status is Status.SUCCESS)
    assert CURSOR in topic.log.cursors and CURSOR not in topic.subscriptions
    with pytest.raises(NotAllowed):
        await topic.create_subscription(CURSOR, EARLIEST, {})
    await world.crash()
    assert CURSOR not in (await world.topic()).subscriptions


async def test_an_empty_topic_is_compacted_to_nothing() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    topic.compact()
    await world.settle(lambda: topic.compactor.stats.status is Status.SUCCESS)
    assert topic.log.compacted is None
