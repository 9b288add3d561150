"""Recorded traffic of the stock client: senders record what was confirmed, consumers what they received.

Every consumer acknowledges only what it has recorded. `delivery_audit` checks the records.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pulsar

from tests.support.traffic.delivery_audit import Numbered, decode, encode

IN_FLIGHT_MAX = 400
RESENT = 50  # how many confirmed messages the deduplicated producer sends again when it starts over
EARLIEST = pulsar.InitialPosition.Earliest


class Sender(threading.Thread):
    """A producer that keeps a bounded window of messages on the wire and writes down what was confirmed."""

    OWN_DOING: frozenset[pulsar.Result] = frozenset()
    """Refusals that the sender itself caused."""

    def __init__(self, connect: Callable[[], pulsar.Client], topic: str, streams: list[str]) -> None:
        super().__init__(daemon=True, name=f"sender {topic}")
        self.topic = topic
        self.acknowledged: list[Numbered] = []
        self.refused = 0
        self.failure: Exception | None = None
        self._client = connect()
        self._streams = streams
        self._stopping = threading.Event()
        self._window = threading.Semaphore(IN_FLIGHT_MAX)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            self.produce()
        except Exception as error:
            self.failure = error  # raised by the main thread

    def produce(self) -> None:
        keyed = len(self._streams) > 1
        batching = pulsar.BatchingType.KeyBased if keyed else pulsar.BatchingType.Default
        producer = self._client.create_producer(
            self.topic,
            send_timeout_millis=0,
            batching_enabled=True,
            batching_type=batching,
            batching_max_publish_delay_ms=2,
        )
        n = 0
        while not self._stopping.is_set():
            stream, number = self._streams[n % len(self._streams)], n // len(self._streams)
            self._send(producer, stream, number, partition_key=stream if keyed else None)
            n += 1
            if n % 20 == 0:
                self._stopping.wait(0.008)  # about 2,000 messages/s: the kill is the load, not the rate
        producer.flush()

    def _send(self, producer: pulsar.Producer, stream: str, number: int, **options: object) -> None:
        self._window.acquire()
        receipt = functools.partial(self._receipt, (stream, number))
        producer.send_async(encode(stream, number, 64), receipt, **options)

    def _receipt(self, message: Numbered, result: pulsar.Result, _id: pulsar.MessageId) -> None:
        self._window.release()
        if result == pulsar.Result.Ok:
            self.acknowledged.append(message)
        elif result not in self.OWN_DOING:
            self.refused += 1


class OnceSender(Sender):
    """A deduplicated producer: its numbers are its sequence ids; after each kill it starts over, a bit earlier."""

    OWN_DOING = frozenset({pulsar.Result.AlreadyClosed})

    def __init__(self, connect: Callable[[], pulsar.Client], topic: str, name: str) -> None:
        super().__init__(connect, topic, [name])
        self._producer_name = name
        self._again = threading.Event()

    def start_over(self) -> None:
        self._again.set()

    def produce(self) -> None:
        number = 0
        while not self._stopping.is_set():
            producer = self._producer()
            confirmed = self.acknowledged[-1][1] if self.acknowledged else -1
            assert producer.last_sequence_id() >= confirmed, "the broker forgot a confirmed sequence id"
            self._again.clear()
            number = max(0, min(number, confirmed + 1 - RESENT))
            while not self._stopping.is_set() and not self._again.is_set():
                self._send(producer, self._producer_name, number, sequence_id=number)
                number += 1
                if number % 20 == 0:
                    self._stopping.wait(0.012)
            if self._stopping.is_set():
                producer.flush()
            producer.close()

    def _producer(self) -> pulsar.Producer:
        while True:
            try:
                return self._client.create_producer(
                    self.topic, producer_name=self._producer_name, send_timeout_millis=0
                )
            except pulsar.PulsarException:
                if self._stopping.wait(0.1):
                    raise


class Taker(threading.Thread):
    """One consumer: writes down, then acknowledges."""

    def __init__(self, consumer: pulsar.Consumer, seen: list[Numbered]) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self._seen = seen
        self.failure: Exception | None = None
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            self._take()
        except Exception as error:
            self.failure = error  # raised by the main thread

    def _take(self) -> None:
        while not self._stopping.is_set():
            try:
                message = self._consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            self._seen.append(decode(message.data()))
            self._consumer.acknowledge(message)


@dataclass
class Subscription:
    topic: str
    name: str
    type: pulsar.ConsumerType
    consumers: int
    seen: list[Numbered] = field(default_factory=list)
    takers: list[Taker] = field(default_factory=list)

    def open(self, client: pulsar.Client) -> None:
        for _ in range(self.consumers):
            consumer = client.subscribe(self.topic, self.name, self.type, initial_position=EARLIEST)
            self.takers.append(Taker(consumer, self.seen))
        for taker in self.takers:
            taker.start()

    def close(self) -> None:
        """Take no more; what a consumer failed with is raised."""
        for taker in self.takers:
            taker.stop()
        for taker in self.takers:
            taker.join(10.0)
            if taker.failure is not None:
                raise taker.failure
