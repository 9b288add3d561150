"""Readers and writers of Spark tasks on regular topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.admin import blocking
from anabranch.model.position import Position
from anabranch.protocol.managed_clients import is_managed
from anabranch.spark.client.access import Access
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.spark.client.entry_fetcher import EntryBuffer
from tests.integration.spark.test_topic_writer import batches, outlet
from tests.support.spark.scalable_topics import ScalableBroker

TOPIC = "persistent://public/default/orders"


@pytest.fixture
def broker() -> Iterator[ScalableBroker]:
    with ScalableBroker() as made:
        yield made


def test_readers_and_writers_say_that_they_follow_a_migration(broker: ScalableBroker) -> None:
    cluster = ClusterClient(Access.of(broker.service_url, {}, 30_000))
    with blocking.connect(broker.http_url) as admin:
        admin.topics.create(TOPIC)
        writer = outlet(cluster, TOPIC, 1, is_exact=False)
        writer.send(batches(1)[0])
        writer.finish()
        reader = EntryBuffer(Position(0, 0), Position(1 << 40, 0))
        cluster.attach(TOPIC, reader).result(30)
        stats = admin.topics.stats(TOPIC)
        consumers = [one for sub in stats["subscriptions"].values() for one in sub["consumers"]]
        found = [one["metadata"] for one in [*stats["publishers"], *consumers]]
        assert len(found) == 2 and all(map(is_managed, found)), found
        cluster.detach(reader)
        writer.close()
    cluster.close()
