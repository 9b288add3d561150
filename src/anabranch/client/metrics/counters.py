"""Counters of one producer or consumer. They are increased per entry, so they cost next to nothing per message."""

from __future__ import annotations

from collections import Counter

from anabranch.client.metrics.latencies import Latencies
from anabranch.client.metrics.metrics import ConsumerMetrics
from anabranch.client.metrics.window import Rates


class ProducerCounters:
    __slots__ = ("batches", "bytes", "errors", "failed", "latencies", "messages")

    def __init__(self) -> None:
        self.messages = 0  # stored
        self.bytes = 0  # about the size of these on the wire
        self.batches = 0  # entries with these
        self.failed = 0
        self.errors: Counter[str] = Counter()  # failed messages by error code
        self.latencies = Latencies()  # per entry: from the call for its first message to the receipt

    def stored(self, messages: int, size_bytes: int, latency_s: float) -> None:
        self.messages += messages
        self.bytes += size_bytes
        self.batches += 1
        self.latencies.add(latency_s)

    def failed_with(self, code: str, messages: int) -> None:
        self.failed += messages
        self.errors[code] += messages


class ConsumerCounters:
    __slots__ = (
        "arrived_at", "batches", "bytes", "dead_letters", "messages", "nacks", "publish_time_ms", "redelivered",
        "rejected",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages = 0  # arrived from brokers, and not dropped because the consumer has them
        self.bytes = 0  # of entries, as they arrived
        self.batches = 0  # entries that arrived
        self.redelivered = 0  # entries that arrived with a redelivery count
        self.rejected = 0  # entries that could not be read
        self.nacks = 0
        self.dead_letters = 0
        self.arrived_at = 0.0  # of the last entry, on the monotonic clock
        self.publish_time_ms = -1  # of the last entry; -1: none was delivered

    def age_s(self, now_ms: int, now: float) -> float | None:
        """From the publish time of the last entry to its arrival; None if there was none."""
        if self.publish_time_ms < 0:
            return None
        return (now_ms - self.publish_time_ms) / 1000 - (now - self.arrived_at)

    def metrics(
        self,
        *,
        topic: str,
        subscription: str,
        name: str,
        rates: Rates,
        age: float | None,
        prefetched: int,
        unacknowledged: int,
        segments: int,
        lag: int | None,
    ) -> ConsumerMetrics:
        return ConsumerMetrics(
            topic=topic,
            subscription=subscription,
            name=name,
            messages=self.messages,
            bytes=self.bytes,
            batches=self.batches,
            redelivered=self.redelivered,
            rejected=self.rejected,
            nacks=self.nacks,
            dead_letters=self.dead_letters,
            prefetched=prefetched,
            unacknowledged=unacknowledged,
            segments=segments,
            message_rate=rates.messages,
            byte_rate=rates.bytes,
            age=age,
            lag=lag,
        )
