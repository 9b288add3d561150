"""Peers that misbehave without breaking the protocol: they stop reading, stop writing, or take without end.

The broker's memory stays bounded, and a good client beside them gets everything in good time.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pulsar
import pytest

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import frame, frame_with_payload
from anabranch.protocol.entry import build_entry
from tests.support.processes.broker_process import HOST, BrokerProcess
from tests.support.traffic.stock_client import new_client

MIB = 1 << 20
TOPIC = "persistent://public/default/crowded"
NEIGHBOUR = "persistent://public/default/neighbour"


class RawPeer:
    """A connection that sends CONNECT and then only what the test sends. It reads only on request."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=10)
        connect = pb.CommandConnect(client_version="raw", protocol_version=21)
        self.say(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect))
        assert self.socket.recv(1 << 16), "refused"

    def say(self, command: pb.BaseCommand) -> None:
        self.socket.sendall(frame(command))

    def subscribe(self, topic: str, name: str, permits: int) -> None:
        subscribe = pb.CommandSubscribe(
            topic=topic,
            subscription=name,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=1,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        self.say(pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=subscribe))
        assert self.socket.recv(1 << 16), "refused"
        flow = pb.CommandFlow(consumer_id=1, messagePermits=permits)
        self.say(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=flow))

    def open_producer(self, topic: str) -> None:
        producer = pb.CommandProducer(topic=topic, producer_id=1, request_id=1)
        self.say(pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=producer))
        assert self.socket.recv(1 << 16), "refused"

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def good(private_broker: BrokerProcess) -> Iterator[pulsar.Client]:
    client = new_client(private_broker.service_url)
    yield client
    client.close()


def assert_neighbour_is_served(client: pulsar.Client) -> None:
    """A round trip of 100 messages on another topic; must not wait for the misbehaving client."""
    consumer = client.subscribe(NEIGHBOUR, "n")
    producer = client.create_producer(NEIGHBOUR)
    for n in range(100):
        producer.send_async(str(n).encode(), None)
    assert [int(consumer.receive(15_000).data()) for _ in range(100)] == list(range(100))
    producer.close()
    consumer.unsubscribe()


def publish_and_take(broker: BrokerProcess, producer: pulsar.Producer, consumer: pulsar.Consumer, count: int) -> int:
    """`count` messages of 100 kB through a consumer that keeps up; the broker's memory right after."""
    body = bytes(100_000)
    for _ in range(count):
        producer.send_async(body, None)
    for _ in range(count):
        consumer.acknowledge(consumer.receive(10_000))
    return broker.rss_bytes()


@pytest.mark.slow
def test_fast_traffic_stays_within_the_budgets(private_broker: BrokerProcess, good: pulsar.Client) -> None:
    consumer = good.subscribe(TOPIC, "keeps-up")
    producer = good.create_producer(TOPIC, block_if_queue_full=True)
    idle = private_broker.rss_bytes()
    highest = max(publish_and_take(private_broker, producer, consumer, 500) for _ in range(10)) - idle  # 500 MB in all
    # 32 MiB of cache, at most 48 MiB on the way to the ledger files, 8 MiB between received and durable; and some air
    assert highest < 160 * MIB, f"{highest >> 20} MB over idle"


@pytest.mark.slow
def test_consumers_that_stop_reading_cost_little_memory(private_broker: BrokerProcess, good: pulsar.Client) -> None:
    consumer = good.subscribe(TOPIC, "keeps-up")
    producer = good.create_producer(TOPIC, block_if_queue_full=True)
    before = max(publish_and_take(private_broker, producer, consumer, 500) for _ in range(3))
    peers = [RawPeer(private_broker.port) for _ in range(5)]
    for number, peer in enumerate(peers):
        peer.subscribe(TOPIC, f"stuck-{number}", permits=1_000_000)
    after = max(publish_and_take(private_broker, producer, consumer, 500) for _ in range(5))
    # each of the five asked for 400 MB and reads nothing: 2 MiB wait in its queue, the rest stays on disk
    assert after - before < 60 * MIB, f"{(after - before) >> 20} MB for 5 consumers that never read"
    assert_neighbour_is_served(good)
    for peer in peers:
        peer.close()


def test_producer_that_never_reads_receipts_affects_no_other(
    private_broker: BrokerProcess, good: pulsar.Client
) -> None:
    peer = RawPeer(private_broker.port)
    peer.open_producer(TOPIC)
    before = private_broker.rss_bytes()
    entry = build_entry(bytes(100), producer_name="raw")
    send = b"".join(
        frame_with_payload(
            pb.BaseCommand(type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=n, num_messages=1)),
            entry,
        )
        for n in range(1_000)
    )
    peer.socket.settimeout(1.0)
    sent = 0
    try:
        for _ in range(100):  # 100,000 receipts that are never read; the broker may stop reading
            peer.socket.sendall(send)
            sent += 1_000
    except TimeoutError:
        assert sent > 0
    assert private_broker.rss_bytes() - before < 60 * MIB
    assert_neighbour_is_served(good)
    peer.close()


def test_incomplete_frames_use_little_memory(private_broker: BrokerProcess, good: pulsar.Client) -> None:
    before = private_broker.rss_bytes()
    peers = [RawPeer(private_broker.port) for _ in range(100)]
    for peer in peers:  # five megabytes announced, a few bytes sent, then silence
        peer.socket.sendall((5 * MIB).to_bytes(4, "big") + (40).to_bytes(4, "big") + b"\x08\x06")
    assert_neighbour_is_served(good)
    grown = private_broker.rss_bytes() - before
    assert grown < 40 * MIB, f"{grown >> 20} MB for 100 half-sent frames"
    for peer in peers:
        peer.close()
    assert_neighbour_is_served(good)


def test_many_idle_connections_cost_little(private_broker: BrokerProcess, good: pulsar.Client) -> None:
    before = private_broker.rss_bytes()
    peers = [RawPeer(private_broker.port) for _ in range(500)]
    grown = private_broker.rss_bytes() - before
    assert grown < 500 * 20_000, f"{grown // 500} bytes per idle connection"
    assert_neighbour_is_served(good)
    for peer in peers:
        peer.close()
