"""Clients outside the network of a broker ask for its addresses by the name of an advertised listener."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import Refused
from anabranch.cli.main import main
from tests.support.processes.broker_process import BrokerProcess, free_port

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/listeners"
LOOKUP = "/lookup/v2/topic/persistent/public/default/listeners"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    port = free_port()
    listeners = f"inside:pulsar://127.0.0.1:{port},outside:pulsar://localhost:{port}"
    arguments = ["--set", f"network.advertised_listeners={listeners}"]
    running = BrokerProcess(tmp_path_factory.mktemp("data"), arguments=arguments)
    running.port = port
    running.start()
    yield running
    running.close()


@pytest.mark.parametrize(("listener", "host"), [(None, "127.0.0.1"), ("inside", "127.0.0.1"), ("outside", "localhost")])
def test_lookups_answer_the_address_of_the_listener(broker: BrokerProcess, listener: str | None, host: str) -> None:
    query = {} if listener is None else {"listenerName": listener}
    with AdminClient(broker.http_url) as admin:
        found = admin.call("GET", LOOKUP, query=query).value
    assert found["brokerUrl"].startswith(f"pulsar://{host}:")


def test_stock_client_uses_a_listener(broker: BrokerProcess) -> None:
    client = pulsar.Client(broker.service_url, listener_name="outside")
    client.create_producer(TOPIC).send(b"x")
    client.close()


def test_unknown_listener_is_an_error_that_names_the_others(broker: BrokerProcess) -> None:
    client = pulsar.Client(broker.service_url, listener_name="elsewhere", operation_timeout_seconds=10)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(TOPIC)
    client.close()
    with AdminClient(broker.http_url) as admin, pytest.raises(Refused, match="it has: inside, outside"):
        admin.call("GET", LOOKUP, query={"listenerName": "elsewhere"})


def test_brokers_of_one_command_cannot_share_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listeners = "network.advertised_listeners=a:pulsar://h:6650"
    assert main(["standalone", "--brokers", "2", "--data", str(tmp_path), "--set", listeners]) != 0
    assert "addresses of one broker" in capsys.readouterr().err
