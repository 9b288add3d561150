"""Pulsar's V5 client (Java, 5.0.0-M1) on Anabranch brokers: all kinds of consumers during splits and merges.

Two brokers, so that segments and controllers are on both. Around a split, the Java client sends pipelined messages of
one key out of order, because its retries are independent of each other; order is checked on messages sent one by one.
It also drops a message now and then, which its application then sends again (`V5Driver.pipe`).
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from anabranch.admin.client import AdminClient
from anabranch.admin.paths import scalable_path
from tests.services.available import pulsar_v5
from tests.services.pulsar_v5 import Keyed, V5Client, V5Error
from tests.support.processes.cluster import ClusterProcesses
from tests.support.processes.scalable_cluster import Brokers, configured_brokers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pulsar_v5")]

KEYS = 20


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("interop"), "sqlite", ()) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(brokers: Brokers) -> ClusterProcesses:
    return brokers.processes


@pytest.fixture(scope="module")
def admin(cluster: ClusterProcesses) -> Iterator[AdminClient]:
    with AdminClient(cluster.alive[0].http_url) as client:
        yield client


@pytest.fixture(scope="module")
def clients(cluster: ClusterProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    started = Clients(lambda: pulsar_v5(cluster.service_url, tmp_path_factory.mktemp("java")))
    yield started
    started.close()


@pytest.fixture
def java(clients: Clients) -> V5Client:
    return clients.living()


class Clients:
    """One JVM for all tests, as long as it answers: one test's hang is not the next one's."""

    def __init__(self, start: Callable[[], V5Client]) -> None:
        self._start = start
        self._client: V5Client | None = None

    def living(self) -> V5Client:
        if self._client is None or not self._client.alive:
            self.close()
            self._client = self._start()
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class Topic:
    """A scalable topic of one test."""

    def __init__(self, admin: AdminClient, segments: int) -> None:
        self.name = f"topic://public/default/java-{uuid.uuid4().hex[:8]}"
        self._admin = admin
        self._path = f"/admin/v2/scalable/{scalable_path(self.name)}"
        admin.put(self._path, query={"numInitialSegments": segments})

    def active(self) -> list[int]:
        segments = self._admin.get(self._path)["segments"]
        found = [(one["hashRange"]["start"], int(key)) for key, one in segments.items() if one["state"] == "ACTIVE"]
        return [key for _, key in sorted(found)]

    def split(self, segment: int, into: int = 2) -> None:
        self._admin.post(f"{self._path}/split/{segment}", query={"into": into})

    def seek(self, subscription: str, publish_ms: int) -> None:
        self._admin.post(f"{self._path}/subscriptions/{subscription}/seek", query={"timestamp": publish_ms})

    def merge(self, *segments: int) -> None:
        self._admin.post(f"{self._path}/merge", query={"segments": ",".join(map(str, segments))})


def messages(first: int, count: int) -> list[Keyed]:
    return [(f"key-{number % KEYS}", f"{number:06d}") for number in range(first, first + count)]


def by_key(found: list[Keyed]) -> dict[str, list[str]]:
    values = defaultdict(list)
    for key, value in found:
        values[key].append(value)
    return dict(values)


@pytest.mark.conformance("scalable topics: stream consumer, splits and merges", client="Java V5")
def test_stream_consumer_reads_every_key_in_order_through_splits_and_a_merge(
    admin: AdminClient, java: V5Client
) -> None:
    topic = Topic(admin, 1)
    java.producer("p1", topic.name)
    java.stream("s1", topic.name, "audit", "one")
    java.send("p1", messages(0, 100))
    topic.split(topic.active()[0])
    java.send("p1", messages(100, 100))
    topic.split(topic.active()[1], into=3)
    java.send("p1", messages(200, 100))
    topic.merge(*topic.active()[:2])
    java.send("p1", messages(300, 100))
    assert by_key(java.take("s1", 400)) == by_key(messages(0, 400))
    java.end("s1")
    java.end("p1")


@pytest.mark.conformance("scalable topics: queue consumer", client="Java V5")
def test_queue_consumer_gets_everything_once(admin: AdminClient, java: V5Client) -> None:
    topic = Topic(admin, 2)
    java.queue("q1", topic.name, "work")
    java.producer("p2", topic.name)
    java.send("p2", messages(0, 100))
    topic.split(topic.active()[0], into=4)
    java.send("p2", messages(100, 100))
    topic.merge(*topic.active()[1:3])
    java.send("p2", messages(200, 100))
    assert sorted(java.take("q1", 300)) == sorted(messages(0, 300))
    assert java.take("q1", 1, patience_ms=300) == []
    java.end("q1")
    java.end("p2")


@pytest.mark.conformance("scalable topics: checkpoint consumer", client="Java V5")
def test_checkpoint_consumer_resumes_after_a_split(admin: AdminClient, java: V5Client) -> None:
    topic = Topic(admin, 1)
    java.producer("p3", topic.name)
    java.send("p3", messages(0, 60))
    java.checkpoint("c1", topic.name)
    assert java.take("c1", 60) == messages(0, 60)
    saved = java.save("c1")
    java.end("c1")
    topic.split(topic.active()[0])
    java.send("p3", messages(60, 60))
    java.checkpoint("c2", topic.name, saved)
    assert sorted(java.take("c2", 60)) == sorted(messages(60, 60))
    assert java.take("c2", 1, patience_ms=300) == []
    java.end("c2")
    java.end("p3")


@pytest.mark.conformance("scalable topics: producer through splits", client="Java V5")
def test_pipelined_sends_survive_splits_without_loss(admin: AdminClient, java: V5Client) -> None:
    topic = Topic(admin, 1)
    java.producer("p4", topic.name)
    java.send("p4", messages(0, 1))
    for turn in range(3):
        java.begin_pipe("p4", messages(1 + turn * 500, 500))
        topic.split(topic.active()[turn])
        java.finish()
    java.queue("q2", topic.name, "all")
    found = java.take("q2", 1501)
    assert set(found) == set(messages(0, 1501))
    java.end("q2")
    java.end("p4")


@pytest.mark.conformance("scalable topics: consumers share segments", client="Java V5")
def test_two_stream_consumers_share_and_take_over(admin: AdminClient, java: V5Client) -> None:
    topic = Topic(admin, 4)
    java.producer("p5", topic.name)
    java.stream("s2", topic.name, "shared", "two")
    java.stream("s3", topic.name, "shared", "three")
    java.send("p5", messages(0, 200))
    # Both consumers' Java receive() run in one thread here: take what each has, until all has come.
    shares = {"s2": list[Keyed](), "s3": list[Keyed]()}
    until = time.monotonic() + 30
    while sum(map(len, shares.values())) < 200:
        assert time.monotonic() < until, {name: len(found) for name, found in shares.items()}
        for name, found in shares.items():
            found += java.take(name, 50, patience_ms=200)
    assert all(shares.values()), "both have segments"
    found = shares["s2"] + shares["s3"]
    assert by_key(found) == by_key(messages(0, 200))
    java.end("s3")
    java.send("p5", messages(200, 100))
    assert by_key(java.take("s2", 100, patience_ms=30_000)) == by_key(messages(200, 100))
    java.end("s2")
    java.end("p5")


def test_stream_starts_at_the_clients_position(admin: AdminClient, java: V5Client) -> None:
    """Its registration has no start; its first subscribe on a segment has."""
    topic = Topic(admin, 2)
    java.producer("p7", topic.name)
    java.send("p7", messages(0, 40))
    topic.split(topic.active()[0])
    java.stream("s7", topic.name, "from-the-start", "seven")
    assert by_key(java.take("s7", 40)) == by_key(messages(0, 40))
    java("stream", "s8", topic.name, "from-now-on", "eight", "latest")
    java.send("p7", messages(40, 40))
    assert by_key(java.take("s8", 40)) == by_key(messages(40, 40))
    for name in ("s7", "s8", "p7"):
        java.end(name)


@pytest.mark.conformance("scalable topics: seek", client="Java V5")
def test_operator_rewinds_with_a_connected_stream(admin: AdminClient, java: V5Client) -> None:
    """Everything is taken from the client and given again: it closes its readers, and is not taken for gone."""
    topic = Topic(admin, 2)
    java.producer("p9", topic.name)
    java.stream("s9", topic.name, "rewound", "nine")
    java.send("p9", messages(0, 40))
    topic.split(topic.active()[0])
    java.send("p9", messages(40, 40))
    assert by_key(java.take("s9", 80)) == by_key(messages(0, 80))
    for _ in range(3):
        topic.seek("rewound", 0)
        assert by_key(java.take("s9", 80)) == by_key(messages(0, 80))
    java.send("p9", messages(80, 20))
    assert by_key(java.take("s9", 20)) == by_key(messages(80, 20))
    for name in ("s9", "p9"):
        java.end(name)


def test_missing_topic(java: V5Client, admin: AdminClient) -> None:
    topic = Topic(admin, 1)
    admin.delete(f"/admin/v2/scalable/{scalable_path(topic.name)}", query={"force": True})
    names = admin.get("/admin/v2/scalable/public/default")
    assert topic.name not in names
    with pytest.raises(V5Error):
        java.producer("p6", "topic://public/nowhere/missing")


SCALED = {
    "enabled": True,
    "maxSegments": 2,
    "splitRateWindowSeconds": 5,
    "splitMsgRateInThreshold": 20,
    "mergeMsgRateInThreshold": 19,
    "splitCooldownSeconds": 0,
    "mergeCooldownSeconds": 0,
    "mergeWindowSeconds": 1,
}


@pytest.mark.conformance("scalable topics: automatic split and merge", client="Java V5")
def test_topic_scales_itself_under_load_of_the_client(admin: AdminClient, java: V5Client) -> None:
    """It splits while messages come, and merges when none do; every key stays in order."""
    topic = Topic(admin, 1)
    admin.post(f"/admin/v2/scalable/{scalable_path(topic.name)}/autoScalePolicy", SCALED)
    java.producer("p9", topic.name)
    java.stream("s9", topic.name, "audit", "nine")
    sent = 0

    def send_until_active(count: int, send: int) -> None:
        nonlocal sent
        until = time.monotonic() + 180
        while len(topic.active()) != count:
            assert time.monotonic() < until, f"{topic.active()} are active"
            if send:
                java.send("p9", messages(sent, send))
                sent += send
            else:
                time.sleep(0.2)  # a poll of the broker, bounded by the deadline

    send_until_active(2, 50)
    java.send("p9", messages(sent, 40))
    sent += 40
    send_until_active(1, 0)
    java.send("p9", messages(sent, 10))
    sent += 10
    assert by_key(java.take("s9", sent, patience_ms=30_000)) == by_key(messages(0, sent))
    java.end("s9")
    java.end("p9")


def test_leader_is_killed_in_the_automatic_changes_of_the_clients_topic(brokers: Brokers, java: V5Client) -> None:
    """In the split, after its parent is sealed, and in the merge, before it is committed. The application sends again
    what was refused, so messages may be stored twice; none is lost, and every key is read in order."""
    topic = f"java-{uuid.uuid4().hex[:8]}"
    name = f"topic://public/default/{topic}"
    brokers.insist("PUT", f"{topic}?numInitialSegments=1")
    brokers.ask("POST", f"{topic}/autoScalePolicy", SCALED)
    java.producer("p10", name)
    java.stream("s10", name, "audit", "ten")
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        until = time.monotonic() + 120
        while True:
            try:
                java.send("p10", messages(sent, count))
            except V5Error:
                assert time.monotonic() < until, "the client does not recover from the death of a broker"
                continue
            sent += count
            return

    def is_active(count: int) -> bool:
        states = [one["state"] for one in brokers.ask("GET", topic)["segments"].values()]
        return states.count("ACTIVE") == count

    brokers.die_at.write_text("after-seal")
    until = time.monotonic() + 120
    while len(brokers.processes.alive) == 2:
        assert time.monotonic() < until, "no leader died in a split"
        send(40)
    brokers.processes.revive()
    brokers.until(lambda: is_active(2), "the split was not finished")
    send(40)
    brokers.die_at.write_text("before-commit")
    brokers.processes.until(lambda: len(brokers.processes.alive) == 1, "no leader died in a merge", 120.0)
    brokers.processes.revive()
    brokers.until(lambda: is_active(1), "the merge was not finished")
    send(20)
    expected, found = by_key(messages(0, sent)), list[Keyed]()

    def first_of_each() -> dict[str, list[str]]:
        return {key: list(dict.fromkeys(values)) for key, values in by_key(found).items()}

    until = time.monotonic() + 120  # the client waits up to a minute before it asks for its assignment again
    while first_of_each() != expected and time.monotonic() < until:
        found += java.take("s10", 1_000, patience_ms=5_000)
    assert first_of_each() == expected
    java.end("s10")
    java.end("p10")
