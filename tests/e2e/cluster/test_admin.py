"""Administration of three broker processes, asked at any of them: the command line and the stock client under it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from anabranch.cli.main import main
from tests.services.available import pulsar_admin
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, RestRefused, rest
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3, session_ms=3_000) as started:
        yield started


@pytest.fixture
def cluster(processes: ClusterProcesses) -> ClusterProcesses:
    """All of them serve, whatever the test before did to them."""
    processes.revive()
    return processes


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[pulsar.Client]:
    stock = new_client(cluster.service_url)
    yield stock
    stock.close()


class Shell:
    """`anabranch admin …` at one broker."""

    def __init__(self, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self._broker = broker
        self._capsys = capsys

    def __call__(self, *words: str) -> Any:
        code = main(["admin", *words, "--admin-url", self._broker.http_url, "--json"])
        out, err = self._capsys.readouterr()
        assert code == 0, f"{words}: {out}{err}"
        return json.loads(out) if out.strip() else None


def name_of(cluster: ClusterProcesses, broker: BrokerProcess) -> str:
    return next(name for name, one in cluster.brokers.items() if one is broker)


def others(cluster: ClusterProcesses, owner: BrokerProcess) -> list[BrokerProcess]:
    return [broker for broker in cluster.alive if broker is not owner]


def test_the_command_line_at_any_broker(cluster: ClusterProcesses, capsys: pytest.CaptureFixture[str]) -> None:
    shells = [Shell(broker, capsys) for broker in cluster.alive]
    listed = [shell("brokers", "list", "standalone") for shell in shells]
    assert listed[0] == sorted(broker.http_url.removeprefix("http://") for broker in cluster.alive)
    assert listed[1:] == [listed[0]] * 2
    assert len({json.dumps(shell("brokers", "leader-broker")) for shell in shells}) == 1
    details = [shell("brokers", "details") for shell in shells]
    assert [one["id"] for one in details[0]] == ["b1", "b2", "b3"] and sum(one["slots"] for one in details[0]) == 256
    for number, shell in enumerate(shells):
        topic = f"cli-{number}"
        shell("topics", "create-partitioned-topic", topic, "--partitions", "7")
        assert len(shells[number - 1]("topics", "partitioned-stats", topic, "--per-partition")["partitions"]) == 7
        shells[number - 1]("topics", "create-subscription", topic, "-s", "s")
        shells[number - 2]("topics", "update-partitioned-topic", topic, "--partitions", "9")
        assert shell("topics", "subscriptions", topic) == ["s"]
        for plain in range(4):  # wherever they are
            shell("topics", "create", f"plain-{number}-{plain}")
            shells[number - 1]("topics", "stats", f"plain-{number}-{plain}")
            shells[number - 2]("topics", "unload", f"plain-{number}-{plain}")
            shells[number - 1]("topics", "delete", f"plain-{number}-{plain}")
        shells[number - 1]("namespaces", "unload", "public/default")
        shells[number - 2]("topics", "unsubscribe", topic, "-s", "s")
        shells[number - 2]("topics", "delete-partitioned-topic", topic)


def test_a_policy_set_at_any_broker_counts_for_loaded_topics(cluster: ClusterProcesses, client: pulsar.Client) -> None:
    topic = "persistent://public/default/policies"
    client.create_producer(topic)
    owner = cluster.owner(topic)
    for limit, broker in zip((1, 0), others(cluster, owner), strict=True):
        rest(broker, "POST", "/admin/v2/namespaces/public/default/maxProducersPerTopic", limit)

        def counts(limit: int = limit) -> bool:
            """Producers beyond the limit are refused, or taken again."""
            try:
                client.create_producer(topic).close()
            except pulsar.PulsarException:
                return limit == 1
            return limit == 0

        cluster.until(counts, f"limit {limit} is not noticed")


def test_drained_moved_and_resumed_under_a_producer(
    cluster: ClusterProcesses, client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "persistent://public/default/moving"
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"0")
    first = cluster.owner(topic)
    shell = Shell(others(cluster, first)[0], capsys)
    shell("brokers", "drain", name_of(cluster, first))
    second = cluster.owner(topic)
    assert second is not first
    producer.send(b"1")
    details = rest(second, "GET", "/admin/v2/brokers/standalone/details")
    assert [one["slots"] for one in details if one["draining"]] == [0]
    shell("brokers", "resume", name_of(cluster, first))
    cluster.wait_settled()
    wanted = next(broker for broker in cluster.alive if broker is not cluster.owner(topic))
    bundle = str(shell("topics", "bundle-range", topic))
    shell("namespaces", "unload", "public/default", "-b", bundle, "-d", name_of(cluster, wanted))
    assert cluster.owner(topic) is wanted
    producer.send(b"2")
    assert [consumer.receive(10_000).data() for _ in range(3)] == [b"0", b"1", b"2"]
    cluster.wait_settled()


def test_dead_broker_does_not_block_admin_calls(cluster: ClusterProcesses, client: pulsar.Client) -> None:
    parent = "/admin/v2/persistent/public/default/after"
    rest(cluster.alive[0], "PUT", f"{parent}/partitions", 12)
    dead = cluster.alive[-1]
    dead.kill9()
    asked = cluster.alive[0]
    stats = rest(asked, "GET", f"{parent}/partitioned-stats")  # waits for who takes over
    assert len(stats["partitions"]) == 12
    assert rest(asked, "GET", "/admin/v2/non-persistent/public/default") == []
    cluster.until(lambda: len(rest(asked, "GET", "/admin/v2/brokers")) == 2, "the dead broker is listed")
    with pytest.raises(RestRefused, match="404"):
        rest(asked, "POST", f"/admin/v2/brokers/standalone/{name_of(cluster, dead)}/drain")
    rest(asked, "DELETE", f"{parent}/partitions")


def test_frozen_broker_does_not_block_admin_calls(cluster: ClusterProcesses) -> None:
    parent = "/admin/v2/persistent/public/default/cold"
    rest(cluster.alive[0], "PUT", f"{parent}/partitions", 12)
    frozen = cluster.alive[-1]
    frozen.freeze()
    try:
        asked = cluster.alive[0]
        assert rest(asked, "GET", "/admin/v2/non-persistent/public/default") == []  # waits for its session at most
        cluster.until(lambda: has_stats(asked, parent), "no other broker serves the partitions")
    finally:
        frozen.thaw()
    rest(asked, "DELETE", f"{parent}/partitions")


def has_stats(asked: BrokerProcess, parent: str) -> bool:
    try:
        return len(rest(asked, "GET", f"{parent}/partitioned-stats")["partitions"]) == 12
    except RestRefused as error:
        assert error.status == 503, error
    return False


def test_the_real_pulsar_admin_at_a_broker_that_is_not_the_owner(
    cluster: ClusterProcesses, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = [f"persistent://public/default/java-{number}" for number in range(6)]
    asked = cluster.alive[0]
    topic = next(topic for topic in topics if cluster.owner(topic) is not asked)
    with pulsar_admin(asked.http_url, tmp_path) as admin:
        assert len(admin.ok("brokers", "list", "standalone").lines) == len(cluster.alive)
        admin.ok("topics", "create", topic)
        admin.ok("topics", "create-subscription", topic, "-s", "s")
        assert "s" in admin.ok("topics", "stats", topic).json["subscriptions"]
        admin.ok("topics", "unload", topic)
        admin.ok("topics", "create-partitioned-topic", f"{topic}-p", "--partitions", "6")
        stats = admin.ok("topics", "partitioned-stats", f"{topic}-p", "--per-partition").json
        assert len(stats["partitions"]) == 6
        bundle = admin.ok("topics", "bundle-range", topic).out.strip()
        names = [broker.http_url.removeprefix("http://") for broker in cluster.alive]
        wanted = next(name for name in names if name != cluster.owner(topic).http_url.removeprefix("http://"))
        admin.ok("namespaces", "unload", "public/default", "-b", bundle, "--destinationBroker", wanted)
        assert cluster.owner(topic).http_url.endswith(wanted)
        admin.ok("topics", "delete", "-f", topic)
        admin.ok("topics", "delete-partitioned-topic", f"{topic}-p")


def test_setting_changed_at_any_broker_is_in_force_on_all_and_after_a_restart(
    cluster: ClusterProcesses, client: pulsar.Client
) -> None:
    configuration = "/admin/v2/brokers/configuration"

    def may_create(broker: BrokerProcess, prefix: str) -> bool:
        """Whether the broker's own clients create topics by using them."""
        stock = new_client(broker.service_url, operation_timeout_seconds=5)
        try:
            stock.create_producer(f"persistent://public/default/{prefix}-{broker.port}")
        except pulsar.PulsarException:
            return False
        finally:
            stock.close()
        return True

    def all_may(prefix: str, wanted: bool) -> bool:
        return all(may_create(one, prefix) is wanted for one in cluster.alive)

    for number, asked in enumerate(cluster.alive):
        rest(asked, "POST", f"{configuration}/broker.auto_create_topics/false")
        cluster.until(partial(all_may, f"no-{number}", False), "topics are created somewhere")
        for one in cluster.alive:
            assert rest(one, "GET", f"{configuration}/values") == {"broker.auto_create_topics": "false"}
            assert rest(one, "GET", f"{configuration}/runtime")["broker.auto_create_topics"] == "false"
        if number == 0:
            asked.restart()
            cluster.wait_settled()
            assert not may_create(asked, "after-restart")
        rest(cluster.alive[number - 1], "DELETE", f"{configuration}/broker.auto_create_topics")
        cluster.until(partial(all_may, f"yes-{number}", True), "topics are not created somewhere")


def test_unacknowledged_limit_changed_at_one_broker_holds_for_clients_of_the_others(
    cluster: ClusterProcesses, client: pulsar.Client
) -> None:
    setting = "/admin/v2/brokers/configuration/maxUnackedMessagesPerConsumer"
    topics = cluster.topics_of_each(prefix="unacked-")
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Shared) for topic in topics]
    rest(cluster.alive[0], "POST", f"{setting}/3")

    def is_changed(broker: BrokerProcess) -> bool:
        values = rest(broker, "GET", "/admin/v2/brokers/configuration/values")
        return bool(values == {"broker.unacked_per_consumer_max": "3"})

    try:
        for topic, consumer in zip(topics, consumers, strict=True):
            producer = client.create_producer(topic, batching_enabled=False)
            owner = cluster.owner(topic)
            cluster.until(partial(is_changed, owner), "the setting is not in force")
            for number in range(10):
                producer.send(str(number).encode())
            received = [consumer.receive(10_000) for _ in range(3)]
            with pytest.raises(pulsar.Timeout):
                consumer.receive(300)
            for message in received:
                consumer.acknowledge(message)
            consumer.receive(10_000)
    finally:
        rest(cluster.alive[1], "DELETE", setting)
    for consumer in consumers:
        for _ in range(6):  # without acknowledging: the limit is gone
            consumer.receive(10_000)
