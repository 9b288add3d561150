"""Who keeps a name that a regular and a scalable topic were created with at once."""

from __future__ import annotations

import json

import pytest

from anabranch.broker.catalog.name_conflicts import resolve_for_regular
from anabranch.metadata.interface import ABSENT
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.errors import AlreadyExists
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.runtime.clock import SystemClock

NAME = TopicName.parse("persistent://public/default/orders")
KEY = scalable_topic_key(NAME)


async def resolved(record: dict[str, object]) -> bool:
    """True if the regular topic keeps the name."""
    async with MemoryStore(SystemClock()) as store:
        await store.put(KEY, json.dumps(record).encode(), expected=ABSENT)
        try:
            await resolve_for_regular(store, NAME)
        except AlreadyExists:
            assert await store.get(KEY) is not None
            return False
        assert await store.get(KEY) is None
        return True


@pytest.mark.parametrize(
    ("record", "is_regular"),
    [
        ({"leaderTerm": 0, "segments": {}}, True),
        ({"leaderTerm": 1, "segments": {}}, False),
        ({"leaderTerm": 0, "segments": {}, "migratedFrom": {"topic": str(NAME), "partitions": 0}}, False),
        ({"leaderTerm": 0, "segments": {}, "properties": {"migratedFrom": "elsewhere"}}, True),
    ],
    ids=["never led", "led", "migrated", "a property of that name"],
)
async def test_regular_topic_keeps_a_name_whose_scalable_topic_was_never_led(
    record: dict[str, object], is_regular: bool
) -> None:
    assert await resolved(record) is is_regular
