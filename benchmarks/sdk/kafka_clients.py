"""`confluent-kafka`, doing what the clients of `sdk_clients` do, one process each; run by `sdk_kafka`.

    python -m benchmarks.sdk.kafka_clients ROLE SERVERS TOPIC COUNT

The same messages, batches (1,000 messages, 128 KB, 1 ms), window (100,000 messages) and prefetch (10,000 messages); the
rest as the library has it: messages are confirmed by all replicas (there is one), offsets are committed in the
background, as our acks are. It sends and receives in C threads, which are included in the measured CPU time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.sdk.clients import BULK_ROWS, KEYS, NAMES, PREFETCH, SIZE, VALUE, WINDOW, Work


def producer_of(servers: str) -> Any:
    import confluent_kafka

    return confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 1,
            "batch.num.messages": 1000,
            "batch.size": 128 * 1024,
            "queue.buffering.max.messages": WINDOW,
        }
    )


def _produced(producer: Any, topic: str, number: int, **options: Any) -> None:
    while True:
        try:
            producer.produce(topic, VALUE, NAMES[number % KEYS], **options)
            return
        except BufferError:  # the window is full
            producer.poll(0.01)


def publish(servers: str, topic: str, count: int) -> None:
    producer, work = producer_of(servers), Work()
    producer.list_topics(topic, 30)  # made by being asked for
    work.begin()
    for number in range(count):
        _produced(producer, topic, number)
    assert producer.flush(60) == 0
    work.end()


def publish_results(servers: str, topic: str, count: int) -> None:
    producer, work = producer_of(servers), Work()
    producer.list_topics(topic, 30)
    results: list[int] = []

    def stored(error: Any, message: Any) -> None:
        assert error is None, error
        results.append(message.offset())

    work.begin()
    for number in range(count):
        _produced(producer, topic, number, on_delivery=stored)
        if not number & 1023:
            producer.poll(0)
    assert producer.flush(60) == 0
    work.end()
    assert len(results) == count


def consumer_of(servers: str, topic: str) -> Any:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"bench-{topic}",
            "auto.offset.reset": "earliest",
            "queued.min.messages": PREFETCH,
        }
    )
    consumer.subscribe([topic])
    return consumer


def consume(servers: str, topic: str, count: int) -> None:
    consumer, work = consumer_of(servers, topic), Work()
    left = count - _first(consumer, 1)
    work.begin()
    while left > 0:
        message = consumer.poll(1.0)
        if message is not None and len(message.value()) == SIZE:
            left -= 1
    work.end()
    consumer.close()


def bulk_consume(servers: str, topic: str, count: int) -> None:
    consumer, work = consumer_of(servers, topic), Work()
    left, size = count - _first(consumer, 1), 0
    work.begin()
    while left > 0:
        some = consumer.consume(BULK_ROWS, 0.05)
        values, keys = [one.value() for one in some], [one.key() for one in some]
        size += len(values) + len(keys)
        left -= len(some)
    work.end()
    assert size > 0
    consumer.close()


def _first(consumer: Any, count: int) -> int:
    """Joining the group takes seconds and is no part of the work: so many messages are received before."""
    for _ in range(600):
        if consumer.poll(0.1) is not None:
            return count
    raise RuntimeError("no message in a minute")


ROLES: dict[str, Callable[[str, str, int], None]] = {
    "publish": publish,
    "publish-results": publish_results,
    "consume": consume,
    "bulk-consume": bulk_consume,
}


if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
