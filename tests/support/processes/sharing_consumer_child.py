"""A process with a stream consumer that may share segments. Speaks in lines on stdout.

Run as `python -m tests.support.processes.sharing_consumer_child URL TOPIC SUBSCRIPTION NAME`: prints `NANOSECONDS TEXT`
for each message, when it is received and before it is acknowledged. The clock is that of the machine, so lines of
several processes can be put in order.
"""

from __future__ import annotations

import asyncio
import sys
import time

import anabranch
from anabranch import Backoff, ConnectionPolicy


async def run(url: str, topic: str, subscription: str, name: str) -> None:
    quick = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
    async with (
        anabranch.connect(url, connection=quick) as client,
        client.stream_consumer(
            topic, subscription=subscription, name=name, start="earliest", fan_out="auto", prefetch=20
        ) as consumer,
    ):
        async for message in consumer:
            print(f"{time.monotonic_ns()} {message.data.decode()}", flush=True)
            await asyncio.sleep(0.001)  # the work of an application
            await consumer.ack_cumulative(message)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:5]))
