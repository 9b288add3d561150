"""A process with a queue consumer that is killed by certain messages. Speaks in lines on stdout.

Run as `python -m tests.support.processes.poisoned_worker_child URL TOPIC SUBSCRIPTION MAX_REDELIVERIES`: prints `done
NUMBER COUNT` for each message that it acknowledges (COUNT is its redelivery count), and kills itself with SIGKILL when
it gets the value `poison`. It ends when nothing came for a second after a line on standard input.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import anabranch
from anabranch import Backoff, ConnectionPolicy, DeadLetter

IDLE_SECONDS = 1.0


async def run(url: str, topic: str, subscription: str, max_redeliveries: int) -> None:
    quick = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
    async with (
        anabranch.connect(url, connection=quick) as client,
        client.queue_consumer(
            topic,
            subscription=subscription,
            start="earliest",
            dead_letter=DeadLetter(max_redeliveries=max_redeliveries, initial_subscription="s"),
        ) as worker,
    ):
        ending = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
        while True:
            message = await worker.receive(timeout=IDLE_SECONDS)
            if message is None:
                if ending.done():
                    return
                continue
            if message.data == b"poison":
                os.kill(os.getpid(), signal.SIGKILL)
            print(f"done {message.data.decode()} {message.redelivery_count}", flush=True)
            await worker.ack(message)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
