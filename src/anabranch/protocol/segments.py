"""Frames and values that segment owners send to Anabranch clients."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.model.routing import Routing
from anabranch.model.segment import Segment
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame


def ancestor_sequence(
    segment: Segment, routing: Routing, last_sequence_id: int, note: bytes = b""
) -> pb.AncestorSequence:
    """A producer's state in one ancestor. `routing` of the topic; a partition of a regular topic was routed mod-n."""
    is_modulo = segment.legacy_topic_name is not None
    return pb.AncestorSequence(
        segment_id=segment.segment_id,
        hash_start=segment.hash_range.start,
        hash_end=segment.hash_range.end,
        last_sequence_id=last_sequence_id,
        ring_hash=None if is_modulo else routing.ring_hash.value,
        partition_hash=routing.partition_hash.value if is_modulo else None,
        note=note or None,
    )


def segment_sealed(
    producer_id: int,
    operation_id: str,
    last_sequence_id: int,
    children: Iterable[Segment],
    brokers: Iterable[tuple[int, str, str | None]],
) -> bytes:
    """`brokers`: segment id, binary URL, URL with TLS."""
    body = pb.CommandSegmentSealed(
        producer_id=producer_id,
        operation_id=operation_id,
        last_sequence_id=last_sequence_id,
        children=[_child(one) for one in children],
        child_brokers=[
            pb.SegmentBrokerAddress(segment_id=segment_id, broker_url=url, broker_url_tls=url_tls)
            for segment_id, url, url_tls in brokers
        ],
    )
    return frame(BaseCommand(type=BaseCommand.SEGMENT_SEALED, segment_sealed=body))


def _child(segment: Segment) -> pb.SegmentInfoProto:
    """The segment as active, as it will be when producers write to it."""
    return pb.SegmentInfoProto(
        segment_id=segment.segment_id,
        hash_start=segment.hash_range.start,
        hash_end=segment.hash_range.end,
        state=pb.ACTIVE,
        parent_ids=segment.parent_ids,
        created_at_epoch=segment.created_at_epoch,
        created_at_ms=segment.created_at_ms,
        entry_bucket_splits=segment.entry_bucket_splits,
    )
