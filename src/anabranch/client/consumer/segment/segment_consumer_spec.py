"""What a consumer of one partition or segment subscribes to, and under which assignment. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.client.topic.topic_view import BrokerUrls
from anabranch.protocol import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentConsumerSpec:
    """What SUBSCRIBE says about a consumer of one partition or segment."""

    topic: str  # on the wire
    identity: str  # the topic that the application knows
    lane: int = -1  # the number in message ids
    segment_id: int = 0
    partition: int = -1
    is_legacy: bool = True  # a regular topic, not a segment
    subscription: str
    sub_type: pb.CommandSubscribe.SubType
    consumer_name: str
    from_earliest: bool = False
    priority: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    ack_group_s: float = 0.01
    hint: BrokerUrls | None = None  # the broker that serves it, according to the layout
    schema: pb.Schema | None = None
    incarnation: int = 0  # of the scalable topic; 0: not known. Brokers refuse a consumer of another incarnation
    bucket_splits: tuple[int, ...] = ()  # of the segment's entry buckets, if it is read by buckets
    ring_hash: str | None = None  # with `bucket_splits`


@dataclass(frozen=True, slots=True)
class Grant:
    """The assignment under which a segment is read. Brokers refuse it after the segment was assigned elsewhere."""

    incarnation: int
    generation: int
