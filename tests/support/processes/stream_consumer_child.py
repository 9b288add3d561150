"""A process with a stream consumer, for tests that stop and resume it. Speaks in lines on stdout.

Run as `python -m tests.support.processes.stream_consumer_child URL TOPIC SUBSCRIPTION NAME COUNT`: prints `received
TEXT` for COUNT messages, waits for a line on standard input, acknowledges all that it
received, prints `acknowledged`, and whatever comes then.
"""

from __future__ import annotations

import asyncio
import sys

import anabranch
from anabranch import Backoff, ConnectionPolicy


async def run(url: str, topic: str, subscription: str, name: str, count: int) -> None:
    quick = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
    async with (
        anabranch.connect(url, connection=quick) as client,
        client.stream_consumer(topic, subscription=subscription, name=name, start="earliest") as consumer,
    ):
        last = None
        for _ in range(count):
            last = await consumer.receive()
            assert last is not None
            print(f"received {last.data.decode()}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        assert last is not None
        await consumer.ack_cumulative(last)
        print("acknowledged", flush=True)
        async for message in consumer:
            print(f"received {message.data.decode()}", flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])))
