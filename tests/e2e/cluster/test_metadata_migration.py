"""Migration of the metadata of three broker processes, with clients at work."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from anabranch.cli.main import main
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, rest
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 3, session_ms=3_000) as started:
        yield started


def run(capsys: pytest.CaptureFixture[str], broker: BrokerProcess, *words: str) -> Any:
    code = main(["admin", *words, "--admin-url", broker.http_url, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, f"{words}: {out}{err}"
    return json.loads(out) if out.strip() else None


def test_three_brokers_move_while_messages_flow(
    cluster: ClusterProcesses, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = list(cluster.brokers.values())
    client = new_client(cluster.service_url)
    producer = client.create_producer("flow", batching_enabled=False, block_if_queue_full=True)
    consumer = client.subscribe("flow", "s", initial_position=pulsar.InitialPosition.Earliest)
    stop = threading.Event()
    sent: list[int] = []

    def publish() -> None:
        while not stop.is_set():
            producer.send(b"%d" % len(sent))
            sent.append(len(sent))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        rest(brokers[0], "PUT", "/admin/v2/persistent/public/default/before")
        target = f"sqlite:///{tmp_path}/target"
        moved = run(capsys, brokers[1], "metadata-migration", "start", "--target", target, "--wait")
        assert moved["phase"] == "COMPLETED", moved
        assert moved["allSwitched"] and set(moved["participants"].values()) == {"SWITCHED"}, moved
        assert len(moved["participants"]) == 3
        assert moved["counts"]["records"] > 0
        rest(brokers[2], "PUT", "/admin/v2/persistent/public/default/after")
    finally:
        stop.set()
        publisher.join(30)
    assert not publisher.is_alive()
    for number in sent:
        message = consumer.receive(timeout_millis=20_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    for broker in brokers:
        listed = rest(broker, "GET", "/admin/v2/persistent/public/default")
        names = {name.rpartition("/")[2] for name in listed}
        assert {"before", "after", "flow"} <= names, listed
    again = brokers[0]
    again.kill9()
    again.start()  # with the old URL
    listed = rest(again, "GET", "/admin/v2/persistent/public/default")
    assert "persistent://public/default/after" in listed
    client.close()
