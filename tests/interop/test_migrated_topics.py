"""Stock clients on a topic before and after its migration: then an error with the new name at once, on any broker.

"At once" means that no client repeats the request until a timeout of its own: the Go and Java clients would take 30
seconds, the Python client 15 here.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pulsar
import pytest

from tests.services.available import pulsar_go, pulsar_java
from tests.services.pulsar_java import JavaClient
from tests.support.processes.cluster import ClusterProcesses, RestRefused, rest
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("migrated-topics")]

NAMESPACE = "public/default"
AT_ONCE_SECONDS = 12.0
"""Less than every client's own timeout, with room for a slow machine and the start of a process."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("migrated"), 2) as found:
        yield found


@pytest.fixture(scope="module")
def java(cluster: ClusterProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    client = pulsar_java(cluster.service_url, tmp_path_factory.mktemp("log"))
    yield client
    client.close()


Attach = Callable[[str], str]
"""Publishes to the topic; the client's complaint, empty if there is none."""


def migrated(cluster: ClusterProcesses, partitions: int, attach: Attach) -> str:
    """A topic on which the client has published, and which is a scalable one now."""
    name = f"stock-{uuid.uuid4().hex[:8]}"
    path = f"/admin/v2/persistent/{NAMESPACE}/{name}"
    rest(cluster.alive[0], "PUT", f"{path}/partitions" if partitions else path, partitions or None)
    assert attach(f"persistent://{NAMESPACE}/{name}") == ""
    rest(cluster.alive[0], "POST", f"/admin/v2/scalable-topics/{NAMESPACE}/{name}/migrate-to-scalable")
    return name


def check_refused(name: str, attach: Attach, *, shows_text: bool = True) -> None:
    """`shows_text`: the client shows the text of the error, and not only its number."""
    began = time.monotonic()
    complaint = attach(f"persistent://{NAMESPACE}/{name}")
    seconds = time.monotonic() - began
    text = f"TopicMigrated: persistent://{NAMESPACE}/{name} is now topic://{NAMESPACE}/{name}"
    assert (text if shows_text else "TopicNotFound") in complaint, complaint
    assert seconds < AT_ONCE_SECONDS


@pytest.mark.parametrize("partitions", [0, 2])
def test_go_client(cluster: ClusterProcesses, partitions: int) -> None:
    def attach(url: str) -> Attach:
        def publish(topic: str) -> str:
            process = pulsar_go(url).start("schema", topic, "bytes")
            _, complaint = process.communicate(timeout=90)
            return "" if process.returncode == 0 else complaint

        return publish

    name = migrated(cluster, partitions, attach(cluster.service_url))
    for broker in cluster.alive:  # it shows no text of an error of partition metadata
        check_refused(name, attach(broker.service_url), shows_text=not partitions)


@pytest.mark.parametrize("partitions", [0, 2])
def test_java_client(cluster: ClusterProcesses, java: JavaClient, partitions: int) -> None:
    def publish(topic: str) -> str:
        try:
            assert java("bytes", topic) == ["text"]
        except AssertionError as error:
            return str(error)
        return ""

    name = migrated(cluster, partitions, publish)
    check_refused(name, publish)


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("role", ["producer", "consumer", "reader"])
def test_python_client(
    cluster: ClusterProcesses, partitions: int, role: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its exceptions have no text: the name is in its log, which shows none if a consumer was refused by a topic that
    was not partitioned."""

    def attach(url: str) -> Attach:
        def use(topic: str) -> str:
            client = new_client(url)
            try:
                if role == "producer":
                    client.create_producer(topic).close()
                elif role == "consumer":
                    client.subscribe(topic, "s").close()
                else:
                    client.create_reader(topic, pulsar.MessageId.earliest).close()
            except pulsar.PulsarException as error:
                return f"{error!r} {''.join(capfd.readouterr())}"
            finally:
                client.close()
            return ""

        return use

    name = migrated(cluster, partitions, attach(cluster.service_url))
    for broker in cluster.alive:
        check_refused(name, attach(broker.service_url), shows_text=bool(partitions) or role == "producer")


def test_rest_of_the_old_name_is_gone(cluster: ClusterProcesses) -> None:
    for partitions in (0, 2):
        name = migrated(cluster, partitions, lambda _: "")
        path = f"/admin/v2/persistent/{NAMESPACE}/{name}"
        calls = [
            ("GET", f"{path}/stats"),
            ("GET", f"{path}/partitions"),
            ("GET", f"{path}/subscriptions"),
            ("PUT", f"{path}/subscription/late"),
            ("POST", f"{path}/partitions"),
            ("DELETE", f"{path}/partitions" if partitions else path),
            ("GET", f"/lookup/v2/topic/persistent/{NAMESPACE}/{name}"),
            ("POST", f"{path}/terminate"),
        ]
        for broker in cluster.alive:
            found = {}
            for method, one in calls:
                try:
                    found[method, one] = rest(broker, method, one, 5 if one.endswith("/partitions") else None)
                except RestRefused as refused:
                    found[method, one] = refused.status, f"topic://{NAMESPACE}/{name}" in str(refused)
            wrong = {call: answer for call, answer in found.items() if answer != (410, True)}
            assert wrong == {}
