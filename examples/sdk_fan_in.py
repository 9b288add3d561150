"""Fan-in with asyncio: many sources, one consumer over several topics, every source in its own order.

Three sensors write to three topics at once; one queue consumer reads them all and adds up.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections import Counter
from dataclasses import dataclass

import anabranch

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
READINGS = 200


@dataclass
class Reading:
    sensor: str
    number: int
    celsius: float


async def measure(client: anabranch.Client, topic: str, sensor: str) -> None:
    async with client.producer(topic, schema=Reading, compression="zstd") as producer:
        for number in range(READINGS):
            producer.send_nowait(Reading(sensor, number, 20 + number % 7), key=sensor)
        # Leaving waits until everything is stored.


async def collect(consumer: anabranch.QueueConsumer, count: int) -> dict[str, list[int]]:
    seen: dict[str, list[int]] = {}
    for _ in range(count):
        message = await consumer.receive(timeout=20)
        assert message is not None, "the sensors went silent"
        reading = message.value
        seen.setdefault(reading.sensor, []).append(reading.number)
        await consumer.ack(message)
    return seen


async def main() -> None:
    run = uuid.uuid4().hex[:8]
    topics = {f"sensor-{n}": f"persistent://public/default/readings-{run}-{n}" for n in range(3)}
    async with (
        anabranch.connect(SERVICE_URL) as client,
        client.queue_consumer(list(topics.values()), subscription="sum", start="earliest", schema=Reading) as consumer,
    ):
        async with asyncio.TaskGroup() as tasks:
            for sensor, topic in topics.items():
                tasks.create_task(measure(client, topic, sensor))
            collecting = tasks.create_task(collect(consumer, READINGS * len(topics)))
        seen = collecting.result()
    print("readings:", dict(Counter({sensor: len(numbers) for sensor, numbers in seen.items()})))
    in_order = all(numbers == list(range(READINGS)) for numbers in seen.values())
    print("every sensor in its own order:", in_order)
    sys.exit(0 if in_order and len(seen) == len(topics) else 1)


if __name__ == "__main__":
    asyncio.run(main())
