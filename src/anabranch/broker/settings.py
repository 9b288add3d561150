"""Settings of serving with their defaults, validated once at start."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.runtime.settings import require_all

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    message_bytes_max: int = field(default=5 * MIB, metadata={"help": "largest message; a frame may be 10 KiB longer"})
    keep_alive_seconds: float = field(
        default=30.0, metadata={"help": "ping interval; a connection that misses two answers is closed"}
    )
    connections_max: int = field(default=10_000, metadata={"help": "connections in total"})
    connections_per_address_max: int = field(
        default=0, metadata={"help": "connections from one address; 0 = no separate limit"}
    )
    requests_in_flight_max: int = field(default=1_000, metadata={"help": "unanswered requests per connection"})
    producers_per_connection_max: int = field(default=10_000, metadata={"help": "producers on one connection"})
    consumers_per_connection_max: int = field(default=10_000, metadata={"help": "consumers on one connection"})
    producer_bytes_max: int = field(default=8 * MIB, metadata={"help": "received but not yet durable, per producer"})
    producer_messages_max: int = field(default=100_000, metadata={"help": "received but not yet durable, per producer"})
    connection_bytes_max: int = field(
        default=32 * MIB, metadata={"help": "hard cap per connection; past it the broker stops reading the socket"}
    )
    consumer_unsent_bytes_max: int = field(
        default=1 * MIB, metadata={"help": "dispatch to a connection pauses when this much waits in its socket queue"}
    )
    read_bytes: int = field(default=1 * MIB, metadata={"help": "size of one catch-up read"})
    unacked_per_consumer_max: int = field(default=50_000, metadata={"help": "Shared and Key_Shared; 0 = no limit"})
    unacked_per_subscription_max: int = field(default=200_000, metadata={"help": "Shared and Key_Shared; 0 = no limit"})
    key_shared_lookahead_max: int = field(
        default=20_000, metadata={"help": "entries a Key_Shared subscription reads past blocked keys"}
    )
    key_shared_consistent_hashing: bool = field(
        default=True,
        metadata={"help": "false: a consumer that joins takes half of the widest range of another one"},
    )
    delayed_max: int = field(default=1_000_000, metadata={"help": "delayed messages tracked per subscription"})
    auto_create_topics: bool = field(default=True, metadata={"help": "create a missing topic on first use"})
    auto_create_partitions: int = field(
        default=0, metadata={"help": "partitions of auto-created topics; 0 = not partitioned"}
    )
    auto_create_subscriptions: bool = field(
        default=True, metadata={"help": "create a missing subscription on subscribe"}
    )
    partitions_max: int = field(default=1_024, metadata={"help": "partitions of one topic"})
    deduplication: bool = field(
        default=False, metadata={"help": "deduplicate by (producer name, sequence id) in all namespaces"}
    )
    dedup_snapshot_entries: int = field(default=1_000, metadata={"help": "entries between two dedup snapshots"})
    probe_seconds: float = field(
        default=5.0, metadata={"help": "how long a producer name's present connection may take to answer a ping"}
    )
    sweep_seconds: float = field(default=5.0, metadata={"help": "interval of TTL, backlog quotas and retention"})
    idle_topic_seconds: float = field(default=60.0, metadata={"help": "an unused topic is unloaded after this"})
    metrics_topics: bool = field(default=True, metadata={"help": "/metrics has series for each topic"})
    metrics_topics_max: int = field(
        default=10_000, metadata={"help": "topics with series of their own; the others are summed up"}
    )

    def __post_init__(self) -> None:
        require_all(
            (KIB <= self.message_bytes_max <= 128 * MIB, "broker.message_bytes_max", "between 1 KiB and 128 MiB"),
            (self.connections_per_address_max >= 0, "broker.connections_per_address_max", "0 or more"),
            (self.keep_alive_seconds > 0, "broker.keep_alive_seconds", "greater than 0"),
            (self.producer_bytes_max >= 64 * KIB, "broker.producer_bytes_max", "at least 64 KiB"),
            (self.producer_messages_max >= 1, "broker.producer_messages_max", "at least 1"),
            (
                self.connection_bytes_max >= self.producer_bytes_max,
                "broker.connection_bytes_max",
                "at least broker.producer_bytes_max",
            ),
            (self.read_bytes >= 4 * KIB, "broker.read_bytes", "at least 4 KiB"),
            (
                0 <= self.auto_create_partitions <= self.partitions_max,
                "broker.auto_create_partitions",
                "between 0 and broker.partitions_max",
            ),
            (self.sweep_seconds > 0, "broker.sweep_seconds", "greater than 0"),
            (self.metrics_topics_max >= 0, "broker.metrics_topics_max", "0 or more"),
            (self.dedup_snapshot_entries >= 1, "broker.dedup_snapshot_entries", "at least 1"),
        )
