"""`anabranch standalone --metadata URL` on every store, with the stock client; and while that store is away.

Away: open topics go on, what needs metadata is refused with an error that is worth trying again, and once the store is
back everything works again without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest

from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from tests import services
from tests.services import Cluster, oxia
from tests.support.faults.fault_proxy_thread import ProxyThread
from tests.support.in_memory.metadata_stores import fresh_url, params
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.raw_client import RawClient
from tests.support.traffic.stock_calls import EARLIEST, Rest, payloads, receive_data, send_all
from tests.support.traffic.stock_client import new_client

RETENTION = "/admin/v2/namespaces/public/sensors/retention"
KEPT = {"retentionTimeInMinutes": 7, "retentionSizeInMB": 3}


class Reading(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
    celsius = pulsar.schema.Float()


@contextlib.contextmanager
def running(folder: Path, url: str, *more: str) -> Iterator[BrokerProcess]:
    process = BrokerProcess(folder / "data", arguments=["--metadata", url, *more])
    try:
        yield process.start()
    finally:
        process.close()


@contextlib.contextmanager
def connected(broker: BrokerProcess, **options: object) -> Iterator[pulsar.Client]:
    client = new_client(broker.service_url, **options)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("kind", params())
def test_stock_client_and_a_restart(kind: str, tmp_path: Path) -> None:
    with running(tmp_path, fresh_url(kind, tmp_path)) as broker:
        rest = Rest(broker.http_url)
        values = payloads(20)
        with connected(broker) as client:
            rest.create_namespace("public/sensors")
            rest.expect("POST", RETENTION, KEPT)
            rest.create_partitioned("persistent://public/sensors/parts", 3)
            consumer = client.subscribe("public/sensors/plain", "sub", initial_position=EARLIEST)
            send_all(client.create_producer("public/sensors/plain"), values)
            assert receive_data(consumer, 10) == values[:10]
            parts = client.create_producer("public/sensors/parts")
            partitioned = client.subscribe("public/sensors/parts", "sub", initial_position=EARLIEST)
            send_all(parts, values)
            assert sorted(receive_data(partitioned, 20)) == values
            typed = client.create_producer("public/sensors/typed", schema=pulsar.schema.AvroSchema(Reading))
            typed.send(Reading(celsius=21.5))
        broker.restart()
        if kind == "memory":
            forgets_all(broker, rest)
            return
        with connected(broker) as client:
            assert rest.expect("GET", RETENTION) == KEPT
            assert client.get_topic_partitions("public/sensors/parts") == [
                f"persistent://public/sensors/parts-partition-{index}" for index in range(3)
            ]
            consumer = client.subscribe("public/sensors/plain", "sub")
            assert receive_data(consumer, 10) == values[10:]
            typed = client.subscribe(
                "public/sensors/typed",
                "reader",
                schema=pulsar.schema.AvroSchema(Reading),
                initial_position=EARLIEST,
            )
            assert typed.receive(10_000).value().celsius == 21.5
            send_all(client.create_producer("public/sensors/plain"), payloads(5, "later"))
            assert receive_data(consumer, 5) == payloads(5, "later")
        broker.kill9()
        broker.start()
        with connected(broker) as client:
            everything = client.create_reader("public/sensors/plain", pulsar.MessageId.earliest)
            assert [everything.read_next(10_000).data() for _ in range(25)] == values + payloads(5, "later")
        broker.stop()
        assert broker.log_complaints() == []


def forgets_all(broker: BrokerProcess, rest: Rest) -> None:
    """No topic is known any more; unknown files are neither read nor overwritten."""
    assert rest.expect("GET", "/admin/v2/namespaces/public") == ["public/default"]
    rest.create_namespace("public/sensors")
    with connected(broker) as client:
        place = client.create_producer("public/sensors/plain").send(b"new")
        assert place.ledger_id() > 1, "a number was given twice"
        reader = client.create_reader("public/sensors/plain", pulsar.MessageId.earliest)
        assert reader.read_next(10_000).data() == b"new"
        assert not reader.has_message_available()


class Away:
    """A server, the way to it, and how it can be lost."""

    def __init__(self, cluster: Cluster, proxies: ProxyThread) -> None:
        self.cluster, self.proxies = cluster, proxies

    def black_hole(self) -> None:
        self.proxies.do(lambda proxy: proxy.black_hole())

    def refused(self) -> None:
        self.proxies.do(lambda proxy: proxy.refuse())

    def killed(self) -> None:
        for node in self.cluster.nodes:
            node.kill9()

    def back(self) -> None:
        for node in self.cluster.nodes:
            if not node.is_alive:
                node.start()
        self.proxies.do(lambda proxy: proxy.heal())


Fault = Callable[[Away], None]
FAULTS: dict[str, tuple[Fault, ...]] = {
    "zk": (Away.black_hole, Away.killed),
    "etcd": (Away.refused, Away.killed),
    "oxia": (Away.black_hole, Away.killed),
}
"""Each is tried on two stores; in a soak all on all."""
if "ANABRANCH_FAULT_ROUNDS" in os.environ:
    FAULTS = dict.fromkeys(FAULTS, (Away.black_hole, Away.refused, Away.killed))


@contextlib.contextmanager
def served(kind: str, fault: Fault, folder: Path) -> Iterator[Away]:
    """A server of the test's own behind a proxy."""
    with ProxyThread() as proxies:
        if kind == "oxia" and fault is not Away.killed:
            # Its clients go where the servers tell them: to the proxy, if a coordinator says so.
            services.shared("oxia")  # skips where there is none
            cluster = oxia.replicated(folder, 1, advertised_ports=lambda node: proxies.add(node.port))
        else:
            cluster = services.cluster(kind, folder)
            for node in cluster.nodes:
                proxies.add(node.port)
        with cluster:
            yield Away(cluster, proxies)


def url_of(away: Away) -> str:
    place = f"t{uuid.uuid4().hex[:12]}"
    path = f"default/{place}" if away.cluster.scheme == "oxia" else place
    return f"{away.cluster.scheme}://{','.join(away.proxies.addresses)}/{path}"


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(kind, fault, id=f"{kind}-{fault.__name__}", marks=pytest.mark.xdist_group(kind))
        for kind, faults in FAULTS.items()
        for fault in faults
    ],
)
def test_a_broker_without_its_store(kind: str, fault: Fault, tmp_path: Path) -> None:
    with served(kind, fault, tmp_path / "server") as away:
        serve_without_store(away, fault, tmp_path)


def serve_without_store(away: Away, fault: Fault, tmp_path: Path) -> None:
    settings = ("topics.ledger_bytes_max=20000", "topics.state_bytes_max=256", "metadata.deadline_ms=2000")
    arguments = [word for setting in settings for word in ("--set", setting)]
    with running(tmp_path, url_of(away), *arguments) as broker:
        with connected(broker, operation_timeout_seconds=60) as client:
            producer = client.create_producer("loaded")
            consumer = client.subscribe("loaded", "sub", initial_position=EARLIEST)
            keeper = client.subscribe("loaded", "keeper", initial_position=EARLIEST)
            numbers = itertools.count()
            sent: list[bytes] = []

            def pass_on(count: int) -> None:
                """Through the broker and out of it, acknowledged; 1 KB each, so that ledgers fill up."""
                some = [f"{next(numbers)} ".encode().ljust(1000, b".") for _ in range(count)]
                sent.extend(some)
                send_all(producer, some)
                assert receive_data(consumer, count) == some

            pass_on(10)
            fault(away)
            pass_on(100)
            with ThreadPoolExecutor(3) as others:
                refusals = [others.submit(refused_on_the_wire, broker), others.submit(refused_request, broker)]
                waiting = others.submit(client.create_producer, "opened-later")
                pass_on(20)
                for refusal in refusals:
                    refusal.result(60)
                assert not waiting.done(), "a new topic was opened without metadata"
                away.back()
                waiting.result(60).send(b"x")
            pass_on(50)
            assert receive_data(keeper, len(sent)) == sent
        broker.restart()
        with connected(broker) as client:
            late = client.subscribe("loaded", "sub")
            last = client.create_producer("loaded")
            last.send(b"after the restart")
            assert receive_data(late, 1) == [b"after the restart"], "what was acknowledged came again"
        broker.stop()


def refused_request(broker: BrokerProcess) -> None:
    status, answer = Rest(broker.http_url).call("PUT", "/admin/v2/namespaces/public/refused")
    assert status == 503 and answer["error"].startswith("metadata-"), (status, answer)


def refused_on_the_wire(broker: BrokerProcess) -> None:
    """With the error after which stock clients keep their connection and try again."""

    async def ask() -> None:
        async with RawClient(broker.service_url) as raw:
            await raw.hello()
            answer = await raw.producer("persistent://public/default/refused")
            assert (answer.kind, answer.body.error) == (BaseCommand.ERROR, ServerError.MetadataError)
            assert (await raw.producer("persistent://public/default/loaded", 2)).kind == BaseCommand.PRODUCER_SUCCESS

    asyncio.run(ask())
