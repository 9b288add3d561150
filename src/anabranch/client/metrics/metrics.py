"""What `client.metrics()` returns: frozen values, taken at one moment. Rates are per second, over about the last minute
(see `window`); counters are since the producer or consumer was opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLatency:
    """From the call for the first message of an entry to its receipt, in seconds; None if there was none."""

    p50: float | None  # of about the last minute, at most a fifth too high
    p99: float | None
    maximum: float | None  # since the producer was opened
    total: float  # sum since the producer was opened, for averages
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics:
    topic: str
    name: str
    messages: int  # stored
    bytes: int  # about the size of these on the wire, as `pending_bytes` counts
    batches: int  # entries with these
    failed: int  # messages that failed
    errors: Mapping[str, int]  # failed messages by error code
    pending_messages: int  # sent, and without a receipt
    pending_bytes: int
    message_rate: float
    byte_rate: float
    latency: SendLatency


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMetrics:
    topic: str
    subscription: str
    name: str
    messages: int  # arrived from brokers, prefetched ones included; a message that comes again counts again
    bytes: int  # of entries as they arrived: compressed, with their metadata
    batches: int  # entries that arrived
    redelivered: int  # of these, entries with a redelivery count
    rejected: int  # entries that could not be read
    nacks: int
    dead_letters: int
    prefetched: int  # messages that wait for the application
    unacknowledged: int  # messages that the application has and did not acknowledge; chunks count one by one
    segments: int  # partitions and segments that are attached
    message_rate: float
    byte_rate: float
    age: float | None  # seconds from the publish time of the last entry to its arrival
    lag: int | None  # messages that the subscription had not acknowledged at the last call of `lag`; None: never called


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics:
    producers: Sequence[ProducerMetrics]
    consumers: Sequence[ConsumerMetrics]
    connections: int  # to brokers
