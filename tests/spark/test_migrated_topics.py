"""A Spark stream on a `persistent://` name whose topic is migrated between two runs of its checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin import blocking
from anabranch.broker.admin.partition_hashes import PartitionHashes
from anabranch.broker.admin.topic_migration import TopicMigrationAdmin
from anabranch.node.node import Node
from anabranch.testing.broker import _node_settings
from tests.support.spark.scalable_topics import ScalableBroker
from tests.support.spark.session import Traffic, check_complete, check_key_order, finish

pytestmark = pytest.mark.slow
DEADLINE = 60.0


class MigratingBroker(ScalableBroker):
    """Also migrates a topic; on the broker's thread."""

    async def _serve(self, ready: Future[tuple[str, str]]) -> None:
        assert self._temporary is not None
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with Node(_node_settings(Path(self._temporary.name), self._overrides)) as node:
            self._migrations = TopicMigrationAdmin(lambda: node.services, PartitionHashes(lambda: node.services))
            ready.set_result((node.service_url, node.http_url))
            await self._stop.wait()

    def migrate(self, topic: str) -> None:
        assert self._loop is not None
        migrating = self._migrations.migrate(topic, force=False, kinds={})
        asyncio.run_coroutine_threadsafe(migrating, self._loop).result(DEADLINE)


@pytest.fixture(scope="module")
def broker(spark: Any) -> Iterator[MigratingBroker]:
    with MigratingBroker() as made:
        yield made


@pytest.mark.parametrize("partitions", [0, 3])
def test_stream_goes_on_exactly_once_when_its_topic_was_migrated(
    spark: Any, broker: MigratingBroker, tmp_path: Path, partitions: int
) -> None:
    topic = f"persistent://public/default/migrated-{partitions}"
    with blocking.connect(broker.http_url) as admin:
        admin.topics.create(topic, partitions=partitions)
    traffic = Traffic(broker.service_url, topic)
    seen: list[Any] = []

    def run() -> None:
        rows = spark.readStream.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic)
        rows = rows.option("startingOffsets", "earliest").option("maxRowsPerTrigger", "100").load()
        made = rows.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        finish(made.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())

    traffic.publish(20)
    run()
    assert len(seen) == sum(traffic.sent.values())
    traffic.publish(20)  # not read before the migration
    broker.migrate(topic)
    traffic.publish(20)
    run()
    check_complete(seen, traffic.sent)
    check_key_order(seen)
    run()
    check_complete(seen, traffic.sent)
