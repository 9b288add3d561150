"""`anabranch admin scalable-topics migrate-to-scalable`: what it says of old clients, `--wait`, `--force`, types."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator

import pulsar
import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.rest.openapi.topic_migration_schemas import CHECK
from anabranch.testing import Broker
from tests.support.traffic.json_schemas import complaints
from tests.support.traffic.stock_client import new_client

VERB = ("scalable-topics", "migrate-to-scalable")
LEAVES_AFTER_SECONDS = 1.5


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"public/default/cli-{uuid.uuid4().hex[:8]}"
    with AdminClient(broker.http_url) as admin:
        admin.put(f"/admin/v2/persistent/{name}/partitions", 2)
        admin.put(f"/admin/v2/persistent/{name}/subscription/audit")
    return name


@pytest.fixture
def stock(broker: Broker) -> Iterator[pulsar.Client]:
    client = new_client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def run(broker: Broker, capsys: pytest.CaptureFixture[str], topic: str, *options: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["admin", *VERB, topic, *options, "--admin-url", broker.http_url])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_clients_that_cannot_follow_are_named_and_block_it(
    broker: Broker, capsys: pytest.CaptureFixture[str], topic: str, stock: pulsar.Client
) -> None:
    consumer = stock.subscribe(topic, "audit", consumer_name="c-7")
    code, out, _ = run(broker, capsys, topic, "--check")
    assert code == 0
    assert f"persistent://{topic} becomes topic://{topic} with 2 segments" in out
    assert "blocked: 1 clients cannot follow a migration: consumer c-7 of audit at 127.0.0.1:" in out
    assert "(Pulsar-CPP" in out
    shown = json.loads(run(broker, capsys, topic, "--check", "--json")[1])
    assert [one["name"] for one in shown["clients"]] == ["c-7"]
    assert complaints(shown, CHECK, is_strict=True) == []
    code, _, err = run(broker, capsys, topic)
    assert code == 1 and "consumer c-7 of audit" in err
    code, _, err = run(broker, capsys, topic, "--wait", "1s")
    assert code == 1 and "waiting for consumer c-7 of audit" in err
    consumer.close()
    assert run(broker, capsys, topic) == (0, "migrated\n", "")


def test_wait_ends_when_the_clients_have_left(
    broker: Broker, capsys: pytest.CaptureFixture[str], topic: str, stock: pulsar.Client
) -> None:
    producer = stock.create_producer(topic, producer_name="p-1")
    leaving = threading.Timer(LEAVES_AFTER_SECONDS, producer.close)
    leaving.start()
    code, out, err = run(broker, capsys, topic, "--wait", "1m")
    leaving.join()
    assert (code, out) == (0, "migrated\n")
    assert "waiting for producer p-1" in err


def test_force_closes_them(
    broker: Broker, capsys: pytest.CaptureFixture[str], topic: str, stock: pulsar.Client
) -> None:
    producer = stock.create_producer(topic, send_timeout_millis=2_000)  # it attaches again and again until then
    producer.send(b"before")
    assert run(broker, capsys, topic, "--force") == (0, "migrated\n", "")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"after")


def test_type_of_a_subscription_can_be_chosen(broker: Broker, capsys: pytest.CaptureFixture[str], topic: str) -> None:
    chosen = ("--subscription-type", "audit=queue")
    assert "audit         queue" in run(broker, capsys, topic, "--check", *chosen)[1]
    assert run(broker, capsys, topic, *chosen)[0] == 0
    with (
        anabranch.blocking.connect(broker.service_url) as client,
        client.producer(f"topic://{topic}") as producer,
        client.queue_consumer(f"topic://{topic}", subscription="audit") as consumer,
    ):
        producer.send(b"x")
        assert consumer.receive(timeout=30) is not None
    code, _, err = run(broker, capsys, topic, "--subscription-type", "audit")
    assert code == 2 and "--subscription-type" in err


def test_kill_switch_refuses_it_and_not_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(settings={"scalable_topics.migration_enabled": False}) as off, AdminClient(off.http_url) as admin:
        admin.put("/admin/v2/persistent/public/default/off")
        assert "nothing blocks it" in run(off, capsys, "off", "--check")[1]
        code, _, err = run(off, capsys, "off")
        assert code == 1 and "scalable_topics.migration_enabled" in err
