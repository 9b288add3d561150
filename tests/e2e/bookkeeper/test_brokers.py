"""Brokers on bookies with the stock client: restart, kill -9, takeover without a shared directory, bookies that end.

Each broker has a data directory of its own, which stays empty: messages are on bookies, metadata is in ZooKeeper.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.e2e.bookkeeper.conftest import options
from tests.services import bookkeeper
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses
from tests.support.traffic.audited_topic import AuditedTopic
from tests.support.traffic.stock_client import new_client
from tests.support.traffic.stock_traffic import EARLIEST

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bookkeeper")]


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


def test_one_broker_keeps_messages_and_acknowledgements(
    bookies: bookkeeper.BookKeeper, tmp_path: Path, topic: str
) -> None:
    broker = BrokerProcess(tmp_path / "data", arguments=options(bookies, "one"))
    broker.start()
    try:
        with_client = new_client(broker.service_url)
        producer = with_client.create_producer(topic)
        consumer = with_client.subscribe(topic, "s", initial_position=EARLIEST)
        for number in range(100):
            producer.send(b"%d" % number)
        for number in range(60):
            message = consumer.receive(10_000)
            assert int(message.data()) == number
            consumer.acknowledge(message)
        consumer.close()  # so that the acknowledgements have arrived
        with_client.close()
        broker.stop()
        broker.start()
        with_client = new_client(broker.service_url)
        consumer = with_client.subscribe(topic, "s")
        assert [int(consumer.receive(10_000).data()) for _ in range(40)] == list(range(60, 100))
        producer = with_client.create_producer(topic)
        for number in range(100, 150):
            producer.send_async(b"%d" % number, lambda result, _: None)
        producer.flush()
        broker.kill9()
        broker.start()
        seen: set[int] = set()
        while len(seen) < 90:
            seen.add(int(consumer.receive(20_000).data()))
        assert seen == set(range(60, 150))
        reader = with_client.create_reader(topic, pulsar.MessageId.earliest)
        assert [int(reader.read_next(10_000).data()) for _ in range(150)] == list(range(150))
        with_client.close()
        assert not (tmp_path / "data").exists(), "nothing is kept on the broker's disk"
    finally:
        broker.close()


@pytest.fixture(scope="module")
def processes(bookies: bookkeeper.BookKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    folder = tmp_path_factory.mktemp("brokers")
    with ClusterProcesses(folder, 3, session_ms=3_000, arguments=options(bookies, "three")) as started:
        yield started


@pytest.fixture
def cluster(processes: ClusterProcesses) -> ClusterProcesses:
    processes.revive()
    return processes


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[pulsar.Client]:
    stock = new_client(cluster.service_url)
    yield stock
    stock.close()


def test_brokers_and_bookies_end_and_nothing_confirmed_is_lost(
    bookies: bookkeeper.BookKeeper, cluster: ClusterProcesses, client: pulsar.Client, topic: str
) -> None:
    audited = AuditedTopic(client, topic)
    audited.go_on(cluster)
    owner = cluster.owner(topic)
    owner.kill9()
    audited.go_on(cluster)
    assert cluster.owner(topic) is not owner

    bookies.bookies[0].kill9()
    audited.go_on(cluster)
    bookies.bookies[0].start()
    audited.go_on(cluster)

    audited.close(cluster)
    assert not cluster.data.exists(), "brokers share no directory"


def test_frozen_owner_confirms_nothing_after_a_takeover(
    cluster: ClusterProcesses, client: pulsar.Client, topic: str
) -> None:
    """It wakes up with adds in flight, and with the ledger that it writes closed by another broker."""
    confirmed: list[bytes] = []

    def answered(payload: bytes, result: pulsar.Result) -> None:
        if result == pulsar.Result.Ok:
            confirmed.append(payload)

    client.subscribe(topic, "kept").close()  # else what no subscription needs goes when its ledger is closed
    producer = client.create_producer(topic, block_if_queue_full=True)
    for number in range(2000):
        payload = b"before %d" % number
        producer.send_async(payload, lambda result, _, payload=payload: answered(payload, result))
        if number == 1500:
            owner = cluster.owner(topic)
            lives = owner.lives
            owner.freeze()
    other = next(one for one in cluster.alive if one is not owner)
    cluster.until(lambda: cluster.owner(topic, by=other) is not owner, "no broker took over")
    elsewhere = new_client(other.service_url)
    reader = elsewhere.create_reader(topic, pulsar.MessageId.earliest)
    elsewhere.create_producer(topic).send(b"meanwhile")
    taken = set(confirmed)
    owner.thaw()
    cluster.until(lambda: owner.lives > lives, "it does not join again")
    producer.flush()
    elsewhere.create_producer(topic).send(b"end")
    seen = [reader.read_next(10_000).data()]
    while seen[-1] != b"end":
        seen.append(reader.read_next(10_000).data())
    assert seen[: seen.index(b"meanwhile")], "what was confirmed before is there"
    assert taken <= set(seen[: seen.index(b"meanwhile")]), "nothing that was confirmed is lost"
    assert set(confirmed) <= set(seen)
    elsewhere.close()
    cluster.wait_settled()
