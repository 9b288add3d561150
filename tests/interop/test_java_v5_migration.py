"""Pulsar's V5 client (Java) attached by the `persistent://` name while its topic is migrated."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from anabranch.admin.client import AdminClient
from tests.services.available import pulsar_v5
from tests.services.pulsar_v5 import Keyed, V5Client, V5Error
from tests.support.processes.broker_process import BrokerProcess

PARTITIONS = 3
ROUNDS = 40
KEYS = [f"k{number}" for number in range(7)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("v5") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def java(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[V5Client]:
    client = pulsar_v5(broker.service_url, tmp_path_factory.mktemp("log"))
    yield client
    client.close()


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient(broker.http_url) as client:
        yield client


def messages(start: int) -> list[Keyed]:
    return [(key, f"{key} {number}") for number in range(start, start + ROUNDS) for key in KEYS]


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_producer_and_queue_consumer_go_on_through_a_migration(
    admin: AdminClient, java: V5Client, is_pipelined: bool
) -> None:
    name = f"public/default/v5-{uuid.uuid4().hex[:8]}"
    admin.put(f"/admin/v2/persistent/{name}/partitions", PARTITIONS)
    queue, producer = f"q-{name}", f"p-{name}"
    java.queue(queue, f"persistent://{name}", "work")
    java.producer(producer, f"persistent://{name}")
    java.send(producer, messages(0))
    if is_pipelined:
        java.begin_pipe(producer, messages(ROUNDS))
        migrate(admin, name)
        java.finish()
    else:
        migrate(admin, name)
        java.send(producer, messages(ROUNDS))
    wanted = messages(0) + messages(ROUNDS)
    found = java.take(queue, len(wanted))
    assert sorted(set(found)) == sorted(wanted), "lost"
    if not is_pipelined:
        assert len(found) == len(wanted), "delivered twice"


def migrate(admin: AdminClient, name: str) -> None:
    admin.post(f"/admin/v2/scalable-topics/{name}/migrate-to-scalable")


def test_stream_consumer_is_refused_before_the_migration_and_reads_everything_in_order_after_it(
    admin: AdminClient, java: V5Client
) -> None:
    """It registers with a controller, which a regular topic does not have; it cannot on Pulsar either."""
    name = f"public/default/v5-{uuid.uuid4().hex[:8]}"
    admin.put(f"/admin/v2/persistent/{name}/partitions", PARTITIONS)
    admin.put(f"/admin/v2/persistent/{name}/subscription/audit")
    stream, producer = f"s-{name}", f"p-{name}"
    java.producer(producer, f"persistent://{name}")
    java.send(producer, messages(0))
    with pytest.raises(V5Error, match="migrate it first"):
        java.stream(stream, f"persistent://{name}", "audit", "c1")
    migrate(admin, name)
    java.stream(stream, f"persistent://{name}", "audit", "c1")
    java.send(producer, messages(ROUNDS))
    wanted = messages(0) + messages(ROUNDS)
    found = java.take(stream, len(wanted))
    for key in KEYS:
        assert [one for one in found if one[0] == key] == [one for one in wanted if one[0] == key]
