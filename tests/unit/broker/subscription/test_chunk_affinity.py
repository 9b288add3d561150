"""Chunks on Shared subscriptions: one consumer receives all chunks of a message, also when consumers join and leave."""

from __future__ import annotations

from anabranch.broker.subscription.chunk_affinity import KNOWN_MAX, Chunk, ChunkAffinity
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.entry_metadata import chunk_of
from anabranch.client.messages.chunking import entries_of
from anabranch.client.messages.outgoing import EntryFormat, OutgoingMessage
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.entry import build_batch, build_entry
from anabranch.storage.topic.topic_log import StoredEntry
from tests.support.in_memory.broker_fakes import ListLog, Shell, make_consumer, numbers, peer_of, positions, shared

SHARED = SubscriptionType.SHARED


def in_threes(entry: StoredEntry) -> Chunk:
    """Entries 0, 1, 2 are one message, 3, 4, 5 the next …"""
    number = entry.position.entry
    return Chunk(f"m{number // 3}", number % 3, 3)


def joined(shell: Shell, count: int, permits: int = 100) -> list[Consumer]:
    return [shell.join(make_consumer(SHARED, n, permits=permits)) for n in range(count)]


def mail(consumer: Consumer) -> list[int]:
    return numbers(peer_of(consumer).messages())


def test_all_chunks_of_a_message_go_to_one_consumer() -> None:
    log = ListLog(6 * 3)
    shell = Shell(shared(log, chunk_of=in_threes), log)
    consumers = joined(shell, 3)
    shell.pump()
    got = [mail(one) for one in consumers]
    assert sorted(n for one in got for n in one) == list(range(18))
    for one in got:
        assert len(one) == 6, "two messages each"
        assert {n // 3 for n in one[:3]} == {one[0] // 3} and {n // 3 for n in one[3:]} == {one[3] // 3}


def test_a_chunk_waits_for_its_collector() -> None:
    log = ListLog(3)
    shell = Shell(shared(log, chunk_of=in_threes), log)
    first, second = joined(shell, 2, permits=1)
    shell.pump()
    assert (mail(first), mail(second)) == ([0], [])
    shell.flow(first, 2)
    shell.pump()
    assert (mail(first), mail(second)) == ([1, 2], [])


def test_chunks_are_redelivered_in_order_when_their_consumer_leaves() -> None:
    log = ListLog(3)
    shell = Shell(shared(log, chunk_of=in_threes), log)
    first = shell.join(make_consumer(SHARED, 1, permits=2))
    second = shell.join(make_consumer(SHARED, 2, permits=0))
    shell.pump()
    assert mail(first) == [0, 1]
    shell.flow(second, 10)
    shell.leave(first)
    shell.pump()
    assert mail(second) == [0, 1, 2]


def test_nacked_chunked_message_is_redelivered_completely() -> None:
    log = ListLog(3)
    shell = Shell(shared(log, chunk_of=in_threes), log)
    consumers = joined(shell, 2)
    shell.pump()
    got = next(one for one in consumers if len(mail(one)) == 3)
    shell.dispatcher.redeliver(got, positions(range(3)))
    shell.pump()
    again = [mail(one) for one in consumers]
    assert sorted(again) == [[], [0, 1, 2]]


def test_chunks_without_a_first_chunk_go_to_any_consumer() -> None:
    """The first chunks were acknowledged before: the others do not wait for them."""
    log = ListLog(3)
    log.cursor.ack(Position(7, 0), 1)
    shell = Shell(shared(log, chunk_of=in_threes), log)
    consumers = joined(shell, 2)
    shell.pump()
    assert sorted(n for one in consumers for n in mail(one)) == [1, 2]


def test_affinity_ends_with_the_last_chunk_and_is_bounded() -> None:
    owners: ChunkAffinity[str] = ChunkAffinity()
    owners.delivered(Chunk("a", 0, 2), "x")
    assert owners.owner(Chunk("a", 1, 2)) == "x"
    assert owners.owner(Chunk("a", 0, 2)) is None, "it begins anew"
    owners.delivered(Chunk("a", 1, 2), "x")
    assert owners.owner(Chunk("a", 1, 2)) is None
    for n in range(KNOWN_MAX + 1):
        owners.delivered(Chunk(str(n), 0, 2), "x")
    assert owners.owner(Chunk("0", 1, 2)) is None
    assert owners.owner(Chunk("1", 1, 2)) == "x"
    owners.left("x")
    assert owners.owner(Chunk("1", 1, 2)) is None


def test_chunks_are_found_in_entries() -> None:
    def stored(data: bytes) -> StoredEntry:
        return StoredEntry(Position(1, 1), 1, data)

    made = entries_of(OutgoingMessage(7, b"x" * 3000), EntryFormat("p", chunk_bytes=900), 1500)
    assert [chunk_of(stored(one.data)) for one in made] == [Chunk("p-7", n, 4) for n in range(4)]
    for whole in (build_entry(b"x"), build_batch([b"x"] * 3), b"", b"nonsense", b"\xd8\x01" * 9):
        assert chunk_of(stored(whole)) is None
