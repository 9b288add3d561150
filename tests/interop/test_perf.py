"""Load of Apache Pulsar's own generator, pulsar-perf: everything that it sends is stored and delivered."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.services.available import pulsar_perf
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

COUNT = 5_000
RATE = ("-r", "5000", "-s", "256")  # messages a second and their size; open loop


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("perf") / "data") as process:
        yield process
        assert process.log_complaints() == []


@pytest.mark.conformance("load of pulsar-perf: produce and consume", client="pulsar-perf")
def test_everything_that_perf_sends_is_stored_and_delivered(broker: BrokerProcess) -> None:
    """Produce on two topics, then consume from the beginning, Shared."""
    perf, rest = pulsar_perf(broker.service_url), Rest(broker.http_url)
    base = f"persistent://public/default/perf-{uuid.uuid4().hex[:8]}"
    topics = [f"{base}-0", f"{base}-1"]  # as it names them
    for topic in topics:
        rest.expect("PUT", f"/admin/v2/{topic.replace('://', '/')}/subscription/s", "earliest")
    perf("produce", "-t", "2", "-m", str(COUNT), *RATE, base)
    found = [rest.stats(topic) for topic in topics]
    assert sum(one["msgInCounter"] for one in found) >= COUNT and min(one["msgInCounter"] for one in found) > 0
    sent = sum(one["msgInCounter"] for one in found)
    assert sum(one["subscriptions"]["s"]["msgBacklog"] for one in found) == sent
    perf("consume", "-t", "2", "-m", str(sent), "-st", "Shared", "-ss", "s", base)
    found = [rest.stats(topic)["subscriptions"]["s"] for topic in topics]
    assert sum(one["msgOutCounter"] for one in found) >= sent
    assert sum(one["msgBacklog"] for one in found) < sent
