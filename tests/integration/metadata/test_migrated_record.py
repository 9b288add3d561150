"""The records of a topic with 1,024 partitions, while it is migrated and after it, on stores with a limit of values."""

from __future__ import annotations

import pytest

from anabranch.controller.records.topic_record import MigratedFrom, MigrationOptions, committed, migration_planned
from anabranch.controller.records.topic_record_codec import decode_record, encode_record
from anabranch.metadata.interface import ABSENT
from anabranch.metadata.open import open_store
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.routing import MOD_N
from anabranch.model.segment import Seal
from anabranch.runtime.clock import SystemClock
from tests.support.processes.scalable_cluster import store_url

BYTES_MAX = 512 * 1024
KEY = scalable_topic_key(TopicName.parse("topic://public/default/orders"))


@pytest.mark.parametrize("store", ["zk", "etcd"])
async def test_records_of_1024_partitions_are_stored(store: str) -> None:
    origin = MigratedFrom("persistent://public/default/orders", 1_024, 1_700_000_000_000)
    planned = migration_planned(origin, "op", incarnation=9, epoch=0, routing=MOD_N, options=MigrationOptions())
    seals = {one: Seal(1_700_000_000_000, Position(90_000, 10_000)) for one in planned.layout.segments}
    done = committed(planned, "op", seals, now_ms=1_700_000_000_000)
    url = store_url(store)
    assert url is not None
    async with open_store(url, SystemClock(), 8_000) as connected:
        version = await connected.put(KEY, encode_record(planned), expected=ABSENT)
        await connected.put(KEY, encode_record(done), expected=version)
        found = await connected.get(KEY)
        assert found is not None
        assert len(found.value) < BYTES_MAX
        assert decode_record(found.value) == done
        await connected.delete(KEY, expected=found.version)
