"""Handlers instead of receive loops: the SDK calls a function, acknowledges, retries, and drains at the end.

A stream keeps every account's bookings in order while accounts are processed concurrently. A queue processes reports on
threads, with a plain function, and gives up one that keeps failing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections import defaultdict

import anabranch
from anabranch import Backoff, DeadLetter, Message, Retry

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
RUN = uuid.uuid4().hex[:8]
BOOKINGS, REPORTS = f"topic://public/default/bookings-{RUN}", f"topic://public/default/reports-{RUN}"
ACCOUNTS, PER_ACCOUNT = 10, 20


async def book() -> None:
    booked: defaultdict[str, list[int]] = defaultdict(list)
    is_done = asyncio.Event()

    async def handle(message: Message) -> None:
        account, number = str(message.key), int(message.value)
        if number == 7 and len(booked[account]) == 7 and account == "account-3" and not is_done.is_set():
            is_done.set()  # only to show a retry
            raise ConnectionError("the bank does not answer")
        await asyncio.sleep(0.001)  # a call of the bank
        booked[account].append(number)
        if sum(map(len, booked.values())) == ACCOUNTS * PER_ACCOUNT:
            finished.set()

    finished = asyncio.Event()
    async with anabranch.connect(SERVICE_URL) as client:
        async with client.producer(BOOKINGS) as producer:
            for number in range(PER_ACCOUNT):
                for account in range(ACCOUNTS):
                    producer.send_nowait(b"%d" % number, key=f"account-{account}")
            await producer.flush()
            sent = producer.metrics()  # counters, rates, latencies
            print(f"{sent.messages} bookings in {sent.batches} batches, p99 {sent.latency.p99} s")
        async with client.stream_consumer(BOOKINGS, subscription="ledger", start="earliest") as consumer:
            policy = Retry(attempts=3, backoff=Backoff(initial=0.05))
            running = asyncio.create_task(consumer.run(handle, concurrency=8, retry=policy))
            await asyncio.wait_for(finished.wait(), 30)
            running.cancel()  # drains: what handlers finished is acknowledged
            await asyncio.gather(running, return_exceptions=True)
            print(f"{consumer.metrics().unacknowledged} bookings are left unacknowledged")
    assert all(numbers == list(range(PER_ACCOUNT)) for numbers in booked.values())
    print(f"{ACCOUNTS} accounts booked, each in order")


def report() -> None:
    """The blocking form runs plain functions on threads."""
    written: set[str] = set()
    lock = threading.Lock()

    def write(message: Message) -> None:
        name = message.value.decode()
        if name == "report 13":
            raise ValueError("no data")
        with lock:
            written.add(name)

    with anabranch.blocking.connect(SERVICE_URL) as client:
        with client.producer(REPORTS) as producer:
            for number in range(20):
                producer.send_nowait(f"report {number}".encode())
            producer.flush()
        policy = DeadLetter(max_redeliveries=2, initial_subscription="inspect")
        consumer = client.queue_consumer(REPORTS, subscription="writers", start="earliest", dead_letter=policy)
        working = threading.Thread(
            target=consumer.run, args=(write,), kwargs={"concurrency": 4, "retry": Backoff(initial=0.05)}
        )
        working.start()
        with client.queue_consumer(f"{REPORTS}-DLQ", subscription="inspect", start="earliest") as inspect:
            letter = inspect.receive(timeout=30)
            assert letter is not None, "nothing is lost"
            inspect.ack(letter)
        consumer.close()  # ends `run`; handlers that run finish first
        working.join(30)
    print(f"{len(written)} reports written, given up: {letter.value.decode()}")


asyncio.run(book())
report()
