"""Orders with keys through splits and a merge: every customer's orders stay in order while the topic changes shape.

A producer writes as fast as it is acknowledged; meanwhile an administrator splits segments and merges two again.
A stream consumer checks the order of every customer.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from dataclasses import dataclass

import anabranch
import anabranch.admin

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
ADMIN_URL = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("ANABRANCH_ADMIN_URL", "http://localhost:8080")
TOPIC = f"topic://public/default/orders-{uuid.uuid4().hex[:8]}"
CUSTOMERS, ORDERS = 20, 4000


@dataclass
class Order:
    customer: str
    number: int  # 0, 1, 2 … of this customer


async def sell(producer: anabranch.Producer, reshaped: asyncio.Event) -> int:
    """Returns how many orders there are: enough, and some after the last change of shape."""
    sent = 0
    while sent < ORDERS or not reshaped.is_set():
        order = Order(f"customer-{sent % CUSTOMERS}", sent // CUSTOMERS)
        producer.send_nowait(order, key=order.customer)  # its place is fixed by this call
        sent += 1
        if sent % 200 == 0:
            await producer.flush()  # a split is no error, and no reason to wait
    return sent


async def reshape(admin: anabranch.admin.Admin, reshaped: asyncio.Event) -> None:
    topics = admin.scalable_topics
    try:
        low, high = await topics.split(TOPIC, 0)  # ids of the new segments
        _, middle = await topics.split(TOPIC, low)
        await topics.merge(TOPIC, [middle, high])  # neighbours on the ring
    finally:
        reshaped.set()
    layout = await topics.metadata(TOPIC)
    active = [key for key, one in layout["segments"].items() if one["state"] == "ACTIVE"]
    print(f"segments: {', '.join(sorted(layout['segments']))}; of these are active: {', '.join(sorted(active))}")


async def check(consumer: anabranch.StreamConsumer, selling: asyncio.Task[int]) -> dict[str, int]:
    """Counts every customer's orders; stops at the first one out of order."""
    seen: dict[str, int] = {}
    while not selling.done() or sum(seen.values()) < selling.result():
        for message in await consumer.receive_many(500, timeout=0.2):
            order = message.value
            assert order.number == seen.get(order.customer, 0), f"{order} is out of order"
            seen[order.customer] = order.number + 1
            last = message
        if seen:
            await consumer.ack_cumulative(last)
    return seen


async def main() -> None:
    async with anabranch.connect(SERVICE_URL) as client, anabranch.admin.connect(ADMIN_URL) as admin:
        await admin.scalable_topics.create(TOPIC)
        async with (
            asyncio.timeout(60),
            client.stream_consumer(TOPIC, subscription="audit", start="earliest", schema=Order) as consumer,
            client.producer(TOPIC, schema=Order) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            reshaped = asyncio.Event()
            selling = tasks.create_task(sell(producer, reshaped))
            tasks.create_task(reshape(admin, reshaped))
            checking = tasks.create_task(check(consumer, selling))
        seen = checking.result()
    print(f"{sum(seen.values())} orders of {len(seen)} customers, each in its order")


if __name__ == "__main__":
    asyncio.run(main())
