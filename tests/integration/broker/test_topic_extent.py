"""TOPIC_EXTENT over the wire: stored range, limits, effect of retention, and the incarnation of the topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch import Batching, blocking
from anabranch.admin import blocking as admin
from anabranch.client.errors import TopicNotFound
from anabranch.model.position import EARLIEST, Position
from anabranch.protocol.commands import message_id
from anabranch.spark.client.access import Access
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        settings={
            "broker.deduplication": True,
            "topics.retention_ms": -1,
            "topics.retention_bytes": -1,
        }
    ) as made:
        yield made


@pytest.fixture
def cluster(broker: Broker) -> Iterator[ClusterClient]:
    made = ClusterClient(Access.of(broker.service_url, {}, 20_000))
    yield made
    made.close()


def publish(broker: Broker, topic: str, batches: list[int], size: int = 50) -> None:
    """One entry per batch of so many messages."""
    whole = Batching(max_delay=60)  # only `flush` ends a batch
    with blocking.connect(broker.service_url) as client, client.producer(topic, batching=whole) as producer:
        for count in batches:
            for _ in range(count):
                producer.send_nowait(b"x" * size)
            producer.flush(30.0)


def test_an_empty_topic(broker: Broker, cluster: ClusterClient) -> None:
    topic = "persistent://public/default/empty"
    with blocking.connect(broker.service_url) as client, client.producer(topic):
        found = cluster.extents({topic: {"messages_max": 10, "publish_time": 1}})[topic]
    assert (found.end, found.messages, found.ledgers, found.trimmed_to) == (Position(0, 0), 0, (), EARLIEST)
    assert found.upto == found.at_time == found.first
    assert found.deduplicates


def test_limits_fall_on_entries_over_ledgers(broker: Broker, cluster: ClusterClient) -> None:
    topic = "persistent://public/default/limits"
    publish(broker, topic, [3, 1, 20])
    with admin.connect(broker.http_url) as rest:
        rest.topics.unload(topic)  # it goes on in another ledger
    publish(broker, topic, [5, 30, 2, 2])
    whole = cluster.extents({topic: {}})[topic]
    assert whole.messages == 63
    assert len(whole.ledgers) == 2
    places = [Position(one.ledger, entry) for one in whole.ledgers for entry in range(one.entries)]
    sums = [3, 4, 24, 29, 59, 61, 63]
    for limit in range(70):
        upto = cluster.extents({topic: {"messages_max": limit}})[topic].upto
        fit = [at for at, total in zip(places, sums, strict=True) if total <= limit]
        expected = Position(fit[-1].ledger, fit[-1].entry + 1) if fit else whole.first
        assert upto == expected, limit
    behind = cluster.extents({topic: {"start": message_id(places[3]), "messages_max": 37}})[topic]
    assert (behind.messages, behind.upto) == (39, Position(places[5].ledger, places[5].entry + 1))
    assert 0 < behind.bytes < whole.bytes


def test_a_topic_created_again_has_another_incarnation(broker: Broker, cluster: ClusterClient) -> None:
    topic = "persistent://public/default/again"
    publish(broker, topic, [1])
    before = cluster.extents({topic: {}})[topic]
    with admin.connect(broker.http_url) as rest:
        rest.topics.delete(topic, force=True)
    with pytest.raises(TopicNotFound):
        cluster.extents({topic: {}})
    publish(broker, topic, [1])
    after = cluster.extents({topic: {}})[topic]
    assert after.incarnation != before.incarnation
    assert after.first > before.end
