"""A work queue on a scalable topic: several workers, retries with backoff, and a topic for what keeps failing."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

import anabranch
from anabranch import Backoff, DeadLetter

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"topic://public/default/jobs-{uuid.uuid4().hex[:8]}"
JOBS, WORKERS = 30, 3
POLICY = DeadLetter(max_redeliveries=2, initial_subscription="inspect")  # beside the topic: jobs-…-DLQ


def do(job: str) -> None:
    if job.endswith("7"):
        raise ValueError("sevens are cursed")


async def work(client: anabranch.Client, name: str, done: asyncio.Queue[str]) -> None:
    async with client.queue_consumer(
        TOPIC,
        subscription="workers",
        start="earliest",
        prefetch=10,
        nack_backoff=Backoff(initial=0.05, maximum=1.0),
        processing_timeout=30,
        dead_letter=POLICY,
    ) as queue:
        async for message in queue:
            job = message.value.decode()
            try:
                do(job)
            except ValueError as error:
                print(f"{name}: {job} failed (attempt {message.redelivery_count + 1}): {error}")
                await queue.nack(message)
            else:
                await queue.ack(message)
                done.put_nowait(job)


async def main() -> None:
    async with anabranch.connect(SERVICE_URL) as client:
        async with client.producer(TOPIC) as producer:
            for n in range(JOBS):
                producer.send_nowait(f"job {n}".encode())
            await producer.flush()
        done: asyncio.Queue[str] = asyncio.Queue()
        workers = [asyncio.create_task(work(client, f"worker {n}", done)) for n in range(WORKERS)]
        finished = {await asyncio.wait_for(done.get(), 30) for _ in range(JOBS - 3)}
        print(f"{len(finished)} jobs done")
        async with client.queue_consumer(f"{TOPIC}-DLQ", subscription="inspect", start="earliest") as inspect:
            for _ in range(3):
                letter = await inspect.receive(timeout=30)
                assert letter is not None, "nothing is lost"
                print(f"given up: {letter.value.decode()}, from {letter.properties['REAL_TOPIC']}")
                await inspect.ack(letter)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


asyncio.run(main())
