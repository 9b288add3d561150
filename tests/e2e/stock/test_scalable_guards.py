"""A scalable topic's name is taken: the stock client hears that there is no such topic, and makes none beside it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.records.topic_record_codec import encode_record
from anabranch.metadata.interface import ABSENT
from anabranch.metadata.open import open_store
from anabranch.model.layout import Layout
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.runtime.clock import SystemClock
from tests.support.processes.broker_process import BrokerProcess


@pytest.fixture
def taken(broker: BrokerProcess) -> str:
    """The regular spelling of a scalable topic that exists."""
    name = TopicName.parse(f"topic://public/default/taken-{uuid.uuid4().hex[:12]}")

    async def create() -> None:
        async with open_store(f"sqlite:///{broker.data / 'metadata'}", SystemClock(), 8_000) as store:
            record = encode_record(TopicRecord(Layout.initial(1, now_ms=1), incarnation=1))
            await store.put(scalable_topic_key(name), record, expected=ABSENT)

    asyncio.run(create())
    return f"persistent://public/default/{name.local}"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda client, name: client.create_producer(name),
        lambda client, name: client.subscribe(name, "s"),
        lambda client, name: client.create_reader(name, pulsar.MessageId.earliest),
        lambda client, name: client.create_producer(f"{name}-partition-0"),
    ],
    ids=["producer", "consumer", "reader", "partition"],
)
def test_stock_client_is_refused_on_a_scalable_topic(
    client: pulsar.Client, taken: str, attempt: Callable[[pulsar.Client, str], Any]
) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        attempt(client, taken)
