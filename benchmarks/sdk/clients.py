"""The clients that `sdk_throughput` measures, one process each: the SDK and the stock wheel, doing the same.

    python -m benchmarks.sdk.clients ROLE URL TOPIC COUNT

Each connects, says `ready`, waits for a line, works, and says how long it took and how much CPU it used. What is not
part of the work (values, keys, columns) is made before. Both sides have the same:

    topic       regular, not partitioned, a new one each time
    messages    100 bytes, with one of 1,000 keys
    batches     at most 1,000 messages, at most 128 KB, at most 1 ms old
    window      100,000 messages without a receipt: the wheel blocks (`block_if_queue_full`), the SDK's side awaits its
                oldest turn of 1,024 messages, or its oldest bulk call
    consumers   shared subscription from the earliest message, 10,000 messages prefetched; the wheel acknowledges in the
                background, the SDK says its acks within 10 ms: neither waits for the broker

| role            | the wheel                                   | the SDK                                          |
|-----------------|---------------------------------------------|--------------------------------------------------|
| publish         | `send_async(value, None, partition_key=…)`  | `send_nowait(value, key=…)`                      |
| publish-results | the same, a callback keeps the id of each   | the same, futures are kept and their ids read    |
| consume         | `acknowledge(receive())`, one by one        | `await receive()`, `await ack(…)`, one by one    |
| bulk-publish    | as publish                                  | `send_batch_nowait` of 10,000 rows               |
| bulk-consume    | as consume                                  | `receive_batch()`, keys and values, `ack(batch)` |

Publishing ends with `flush`. Bulk calls are made with lists and get lists, or (`…-arrow`) with Arrow.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import anabranch
from anabranch.client.config import Batching

SIZE = 100
KEYS = 1000
BULK_ROWS = 10_000
PREFETCH = 10_000
WINDOW, TURN = 100_000, 1024  # messages without a receipt; messages between turns of the event loop

VALUE = b"x" * SIZE
NAMES = [f"key-{number}" for number in range(KEYS)]


class Work:
    """From `ready` to the answer."""

    def begin(self) -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        seconds, cpu = time.perf_counter() - self._start, time.process_time() - self._cpu
        sys.stdout.write(f"took {seconds} {cpu}\n")
        sys.stdout.flush()


# ------------------------------------------------------------------------------------------------------ the stock wheel


def wheel(url: str) -> Any:
    from tests.support.traffic.stock_client import new_client

    return new_client(url)


def wheel_producer(client: Any, topic: str) -> Any:
    return client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=1,
        block_if_queue_full=True,
        max_pending_messages=WINDOW,
        max_pending_messages_across_partitions=WINDOW,
    )


def wheel_publish(url: str, topic: str, count: int) -> None:
    client, work = wheel(url), Work()
    producer = wheel_producer(client, topic)
    work.begin()
    for number in range(count):
        producer.send_async(VALUE, None, partition_key=NAMES[number % KEYS])
    producer.flush()
    work.end()
    client.close()


def wheel_publish_results(url: str, topic: str, count: int) -> None:
    client, work = wheel(url), Work()
    producer = wheel_producer(client, topic)
    results: list[Any] = []

    def stored(result: Any, message_id: Any) -> None:
        results.append(message_id)

    work.begin()
    for number in range(count):
        producer.send_async(VALUE, stored, partition_key=NAMES[number % KEYS])
    producer.flush()
    while len(results) < count:  # callbacks run in a thread of the wheel's own
        time.sleep(0.001)
    work.end()
    client.close()


def wheel_consume(url: str, topic: str, count: int) -> None:
    import pulsar

    client, work = wheel(url), Work()
    consumer = client.subscribe(
        topic,
        "bench",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=PREFETCH,
    )
    work.begin()
    for _ in range(count):
        consumer.acknowledge(consumer.receive())
    work.end()
    client.close()


# -------------------------------------------------------------------------------------------------------------- the SDK


async def publish(url: str, topic: str, count: int) -> None:
    work = Work()
    async with anabranch.connect(url) as client, client.producer(topic, batching=Batching()) as producer:
        work.begin()
        turns: deque[asyncio.Future[Any]] = deque()
        for number in range(count):
            last = producer.send_nowait(VALUE, key=NAMES[number % KEYS])
            if not number % TURN:
                await _turn(turns, last)
        await producer.flush()
        work.end()


async def publish_results(url: str, topic: str, count: int) -> None:
    work = Work()
    async with anabranch.connect(url) as client, client.producer(topic, batching=Batching()) as producer:
        work.begin()
        futures = []
        turns: deque[asyncio.Future[Any]] = deque()
        for number in range(count):
            futures.append(producer.send_nowait(VALUE, key=NAMES[number % KEYS]))
            if not number % TURN:
                await _turn(turns, futures[-1])
        await producer.flush()
        results = [future.result() for future in futures]
        work.end()
        assert len(results) == count


async def _turn(turns: deque[asyncio.Future[Any]], last: asyncio.Future[Any]) -> None:
    """Let the event loop work, and wait when too much has no receipt."""
    turns.append(last)
    await (turns.popleft() if len(turns) >= WINDOW // TURN else asyncio.sleep(0))


async def consume(url: str, topic: str, count: int) -> None:
    work = Work()
    async with (
        anabranch.connect(url) as client,
        client.queue_consumer(topic, subscription="bench", start="earliest", prefetch=PREFETCH) as consumer,
    ):
        work.begin()
        for _ in range(count):
            message = await consumer.receive()
            assert message is not None
            await consumer.ack(message)
        work.end()


async def bulk_publish(url: str, topic: str, count: int) -> None:
    await _bulk_publish(url, topic, count, is_arrow=False)


async def bulk_publish_arrow(url: str, topic: str, count: int) -> None:
    await _bulk_publish(url, topic, count, is_arrow=True)


async def _bulk_publish(url: str, topic: str, count: int, *, is_arrow: bool) -> None:
    work = Work()
    values: Any = [VALUE] * BULK_ROWS
    keys: Any = [NAMES[number % KEYS] for number in range(BULK_ROWS)]
    if is_arrow:
        import pyarrow as pa

        values, keys = pa.array(values), pa.array(keys)
    async with anabranch.connect(url) as client, client.producer(topic) as producer:
        work.begin()
        sent = []
        for _ in range(count // BULK_ROWS):
            sent.append(producer.send_batch_nowait(values, keys))
            if len(sent) >= WINDOW // BULK_ROWS:
                await sent[-WINDOW // BULK_ROWS]
            await asyncio.sleep(0)
        await producer.flush()
        assert sum(len(one.result()) for one in sent) == count // BULK_ROWS * BULK_ROWS
        work.end()


async def bulk_consume(url: str, topic: str, count: int) -> None:
    await _bulk_consume(url, topic, count, is_arrow=False)


async def bulk_consume_arrow(url: str, topic: str, count: int) -> None:
    await _bulk_consume(url, topic, count, is_arrow=True)


async def _bulk_consume(url: str, topic: str, count: int, *, is_arrow: bool) -> None:
    work = Work()
    if is_arrow:
        import pyarrow as pa

        assert pa.__version__
    async with (
        anabranch.connect(url) as client,
        client.queue_consumer(topic, subscription="bench", start="earliest", prefetch=PREFETCH) as consumer,
    ):
        work.begin()
        left, size = count, 0
        while left > 0:
            batch = await consumer.receive_batch()
            if is_arrow:
                size += batch.to_arrow(("key", "value")).nbytes
            else:
                size += len(batch.values()) + len(batch.keys())
            left -= len(batch)
            await consumer.ack(batch)
        work.end()
        assert size > 0
        assert left <= 0


ROLES: dict[str, Callable[[str, str, int], Any]] = {
    "wheel-publish": wheel_publish,
    "wheel-publish-results": wheel_publish_results,
    "wheel-consume": wheel_consume,
    "publish": publish,
    "publish-results": publish_results,
    "consume": consume,
    "bulk-publish": bulk_publish,
    "bulk-publish-arrow": bulk_publish_arrow,
    "bulk-consume": bulk_consume,
    "bulk-consume-arrow": bulk_consume_arrow,
}


def main(role: str, url: str, topic: str, count: int) -> None:
    found = ROLES[role](url, topic, count)
    if asyncio.iscoroutine(found):
        asyncio.run(found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
