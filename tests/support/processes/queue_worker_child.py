"""A process with a queue consumer, for tests that kill it. Speaks in lines on stdout.

Run as `python -m tests.support.processes.queue_worker_child URL TOPIC SUBSCRIPTION`: prints `ready`, then `received
NUMBER COUNT` for each message (COUNT is its redelivery count) and `done NUMBER` when it acknowledges it. It fails
each message whose number can be divided by 20 at its first attempt, and nacks it. A line on standard input ends it.
"""

from __future__ import annotations

import asyncio
import sys

import anabranch
from anabranch import Backoff, ConnectionPolicy, QueueConsumer

FAILING = 20
GROUP = 20
WORK_SECONDS = 0.02  # per group


async def work(worker: QueueConsumer) -> None:
    while True:
        messages = await worker.receive_many(GROUP)
        for message in messages:
            print(f"received {message.data.decode()} {message.redelivery_count}", flush=True)
            if int(message.data) % FAILING == 0 and message.redelivery_count == 0:
                await worker.nack(message)
        await asyncio.sleep(WORK_SECONDS)
        for message in messages:
            if int(message.data) % FAILING or message.redelivery_count:
                print(f"done {message.data.decode()}", flush=True)
                await worker.ack(message)


async def run(url: str, topic: str, subscription: str) -> None:
    quick = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
    async with (
        anabranch.connect(url, connection=quick) as client,
        client.queue_consumer(
            topic, subscription=subscription, start="earliest", nack_delay=0.01, prefetch=200
        ) as worker,
    ):
        print("ready", flush=True)
        working = asyncio.ensure_future(work(worker))
        ending = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
        await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.wait([working])
        if not working.cancelled():
            working.result()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3]))
