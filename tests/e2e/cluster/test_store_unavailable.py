"""Brokers that cannot reach the metadata store (a real ZooKeeper, one fault proxy per broker) while clients still reach
them: they serve as long as their session can be valid, then confirm nothing, and everything recovers by itself."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pulsar
import pytest

from anabranch.protocol.commands import BaseCommand
from tests import services
from tests.support.faults.fault_proxy_thread import ProxyThread
from tests.support.processes.cluster import ClusterProcesses
from tests.support.traffic.audited_topic import AuditedTopic
from tests.support.traffic.raw_client import RawClient
from tests.support.traffic.stock_client import new_client

pytestmark = pytest.mark.slow

SESSION_MS = 4_000
SURE_S = SESSION_MS / 1000 / 2
"""So long a session lives for certain after its holder is cut off: signs of life come more often than that."""
TOPIC = "persistent://public/default/{}"


class Proxied:
    """Two brokers, each with a separate connection to the store."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        server = services.shared("zk")
        self.proxies = {name: stack.enter_context(ProxyThread()) for name in ("b1", "b2")}
        place = f"t{uuid.uuid4().hex[:12]}"
        urls = {
            name: f"zk://127.0.0.1:{proxy.add(server.nodes[0].port)}/{place}" for name, proxy in self.proxies.items()
        }
        self.cluster = stack.enter_context(ClusterProcesses(folder, 2, metadata_urls=urls, session_ms=SESSION_MS))

    def topic_of(self, name: str) -> str:
        """One that this broker serves."""
        names = (TOPIC.format(f"t-{number}") for number in range(1000))
        return next(topic for topic in names if self.cluster.owner(topic) is self.cluster.brokers[name])

    def cut_off(self, name: str) -> None:
        self.proxies[name].do(lambda proxy: proxy.black_hole())

    def heal(self, name: str) -> None:
        self.proxies[name].do(lambda proxy: proxy.heal())


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    with ExitStack() as stack:
        yield Proxied(stack, tmp_path)


async def test_disconnected_broker_confirms_nothing_after_takeover(proxied: Proxied) -> None:
    cluster = proxied.cluster
    first, second = cluster.brokers["b1"], cluster.brokers["b2"]
    topic = proxied.topic_of("b1")
    client = new_client(cluster.service_url)
    client.subscribe(topic, "keeps").close()
    producer = client.create_producer(topic, send_timeout_millis=0)
    producer.send(b"1")
    async with RawClient(first.service_url) as raw:
        await raw.hello()
        await raw.producer(topic)
        began = time.monotonic()
        proxied.cut_off("b1")
        producer.send(b"2")
        owner = cluster.owner(topic, by=second)
        assert owner is first or time.monotonic() - began > SURE_S, "it goes on while it may"
        cluster.until(lambda: cluster.owner(topic, by=second) is second, "no broker took over")
        raw.send(0, b"never")
        await raw.wait_closed(30)
        assert not any(one.kind == BaseCommand.SEND_RECEIPT for one in raw.take_all())
    producer.send(b"3")
    assert "restarting to join again" in first.log_tail()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(3)] == [b"1", b"2", b"3"]
    assert not reader.has_message_available()
    client.close()
    proxied.heal("b1")
    cluster.wait_settled()  # it tried until the store was there


def test_consumers_of_a_disconnected_broker_find_the_next_one(proxied: Proxied) -> None:
    cluster = proxied.cluster
    first, second = cluster.brokers["b1"], cluster.brokers["b2"]
    topic = proxied.topic_of("b1")
    client, elsewhere = new_client(cluster.service_url), new_client(second.service_url)
    consumer = client.subscribe(topic, "sub")  # and nothing is written where it is
    proxied.cut_off("b1")
    cluster.until(lambda: cluster.owner(topic, by=second) is second, "no broker took over")
    elsewhere.create_producer(topic).send(b"here")
    assert consumer.receive(20_000).data() == b"here"
    assert "restarting to join again" in first.log_tail()
    client.close()
    elsewhere.close()


def test_store_outage_for_all_brokers_recovers(proxied: Proxied) -> None:
    cluster = proxied.cluster
    client = new_client(cluster.service_url)
    topic = AuditedTopic(client, proxied.topic_of("b1"))
    topic.go_on(cluster)
    for name in cluster.brokers:
        proxied.cut_off(name)
    cluster.until(topic.is_at_rest, "messages are confirmed though no session can be valid")
    for name in cluster.brokers:
        proxied.heal(name)
    topic.go_on(cluster)
    cluster.revive()
    topic.go_on(cluster)
    topic.close(cluster)
    client.close()
