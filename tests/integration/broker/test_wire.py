"""A real node over raw TCP: what exactly goes over the wire, and what a misbehaving peer can and cannot do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.node.node import Node
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_with_payload, message_id, position_of
from anabranch.protocol.entry import build_batch
from anabranch.protocol.replies import PING_FRAME
from anabranch.protocol.server_errors import ServerError
from tests.support.in_memory.node import client_of, serving
from tests.support.traffic.raw_client import RawClient, command

TOPIC = "persistent://public/default/t"
SHARED, EXCLUSIVE, FAILOVER = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover


def loaded(node: Node, topic: str = TOPIC) -> Topic:
    found = node.services.topics.loaded(TopicName.parse(topic))
    assert isinstance(found, Topic)
    return found


async def fill(client: RawClient, count: int, data: bytes = b"x") -> list[Position]:
    await client.producer(TOPIC, 99)
    for number in range(count):
        client.send(number, data, producer_id=99)
    return [position_of((await client.receipt()).message_id) for _ in range(count)]


# -- handshake and liveness


@pytest.mark.parametrize(
    "first",
    [
        command(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1),
        command(BaseCommand.CONNECT, client_version="a") + command(BaseCommand.CONNECT, client_version="a"),
        b"\xff\xff\xff\xff\x00\x00\x00\x01",
        b"GET /admin/v2/clusters HTTP/1.1\r\n\r\n",
    ],
    ids=["command before CONNECT", "second CONNECT", "endless frame", "HTTP"],
)
async def test_violations_close_only_their_connection(tmp_path: Path, first: bytes) -> None:
    async with serving(tmp_path) as node, client_of(node) as good, RawClient(node.service_url) as bad:
        bad.write(first)
        await bad.wait_closed()
        await good.barrier()
        assert (await good.producer(TOPIC)).kind == BaseCommand.PRODUCER_SUCCESS


async def test_unknown_command_closes_unsupported_one_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        answer = await client.ask(BaseCommand.NEW_TXN)
        assert answer.kind == BaseCommand.ERROR
        client.write(b"\x00\x00\x00\x07\x00\x00\x00\x03\x08\xc8\x01")
        await client.wait_closed()


async def test_keep_alive_both_ways(tmp_path: Path) -> None:
    async with serving(tmp_path, keep_alive_seconds=0.2) as node:
        async with client_of(node) as lively, client_of(node) as silent:
            silent.answers_pings = False
            await silent.expect(BaseCommand.PING)
            await silent.wait_closed()
            for _ in range(3):
                await lively.expect(BaseCommand.PING)
            await lively.barrier()
        async with RawClient(node.service_url) as mute:
            await mute.wait_closed()


async def test_half_open_exclusive_consumer_makes_room_for_the_next(tmp_path: Path) -> None:
    async with serving(tmp_path, probe_seconds=0.7) as node, client_of(node) as dead, client_of(node) as alive:
        await dead.subscribe(TOPIC, subType=EXCLUSIVE)
        assert (await alive.subscribe(TOPIC, subType=EXCLUSIVE)).kind == BaseCommand.ERROR
        dead.answers_pings = False
        assert (await alive.subscribe(TOPIC, subType=EXCLUSIVE)).kind == BaseCommand.SUCCESS
        await dead.wait_closed()


async def test_half_open_producer_makes_room_for_its_name(tmp_path: Path) -> None:
    async with serving(tmp_path, probe_seconds=0.7) as node, client_of(node) as dead, client_of(node) as alive:
        await dead.producer(TOPIC, producer_name="same")
        refused = await alive.producer(TOPIC, producer_name="same")
        assert refused.body.error == ServerError.ProducerBusy
        dead.answers_pings = False
        assert (await alive.producer(TOPIC, producer_name="same")).kind == BaseCommand.PRODUCER_SUCCESS


async def test_connections_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, connections_max=2) as node, client_of(node), client_of(node) as second:
        async with RawClient(node.service_url) as third:
            await third.expect(BaseCommand.ERROR)
            await third.wait_closed()
        await second.barrier()


async def test_requests_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, requests_in_flight_max=3) as node, client_of(node) as client:
        client.write(
            *(
                command(BaseCommand.GET_TOPICS_OF_NAMESPACE, request_id=number, namespace="public/default")
                for number in range(10)
            )
        )
        answers = [await client.until(lambda one: hasattr(one.body, "request_id")) for _ in range(10)]
        refused = [one for one in answers if one.kind == BaseCommand.ERROR]
        assert len(refused) == 7
        assert {one.body.error for one in refused} == {ServerError.TooManyRequests}
        await client.barrier()


async def test_producers_and_consumers_per_connection_are_counted(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"producers_per_connection_max": 1, "consumers_per_connection_max": 1}
    async with serving(tmp_path, **limits) as node, client_of(node) as client:
        assert (await client.producer(TOPIC, 1)).kind == BaseCommand.PRODUCER_SUCCESS
        assert (await client.producer(TOPIC, 2)).kind == BaseCommand.ERROR
        assert (await client.subscribe(TOPIC, consumer_id=1)).kind == BaseCommand.SUCCESS
        assert (await client.subscribe(TOPIC, consumer_id=2)).kind == BaseCommand.ERROR


# -- producing


async def test_credits_are_sent_only_to_clients_with_the_extension(tmp_path: Path) -> None:
    window: dict[str, Any] = {"producer_bytes_max": 1 << 20, "producer_messages_max": 77}
    async with serving(tmp_path, **window) as node, client_of(node, extensions=True) as ours, client_of(node) as stock:
        granted = (await ours.producer(TOPIC)).body
        assert (granted.credit_bytes, granted.credit_messages) == (1 << 20, 77)
        ours.send(0, b"x" * 1_000)
        receipt = await ours.receipt()
        assert receipt.credit_bytes > 1_000
        assert receipt.credit_messages == 1
        assert not (await stock.producer(TOPIC)).body.HasField("credit_bytes")
        stock.send(0)
        assert not (await stock.receipt()).HasField("credit_bytes")


async def test_a_blocked_producer_does_not_stop_its_neighbour(tmp_path: Path) -> None:
    """Group commits take their time here; one producer floods, the other sends once behind the flood."""
    async with serving(tmp_path, sync="linger:100ms", producer_bytes_max=64 << 10) as node, client_of(node) as client:
        await client.producer(TOPIC, 1)
        await client.producer(TOPIC, 2)
        for number in range(40):
            client.send(number, b"x" * 16_384, producer_id=1)
        client.send(0, producer_id=2)
        order = [(await client.receipt()).producer_id for _ in range(41)]
        assert order.index(2) < 20, "answered in the first groups, not behind everything the other one sent"


async def test_receipts_are_in_order_past_the_hard_cap(tmp_path: Path) -> None:
    caps: dict[str, Any] = {"producer_bytes_max": 64 << 10, "connection_bytes_max": 128 << 10}
    async with serving(tmp_path, sync="linger:20ms", **caps) as node, client_of(node) as client:
        await client.producer(TOPIC)
        for number in range(200):
            client.send(number, b"x" * 8_192)
        assert [(await client.receipt()).sequence_id for _ in range(200)] == list(range(200))


async def test_send_of_a_closed_producer_is_ignored(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        await client.producer(TOPIC)
        await loaded(node).terminate()
        client.send(0)
        await client.expect(BaseCommand.CLOSE_PRODUCER)
        client.send(1)
        await client.barrier()
        again = await client.producer(TOPIC, 5)
        assert again.body.error == ServerError.TopicTerminatedError
        client.send(0, producer_id=77)
        await client.wait_closed()


async def test_a_producer_id_used_again_leaves_no_ghost(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        await client.producer(TOPIC, 1, producer_name="first", epoch=0)
        await client.producer(TOPIC, 1, producer_name="second", epoch=1)
        assert set(loaded(node).producers) == {"second"}
        client.send(0)
        assert (await client.receipt()).sequence_id == 0


async def test_damaged_entry_is_refused_and_the_next_is_taken(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        await client.producer(TOPIC)
        sent = command(BaseCommand.SEND, producer_id=1, sequence_id=0, num_messages=1)
        size = int.from_bytes(sent[:4], "big")
        bad = b"\x0e\x01\x00\x00\x00\x00\x00\x00\x00\x02hi"
        client.write((size + len(bad)).to_bytes(4, "big") + sent[4:] + bad)
        refused = await client.expect(BaseCommand.SEND_ERROR)
        assert refused.body.error == ServerError.ChecksumError
        client.send(1)
        assert (await client.receipt()).sequence_id == 1


async def test_close_of_a_producer_answers_sends_in_flight_first(tmp_path: Path) -> None:
    async with serving(tmp_path, sync="linger:50ms") as node, client_of(node) as client:
        await client.producer(TOPIC)
        for number in range(5):
            client.send(number)
        closed = await client.ask(BaseCommand.CLOSE_PRODUCER, producer_id=1)
        assert closed.kind == BaseCommand.SUCCESS
        assert [(await client.receipt(0.01)).sequence_id for _ in range(5)] == list(range(5))


# -- consuming


async def test_permits_redelivery_count_and_epoch(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        at = await fill(client, 3)
        await client.subscribe(TOPIC, permits=2)
        assert await client.messages(2) == at[:2]
        await client.barrier()
        assert not client.has(BaseCommand.MESSAGE)
        client.tell(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=[message_id(at[1])])
        client.flow(10)
        found = [await client.message() for _ in range(2)]
        assert {(position_of(one.message_id), one.redelivery_count) for one in found} == {(at[1], 1), (at[2], 0)}
        await client.subscribe(TOPIC, "exclusive", 2, permits=10, subType=EXCLUSIVE, consumer_epoch=4)
        assert {(await client.message()).consumer_epoch for _ in range(3)} == {4}
        client.tell(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=2, consumer_epoch=5)
        assert {(await client.message()).consumer_epoch for _ in range(3)} == {5}


@pytest.mark.parametrize("is_announced", [True, False])
async def test_redeliver_names_messages_only_if_the_client_announced_it(tmp_path: Path, is_announced: bool) -> None:
    async with serving(tmp_path) as node, RawClient(node.service_url) as client:
        await client.hello(anabranch_message_nacks=is_announced)
        await client.producer(TOPIC)
        body = pb.CommandSend(producer_id=1, sequence_id=0, num_messages=4, highest_sequence_id=3)
        client.write(frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=body), build_batch([b"x"] * 4)))
        at = position_of((await client.receipt()).message_id)
        await client.subscribe(TOPIC, permits=10)
        await client.message()
        for words in ([0b0110], [0b0010]):
            one = message_id(at)
            one.ack_set.extend(words)
            one.batch_size = 4
            client.tell(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=[one])
        found = [await client.message() for _ in range(2)]
        expected = [([0b0110], 1), ([0b0010], 2)] if is_announced else [([], 1), ([], 2)]
        assert [(list(one.ack_set), one.redelivery_count) for one in found] == expected
        assert not found[0].HasField("consumer_epoch")


async def test_acks_of_unwritten_positions_are_ignored(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        (at,) = await fill(client, 1)
        await client.subscribe(TOPIC, permits=10)
        await client.messages(1)
        client.ack(Position(at.ledger, at.entry + 5), Position(at.ledger + 5, 0), Position(-1, -1))
        client.send(1, producer_id=99)
        assert await client.messages(1) == [Position(at.ledger, at.entry + 1)]


async def test_unacked_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, unacked_per_consumer_max=5) as node, client_of(node) as client:
        at = await fill(client, 20)
        await client.subscribe(TOPIC, permits=100)
        assert await client.messages(5) == at[:5]
        await client.barrier()
        assert not client.has(BaseCommand.MESSAGE)
        client.ack(at[0], at[1])
        assert await client.messages(2) == at[5:7]


async def test_confirmed_acks_survive_a_power_cut(tmp_path: Path) -> None:
    async with serving(tmp_path / "one", sync="group") as node, client_of(node) as client:
        at = await fill(client, 10)
        await client.subscribe(TOPIC, permits=100)
        await client.messages(10)
        for number, position in enumerate(at[:7]):
            client.ack(position, request_id=1_000 + number)
        answers = [(await client.expect(BaseCommand.ACK_RESPONSE)).body for _ in range(7)]
        assert [one.request_id for one in answers] == list(range(1_000, 1_007))
        assert not any(one.HasField("error") for one in answers)
        shutil.copytree(tmp_path / "one", tmp_path / "two")  # what the disk has at this moment
    async with serving(tmp_path / "two") as node, client_of(node) as client:
        await client.subscribe(TOPIC, permits=100)
        assert await client.messages(3) == at[7:]


async def test_many_ack_receipts_do_not_use_up_the_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, sync="linger:50ms", requests_in_flight_max=10) as node, client_of(node) as client:
        at = await fill(client, 100)
        await client.subscribe(TOPIC, permits=1_000)
        await client.messages(100)
        for number, position in enumerate(at):
            client.ack(position, request_id=1_000 + number)
        answer = await client.ask(BaseCommand.GET_LAST_MESSAGE_ID, consumer_id=1)
        assert answer.kind == BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE
        confirmed = [(await client.expect(BaseCommand.ACK_RESPONSE)).body.request_id for _ in range(100)]
        assert confirmed == list(range(1_000, 1_100))


async def test_failover_notifies_the_active_consumer(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as one, client_of(node) as two:
        await one.subscribe(TOPIC, subType=FAILOVER)
        assert (await one.expect(BaseCommand.ACTIVE_CONSUMER_CHANGE)).body.is_active
        await two.subscribe(TOPIC, subType=FAILOVER)
        assert not (await two.expect(BaseCommand.ACTIVE_CONSUMER_CHANGE)).body.is_active
        await one.ask(BaseCommand.CLOSE_CONSUMER, consumer_id=1)
        assert (await two.expect(BaseCommand.ACTIVE_CONSUMER_CHANGE)).body.is_active


async def test_end_of_topic_only_for_clients_that_know_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as knows, client_of(node, version="Pulsar-CPP-v3.7") as cpp:
        (at,) = await fill(knows, 1)
        await knows.subscribe(TOPIC, "a", permits=10)
        await cpp.subscribe(TOPIC, "b", permits=10)
        await knows.messages(1)
        await cpp.messages(1)
        await loaded(node).terminate()
        await knows.barrier()
        assert not knows.has(BaseCommand.REACHED_END_OF_TOPIC), "not before everything is acknowledged"
        knows.ack(at)
        cpp.ack(at)
        await knows.expect(BaseCommand.REACHED_END_OF_TOPIC)
        await cpp.barrier()
        assert not cpp.has(BaseCommand.REACHED_END_OF_TOPIC)


async def test_seek_closes_the_consumers_and_moves(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        at = await fill(client, 5)
        await client.subscribe(TOPIC, permits=10)
        await client.messages(5)
        client.ack(*at)
        answer = await client.ask(BaseCommand.SEEK, consumer_id=1, message_id=message_id(at[3]))
        assert answer.kind == BaseCommand.SUCCESS
        assert (await client.expect(BaseCommand.CLOSE_CONSUMER)).body.consumer_id == 1
        await client.subscribe(TOPIC, permits=10)
        assert await client.messages(2) == at[3:]


async def test_closed_connection_returns_its_pending_entries(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as stays:
        async with client_of(node) as goes:
            at = await fill(goes, 3)
            await goes.subscribe(TOPIC, permits=10)
            await goes.messages(3)
            await stays.subscribe(TOPIC, permits=10)
        found = [await stays.message() for _ in range(3)]
        assert [(position_of(one.message_id), one.redelivery_count) for one in found] == [(p, 1) for p in at]
        topic = loaded(node)
        assert not topic.producers
        assert len(topic.subscriptions["s"].consumers) == 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_consumer_that_does_not_read_costs_little_memory(tmp_path: Path) -> None:
    limits = {"cache_bytes": 1 << 20, "write_behind_bytes_max": 1 << 20}
    async with (
        serving(tmp_path, storage=limits) as node,
        client_of(node) as writer,
        client_of(node) as stuck,
        client_of(node) as reader,
    ):
        await fill(writer, 300, os.urandom(100_000))
        stuck.reads.clear()
        before = resident_bytes()
        await stuck.subscribe(TOPIC, "stuck", permits=100_000)
        await reader.subscribe(TOPIC, "reader", permits=30)
        await reader.messages(30)
        await reader.barrier()
        held = sum(len(one.payload or b"") for one in stuck._inbox)
        assert resident_bytes() - before - held < 16 << 20, "of 30 MB that wait for the stuck one"
        assert held < 16 << 20
        stuck.reads.set()
        assert len(await stuck.messages(300)) == 300


async def test_connection_that_never_reads_affects_no_other(tmp_path: Path) -> None:
    """It asks without ever reading the answers; the others do not notice."""
    async with serving(tmp_path, requests_in_flight_max=100_000) as node, client_of(node) as good:
        async with client_of(node) as deaf:
            deaf.reads.clear()
            deaf.write(PING_FRAME * 20_000)
            await good.producer(TOPIC)
            for number in range(50):
                good.send(number)
                assert (await good.receipt()).sequence_id == number
        await good.barrier()


# -- values at the edge


async def test_sequence_ids_past_javas_longs_poison_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, deduplication=True) as node, client_of(node) as client:
        await client.producer(TOPIC, 1, producer_name="p")
        client.send((1 << 64) - 1)
        assert (await client.receipt()).sequence_id == (1 << 64) - 1
        client.send(0)
        receipt = await client.receipt()
        assert (receipt.sequence_id, receipt.message_id.ledgerId < 1 << 63) == (0, True), "stored, no duplicate"
        await client.ask(BaseCommand.CLOSE_PRODUCER, producer_id=1)
        again = await client.producer(TOPIC, 2, producer_name="p")
        assert (again.kind, again.body.last_sequence_id) == (BaseCommand.PRODUCER_SUCCESS, 0)


async def test_endless_names_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        assert (await client.producer(TOPIC, producer_name="p" * 100_000)).kind == BaseCommand.ERROR
        assert (await client.subscribe(TOPIC, consumer_name="c" * 100_000)).kind == BaseCommand.ERROR
        assert (await client.subscribe(TOPIC, "s" * 100_000)).kind == BaseCommand.ERROR
        assert (await client.subscribe("t" * 100_000)).kind == BaseCommand.ERROR
        await client.barrier()


async def test_permits_add_up_without_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, client_of(node) as client:
        await client.subscribe(TOPIC)
        for _ in range(10):
            client.flow((1 << 32) - 1)
        at = await fill(client, 2)
        assert await client.messages(2) == at
        stats = (await client.ask(BaseCommand.CONSUMER_STATS, consumer_id=1)).body
        assert 0 < stats.availablePermits <= 1 << 31


async def test_unread_answers_use_little_memory(tmp_path: Path) -> None:
    caps: dict[str, Any] = {"producer_bytes_max": 64 << 10, "connection_bytes_max": 1 << 20}
    async with serving(tmp_path, requests_in_flight_max=1_000_000, **caps) as node, client_of(node) as good:
        name = "n" * 200
        for number in range(20):
            await good.producer(f"persistent://public/default/{name}{number}", number)
        async with client_of(node) as deaf:
            deaf.reads.clear()
            before = resident_bytes()
            for number in range(10_000):  # 50 MB of answers
                deaf.tell(BaseCommand.GET_TOPICS_OF_NAMESPACE, request_id=number, namespace="public/default")
                if number % 100 == 0:  # until those before are answered: pending answers are limited
                    await good.ask(BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace="public/default")
            for _ in range(100):
                await good.barrier()
            assert resident_bytes() - before < 24 << 20
        await good.barrier()
