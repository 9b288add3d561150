"""Options of a consumer, and what they mean for its consumer of one segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anabranch.client.consumer.namespace_topics import NamespaceTopicsSpec
from anabranch.client.consumer.segment.segment_consumer_spec import SegmentConsumerSpec
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.encryption.options import Decryption
from anabranch.client.schema.schema import Schema
from anabranch.client.schema.schema_resolver import schema_field
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment
from anabranch.protocol import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options of every kind. `prefetch` bounds the received messages that wait, over all partitions and segments."""

    subscription: str
    name: str
    from_earliest: bool
    prefetch: int
    ack_group_s: float
    operation_timeout_s: float
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None
    priority: int = 0
    decryption: Decryption | None = None
    namespace: NamespaceTopicsSpec | None = None  # instead of topics


def segment_spec(
    options: ConsumerOptions,
    part: TopicPart,
    segment: Segment,
    sub_type: pb.CommandSubscribe.SubType,
    topic: str | None = None,
) -> SegmentConsumerSpec:
    """`topic`: the segment on the wire, if it is not the one of the layout."""
    view = part.view
    is_legacy = view.is_legacy(segment)
    backing = topic or view.backing(segment)
    # A segment that appeared after opening is read from its beginning: all of it is newer than the consumer.
    from_earliest = options.from_earliest or segment.segment_id not in part.first
    suffix = "" if view.is_synthetic else f"-seg-{segment.segment_id}"
    return SegmentConsumerSpec(
        topic=backing,
        identity=str(view.topic),
        lane=view.lane(segment),
        segment_id=segment.segment_id,
        partition=TopicName.parse(backing).partition_index if is_legacy else -1,
        is_legacy=is_legacy,
        subscription=options.subscription,
        sub_type=sub_type,
        consumer_name=options.name + suffix,
        from_earliest=from_earliest,
        priority=options.priority,
        properties=options.properties,
        subscription_properties=options.subscription_properties,
        ack_group_s=options.ack_group_s,
        hint=view.broker_of(segment.segment_id),
        schema=None if options.schema is None else schema_field(options.schema),
        incarnation=0 if is_legacy else view.incarnation,
    )


def shared_spec(spec: SegmentConsumerSpec, part: TopicPart, segment: Segment) -> SegmentConsumerSpec:
    """For a segment that the consumer reads by entry buckets."""
    return replace(
        spec,
        sub_type=pb.CommandSubscribe.Key_Shared,
        bucket_splits=segment.entry_bucket_splits,
        ring_hash=part.view.layout.routing.ring_hash.value,
    )
