"""Moving from pulsar-client to the SDK, side by side: the same job with both, on the same topic and subscription.

The two can be mixed while you move: names, keys, properties, schemas, compression and subscriptions are the same on the
wire. docs/guides/coming-from-pulsar-client.md has the table of names. When no application uses pulsar-client any more,
the topic itself is migrated to a scalable topic, under load (docs/operations/topic-migration.md).
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from dataclasses import dataclass

import pulsar
import pulsar.schema

import anabranch
import anabranch.admin
from anabranch.schema import Json

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
ADMIN_URL = os.environ.get("ANABRANCH_ADMIN_URL", "http://localhost:8080")
NAME = f"public/default/migration-{uuid.uuid4().hex[:8]}"
TOPIC = f"persistent://{NAME}"


# -- before: pulsar-client


def before() -> list[tuple[str, int]]:
    class Order(pulsar.schema.Record):  # type: ignore[misc]  # the wheel has no types
        customer = pulsar.schema.String(required=True)
        cents = pulsar.schema.Long(required=True)

    client = pulsar.Client(SERVICE_URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    schema = pulsar.schema.JsonSchema(Order)
    consumer = client.subscribe(TOPIC, "billing", schema=schema, consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, schema=schema, compression_type=pulsar.CompressionType.ZSTD)
    for number in range(5):
        producer.send(Order(customer="ann", cents=number), partition_key="ann")
    found = []
    for _ in range(5):
        message = consumer.receive(timeout_millis=10_000)
        found.append((message.value().customer, message.value().cents))
        consumer.acknowledge(message)
    client.close()
    return found


# -- after: the SDK, without await


@dataclass
class Order:
    """Its name and fields are those of the schema that is registered already."""

    customer: str
    cents: int


def after_blocking() -> list[tuple[str, int]]:
    with (
        anabranch.blocking.connect(SERVICE_URL) as client,
        client.queue_consumer(TOPIC, subscription="billing", schema=Json(Order)) as consumer,
        client.producer(TOPIC, schema=Json(Order), compression="zstd") as producer,
    ):
        for number in range(5):
            producer.send(Order("ann", number), key="ann")
        found = []
        for _ in range(5):
            message = consumer.receive(timeout=10)
            assert message is not None  # None: nothing came in time; there is no exception to catch
            found.append((message.value.customer, message.value.cents))
            consumer.ack(message)
        return found


# -- after: the same with asyncio


async def after() -> list[tuple[str, int]]:
    async with (
        anabranch.connect(SERVICE_URL) as client,
        client.queue_consumer(TOPIC, subscription="billing", schema=Json(Order)) as consumer,
        client.producer(TOPIC, schema=Json(Order), compression="zstd") as producer,
    ):
        for number in range(5):
            producer.send_nowait(Order("ann", number), key="ann")  # in order, without waiting for each
        found = []
        for _ in range(5):
            message = await consumer.receive(timeout=10)
            assert message is not None
            found.append((message.value.customer, message.value.cents))
            await consumer.ack(message)
        return found


# -- then: the topic becomes a scalable one while both sides go on


async def migrated() -> list[tuple[str, int]]:
    async with (
        anabranch.admin.connect(ADMIN_URL) as admin,
        anabranch.connect(SERVICE_URL) as client,
        client.queue_consumer(TOPIC, subscription="billing", schema=Json(Order)) as consumer,
        client.producer(TOPIC, schema=Json(Order), compression="zstd") as producer,
    ):
        plan = await admin.scalable_topics.check_migration(f"topic://{NAME}")
        assert plan["possible"], plan["blockers"]  # an application that still uses pulsar-client would be named here
        producer.send_nowait(Order("ann", 0), key="ann")
        await admin.scalable_topics.migrate(f"topic://{NAME}")
        for number in range(1, 5):
            producer.send_nowait(Order("ann", number), key="ann")
        found = []
        for _ in range(5):
            message = await consumer.receive(timeout=10)
            assert message is not None
            found.append((message.value.customer, message.value.cents))
            await consumer.ack(message)
    client = pulsar.Client(SERVICE_URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        client.create_producer(TOPIC)
    except pulsar.TopicNotFound:
        return found  # at once: "TopicMigrated: persistent://… is now topic://…"
    finally:
        client.close()
    raise AssertionError("pulsar-client cannot use a scalable topic")


if __name__ == "__main__":
    wanted = [("ann", number) for number in range(5)]
    for name, found in (
        ("pulsar-client", before()),
        ("anabranch, blocking", after_blocking()),
        ("anabranch, asyncio", asyncio.run(after())),
        ("migrated", asyncio.run(migrated())),
    ):
        print(f"{name:20} {found}")
        if found != wanted:
            sys.exit(1)
