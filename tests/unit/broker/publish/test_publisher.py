"""The publish path: receipts in SEND order for new, duplicate and pending entries; storage failures."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.publish.producer import Producer, Window
from anabranch.broker.publish.sequence_ids import Sequences
from anabranch.protocol.commands import BaseCommand, signed
from anabranch.protocol.server_errors import ServerError
from anabranch.storage.interface import StorageError
from tests.support.in_memory.broker_fakes import RecordingPeer
from tests.support.in_memory.publisher import PublishWorld, make_producer, send


def receipts(producer: Producer) -> list[tuple[int, bool]]:
    """(sequence, has a position) of each receipt, in order."""
    peer = producer.peer
    assert isinstance(peer, RecordingPeer)
    found = peer.bodies(BaseCommand.SEND_RECEIPT)
    return [(body.sequence_id, signed(body.message_id.ledgerId) >= 0) for body in found]


async def test_receipt_only_when_durable_and_in_order() -> None:
    world = PublishWorld(auto=False)
    publisher, producer, peer = await world.start(), make_producer(peer := RecordingPeer()), peer
    for sequence in range(3):
        publisher.publish(send(producer, sequence))
    assert receipts(producer) == []
    assert peer.pending_bytes == 9
    world.ledgers.commit(2)
    assert receipts(producer) == [(0, True), (1, True)]
    assert (peer.pending_bytes, producer.window.bytes, world.persisted) == (3, 3, 2)
    world.ledgers.commit()
    assert receipts(producer) == [(2, True)]
    assert producer.is_idle
    assert (publisher.messages_in, publisher.bytes_in) == (3, 9)


async def test_receipt_of_a_duplicate_waits_for_earlier_sends() -> None:
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(Sequences()), make_producer()
    publisher.publish(send(producer, 0))
    world.ledgers.commit()
    publisher.publish(send(producer, 1))
    publisher.publish(send(producer, 0))
    publisher.publish(send(producer, 2))
    assert receipts(producer) == [(0, True)]
    world.ledgers.commit()
    assert receipts(producer) == [(1, True), (0, False), (2, True)]


async def test_duplicate_with_nothing_in_flight_is_answered_at_once() -> None:
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(Sequences({"p": 5}, {"p": 5})), make_producer(peer := RecordingPeer())
    publisher.publish(send(producer, 5))
    assert receipts(producer) == [(5, False)]
    assert peer.pending_bytes == 0


@pytest.mark.parametrize("after", [[], [1], [1, 2]])
async def test_in_flight_duplicate_is_answered_in_send_order(after: list[int]) -> None:
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(Sequences()), make_producer(peer := RecordingPeer())
    for sequence in (0, 0, *after):
        publisher.publish(send(producer, sequence))
    world.ledgers.commit(1)
    world.ledgers.commit()
    assert receipts(producer) == [(0, True), (0, False), *((sequence, True) for sequence in after)]
    assert world.log.total_messages == 1 + len(after)
    assert peer.pending_bytes == 0
    assert producer.is_idle


async def test_echo_and_known_duplicate_keep_their_order() -> None:
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(Sequences({"p": 3}, {"p": 3})), make_producer()
    for sequence in (5, 5, 3, 6):
        publisher.publish(send(producer, sequence))
    world.ledgers.commit()
    assert receipts(producer) == [(5, True), (5, False), (3, False), (6, True)]


async def test_echo_through_a_new_connection_waits_for_the_first_copy() -> None:
    world = PublishWorld(auto=False)
    publisher, old, new = await world.start(Sequences()), make_producer(), make_producer()
    publisher.publish(send(old, 0))
    old.closed = True
    publisher.publish(send(new, 0))
    publisher.publish(send(new, 1))
    assert receipts(new) == []
    world.ledgers.commit()
    assert receipts(old) == []
    assert receipts(new) == [(0, False), (1, True)]
    assert world.log.total_messages == 2


async def test_close_waits_for_an_echo_too() -> None:
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(Sequences()), make_producer()
    publisher.publish(send(producer, 0))
    publisher.publish(send(producer, 0))
    closed: list[list[tuple[int, bool]]] = []
    producer.when_idle(lambda: closed.append(receipts(producer)))
    assert closed == []
    world.ledgers.commit()
    assert closed == [[(0, True), (0, False)]]


async def test_only_the_last_chunk_counts_for_deduplication() -> None:
    world = PublishWorld(auto=False)
    sequences = Sequences()
    publisher, producer = await world.start(sequences), make_producer()
    publisher.publish(send(producer, 0, last_chunk=False))
    publisher.publish(send(producer, 0, last_chunk=False))
    world.ledgers.commit()
    assert sequences.last("p") == -1
    publisher.publish(send(producer, 0))
    world.ledgers.commit()
    assert sequences.last("p") == 0
    assert world.log.total_messages == 3


async def test_closed_window_holds_in_order_and_lets_go() -> None:
    world = PublishWorld(auto=False)
    publisher = await world.start()
    narrow = make_producer(name="narrow", window=Window(6, 1_000))
    other = make_producer(name="other")
    for sequence in range(5):
        publisher.publish(send(narrow, sequence))
    publisher.publish(send(other, 9))
    assert [publish.sequence for publish in narrow.pending] == [2, 3, 4]
    assert world.ledgers.queued == 3, "two of the narrow producer, and its neighbour is not held up"
    world.ledgers.commit()
    assert receipts(other) == [(9, True)]
    world.ledgers.commit()
    world.ledgers.commit()
    assert receipts(narrow) == [(sequence, True) for sequence in range(5)]
    assert not narrow.pending


async def test_window_counts_messages_too() -> None:
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(), make_producer(window=Window(1_000, 3))
    publisher.publish(send(producer, 0, messages=3))
    publisher.publish(send(producer, 3))
    assert len(producer.pending) == 1


async def test_each_receipt_returns_credits() -> None:
    world = PublishWorld()
    publisher, producer = await world.start(), make_producer(peer := RecordingPeer(), credits=True)
    publisher.publish(send(producer, 0, messages=4))
    await world.settle(lambda: producer.is_idle)
    (receipt,) = peer.bodies(BaseCommand.SEND_RECEIPT)
    assert (receipt.credit_bytes, receipt.credit_messages) == (3, 4)


async def test_failed_group_is_no_receipt_and_can_be_sent_again() -> None:
    world = PublishWorld(auto=False)
    sequences = Sequences()
    publisher, producer = await world.start(sequences), make_producer(peer := RecordingPeer())
    publisher.publish(send(producer, 0))
    publisher.publish(send(producer, 1))
    publisher.publish(send(producer, 0))
    world.ledgers.fail_groups = StorageError("broken disk")
    world.ledgers.commit()
    assert receipts(producer) == []
    assert world.failures == ["storage", "storage"]
    assert (peer.pending_bytes, producer.window.bytes) == (0, 0)
    world.ledgers.fail_groups = None
    again = make_producer()
    publisher.publish(send(again, 0))
    await world.settle(lambda: world.ledgers.queued > 0)
    world.ledgers.commit()
    assert receipts(again) == [(0, True)]
    assert sequences.last("p") == 0


async def test_closed_producer_still_finishes_its_close() -> None:
    """The client asked to close; the broker closed it itself meanwhile; the answer must come all the same."""
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(), make_producer(window=Window(3, 10))
    publisher.publish(send(producer, 0))
    publisher.publish(send(producer, 1))
    closed: list[bool] = []
    producer.when_idle(lambda: closed.append(True))
    producer.closed = True
    producer.drop_pending()
    assert closed == []
    world.ledgers.commit()
    assert closed == [True]


async def test_terminated_topic_refuses_each_send() -> None:
    world = PublishWorld()
    publisher, producer = await world.start(), make_producer(peer := RecordingPeer())
    await world.log.terminate()
    publisher.publish(send(producer, 0))
    (kind, body), *_ = peer.frames()
    assert (kind, body.sequence_id, body.error) == (BaseCommand.SEND_ERROR, 0, ServerError.TopicTerminatedError)
    assert peer.pending_bytes == 0


async def test_snapshot_of_sequences_survives() -> None:
    world = PublishWorld()
    publisher, producer = await world.start(Sequences()), make_producer()
    publisher.publish(send(producer, 41))
    await world.settle(lambda: producer.is_idle)
    publisher.snapshot()
    loaded, upto = Sequences.load(world.log.state("dedup"))
    assert loaded.last("p") == 41
    assert upto == world.log.last_position


async def test_in_flight_duplicate_is_answered_after_deduplication_is_off() -> None:
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(Sequences()), make_producer()
    publisher.publish(send(producer, 0))
    publisher.publish(send(producer, 0))
    publisher.sequences = None
    world.ledgers.commit()
    assert receipts(producer) == [(0, True), (0, False)]


@pytest.mark.parametrize("is_deduplicated", [False, True])
@pytest.mark.parametrize("run", [1, 2, 3, 7, 20])
async def test_a_run_is_as_good_as_one_by_one(run: int, is_deduplicated: bool) -> None:
    """The window is narrow, so that runs end inside it, at its border and behind it."""
    world = PublishWorld(auto=False)
    publisher = await world.start(Sequences() if is_deduplicated else None)
    producer = make_producer(peer := RecordingPeer(), window=Window(30, 8))
    for start in range(0, 20, run):
        publisher.publish_run(producer, [send(producer, number) for number in range(start, min(start + run, 20))])
    assert peer.pending_bytes == 60
    assert producer.window.messages == 8
    while not producer.is_idle:
        world.ledgers.commit()
    assert receipts(producer) == [(number, True) for number in range(20)]
    assert (peer.pending_bytes, producer.window.bytes, producer.window.messages) == (0, 0, 0)
    assert (publisher.messages_in, publisher.bytes_in) == (20, 60)


async def test_a_refused_run_fails_as_a_whole_and_in_order() -> None:
    world = PublishWorld(auto=False)
    publisher, producer = await world.start(), make_producer(peer := RecordingPeer())
    publisher.publish(send(producer, 0))
    world.ledgers.refusal = StorageError("no room")
    publisher.publish_run(producer, [send(producer, 1), send(producer, 2)])
    assert world.failures == []  # behind what is in flight
    world.ledgers.commit()
    await asyncio.sleep(0)
    assert receipts(producer) == [(0, True)]
    assert len(world.failures) == 2
    assert (peer.pending_bytes, producer.window.bytes) == (0, 0)
