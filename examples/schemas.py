"""Schema evolution: the new class reads old messages, and an incompatible schema is refused.

Needs the Avro part of the client: pip install 'pulsar-client[avro]'.
"""

from __future__ import annotations

import os
import sys
import uuid
from typing import Any

import pulsar
from pulsar.schema import AvroSchema, Integer, Record, String

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")


def first_release() -> Any:
    class Order(Record):  # type: ignore[misc]  # the client has no types
        name = String(required=True)

    return Order


def second_release() -> Any:
    class Order(Record):  # type: ignore[misc]  # the client has no types
        name = String(required=True)
        pieces = Integer(required=True, default=1, required_default=True)  # old messages have one

    return Order


def mistake() -> Any:
    class Order(Record):  # type: ignore[misc]  # the client has no types
        name = Integer(required=True)

    return Order


def main() -> None:
    topic = f"persistent://public/default/orders-{uuid.uuid4().hex[:8]}"
    client = pulsar.Client(SERVICE_URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    old, new = first_release(), second_release()
    client.create_producer(topic, schema=AvroSchema(old)).send(old(name="tea"))
    client.create_producer(topic, schema=AvroSchema(new)).send(new(name="cake", pieces=3))

    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(new))
    found = []
    for _ in range(2):
        message = reader.read_next(timeout_millis=10_000)
        order = message.value()
        found.append((order.name, order.pieces))
        version = int.from_bytes(message.schema_version().encode("latin-1"), "big")
        print(f"{order.name}: {order.pieces} (written with version {version} of the schema)")

    refused = False
    try:
        client.create_producer(topic, schema=AvroSchema(mistake()))
    except pulsar.IncompatibleSchema:
        refused = True
        print("a name that is a number: refused")
    client.close()
    sys.exit(0 if refused and found == [("tea", 1), ("cake", 3)] else 1)


if __name__ == "__main__":
    main()
