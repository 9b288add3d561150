"""Frames of scalable topics that a broker sends: layouts (71), answers to consumers (74), assignments (75), topics
of namespaces (77).

Anabranch fields are written only for peers that announced `extensions`; without them the frames are Pulsar 5.0.0-M1's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from anabranch.model.entry_buckets import EntryBuckets
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, Position
from anabranch.model.reached import Reached
from anabranch.model.replacement import Replacement
from anabranch.model.routing import RoutingKind
from anabranch.model.segment import Segment, backing_topic
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import U64_MASK, BaseCommand, frame, position_of
from anabranch.protocol.server_errors import ServerError

SPELLED_EDGES_MAX = 1 << 16
"""Edges of a migration that a layout names segment by segment, about 3 bytes each at both ends. With more, clients that
do not read `migrated` get none of these edges: Pulsar's clients do not use edges at all."""


class Reachable(Protocol):
    """Addresses of a broker for clients."""

    @property
    def service_url(self) -> str: ...

    @property
    def service_url_tls(self) -> str | None: ...


def segment_info(segment: Segment, *, extensions: bool) -> pb.SegmentInfoProto:
    info = pb.SegmentInfoProto(
        segment_id=segment.segment_id,
        hash_start=segment.hash_range.start,
        hash_end=segment.hash_range.end,
        state=pb.ACTIVE if segment.is_active else pb.SEALED,
        parent_ids=segment.parent_ids,
        child_ids=segment.child_ids,
        created_at_epoch=segment.created_at_epoch,
        created_at_ms=segment.created_at_ms,
        legacy_topic_name=segment.legacy_topic_name,
        entry_bucket_splits=segment.entry_bucket_splits,
    )
    if not segment.is_active:
        info.sealed_at_epoch = max(0, segment.sealed_at_epoch)
        info.sealed_at_ms = max(0, segment.sealed_at_ms)
        if extensions and segment.last_position is not None:
            is_empty = segment.last_position == EARLIEST
            info.last_position.ledgerId = segment.last_position.ledger & U64_MASK
            info.last_position.entryId = U64_MASK if is_empty else segment.last_position.entry & U64_MASK
    return info


def broker_addresses(segments: Iterable[Segment], brokers: Mapping[int, Reachable]) -> list[pb.SegmentBrokerAddress]:
    found = ((one.segment_id, brokers[one.segment_id]) for one in segments if one.segment_id in brokers)
    return [
        pb.SegmentBrokerAddress(
            segment_id=segment_id, broker_url=where.service_url, broker_url_tls=where.service_url_tls
        )
        for segment_id, where in found
    ]


# Encoded layouts with a single segment or a single address: concatenated, they are a layout with all of them. Each is
# encoded once, not with every layout that contains its segment.
def _segment_part(segment: Segment, omitted: _Edges | None, *, extensions: bool) -> bytes:
    parents, children = omitted or ((), ())
    has_parents, has_children = segment.parent_ids != parents, segment.child_ids != children
    key = _segment_part, extensions, has_parents, has_children
    known: bytes | None = segment.forms.get(key)
    if known is None:
        info = segment_info(segment, extensions=extensions)
        if not has_parents:
            info.ClearField("parent_ids")
        if not has_children:
            info.ClearField("child_ids")
        known = segment.forms[key] = pb.ScalableTopicDAG(epoch=0, segments=[info]).SerializeToString()
    return known


_Edges = tuple[tuple[int, ...], tuple[int, ...]]


def _omitted_edges(layout: Layout, *, reads_migrated: bool) -> _Edges | None:
    edges = layout.migrated_edges
    if edges is None or not (reads_migrated or len(edges[0]) * len(edges[1]) > SPELLED_EDGES_MAX):
        return None
    return edges


def _address_part(segment: Segment, where: Reachable) -> bytes:
    known: tuple[Reachable, bytes] | None = segment.forms.get(_address_part)
    if known is None or (known[0] is not where and known[0] != where):
        found = broker_addresses((segment,), {segment.segment_id: where})
        part = pb.ScalableTopicDAG(epoch=0, segment_brokers=found)
        known = segment.forms[_address_part] = where, part.SerializeToString()
    return known[1]


def layout_update(
    session_id: int,
    topic: TopicName,
    layout: Layout,
    *,
    incarnation: int,
    brokers: Mapping[int, Reachable],
    controller: Reachable | None,
    operation_id: str,
    plan: Replacement | None,
    extensions: bool,
    reads_migrated: bool = False,
) -> bytes:
    """71 with a layout and addresses of active segments; with `extensions` of all, and the current operation. With
    `reads_migrated`, the edges of a migration are named once."""
    ordered = sorted(layout.segments.values(), key=lambda one: one.segment_id)
    omitted = _omitted_edges(layout, reads_migrated=reads_migrated)
    parts = [_segment_part(one, omitted, extensions=extensions) for one in ordered]
    placed = [one for one in (ordered if extensions else layout.active) if one.segment_id in brokers]
    parts += [_address_part(one, brokers[one.segment_id]) for one in placed]
    dag = pb.ScalableTopicDAG.FromString(b"".join(parts))
    dag.epoch = layout.epoch
    if controller is not None:
        dag.controller_broker_url = controller.service_url
        if controller.service_url_tls is not None:
            dag.controller_broker_url_tls = controller.service_url_tls
    if reads_migrated and omitted is not None:
        dag.migrated.parent_ids.extend(omitted[0])
        dag.migrated.child_ids.extend(omitted[1])
    if extensions:
        dag.incarnation = incarnation
        if layout.routing.kind is RoutingKind.RANGE:
            dag.ring_hash = layout.routing.ring_hash.value
        else:
            dag.partition_hash = layout.routing.partition_hash.value
        if plan is not None:
            dag.plan.operation_id = operation_id
            dag.plan.parent_ids.extend(plan.parent_ids)
            dag.plan.children.extend(segment_info(one, extensions=True) for one in plan.children)
            dag.plan.child_brokers.extend(broker_addresses(plan.children, brokers))
    body = pb.CommandScalableTopicUpdate(session_id=session_id, dag=dag, resolved_topic_name=str(topic))
    return frame(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE, scalable_topic_update=body))


def layout_failed(session_id: int, code: ServerError, text: str) -> bytes:
    """71 with an error, which ends the session."""
    body = pb.CommandScalableTopicUpdate(session_id=session_id, error=code, message=text)
    return frame(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE, scalable_topic_update=body))


def assignment(
    topic: TopicName,
    segments: Iterable[Segment],
    *,
    epoch: int,
    generation: int,
    incarnation: int,
    extensions: bool,
    reached: Mapping[int, Reached] = MappingProxyType({}),
    void_below: int = 0,
    after: Mapping[int, Iterable[int]] = MappingProxyType({}),
    buckets: Mapping[int, Iterable[int]] = MappingProxyType({}),
) -> pb.ScalableConsumerAssignment:
    """`reached`: where a checkpoint group continues in each segment. `after`: by segment, the ancestors to read first.
    `buckets`: by segment that is read by entry buckets, which ones.

    `void_below`: reads of a lower generation happened before the last seek and do not count.
    """
    segments = tuple(segments)
    made = pb.ScalableConsumerAssignment(
        layout_epoch=epoch,
        segments=[
            pb.ScalableAssignedSegment(
                segment_id=one.segment_id,
                hash_start=one.hash_range.start,
                hash_end=one.hash_range.end,
                segment_topic=str(backing_topic(topic, one)),
            )
            for one in segments
        ],
    )
    if extensions:
        made.generation, made.incarnation = generation, incarnation
        if void_below:
            made.void_below = void_below
        for segment, one in zip(segments, made.segments, strict=True):
            one.after.extend(after.get(one.segment_id, ()))
            if one.segment_id in buckets:
                ranges = EntryBuckets(segment.entry_bucket_splits).ranges
                one.bucket_ranges.extend(pb.IntRange(start=start, end=end) for start, end in ranges)
                one.buckets.extend(buckets[one.segment_id])
            if (known := reached.get(one.segment_id)) is not None:
                one.position.CopyFrom(_place(known.position))
                if known.batch_index >= 0:
                    one.position.batch_index, one.position.batch_size = known.batch_index, known.batch_size
                if known.since is not None:
                    one.since.CopyFrom(_place(known.since))
    return made


def reached(said: pb.SegmentProgress | pb.ScalableAssignedSegment) -> Reached | None:
    """Progress in a segment, as a member reports it and as an assignment returns it."""
    if not said.HasField("position"):
        return None
    at = said.position
    since = position_of(said.since) if said.HasField("since") else None
    size = max(at.batch_size, 0)
    return Reached(position_of(at), at.batch_index if size else -1, size, since)


def _place(position: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=position.ledger & U64_MASK, entryId=position.entry & U64_MASK)


def subscribed(request_id: int, assigned: pb.ScalableConsumerAssignment) -> bytes:
    body = pb.CommandScalableTopicSubscribeResponse(request_id=request_id, assignment=assigned)
    kind = BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    return frame(BaseCommand(type=kind, scalable_topic_subscribe_response=body))


def subscribe_failed(request_id: int, code: ServerError, text: str) -> bytes:
    body = pb.CommandScalableTopicSubscribeResponse(request_id=request_id, error=code, message=text)
    kind = BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    return frame(BaseCommand(type=kind, scalable_topic_subscribe_response=body))


def assignment_update(consumer_id: int, assigned: pb.ScalableConsumerAssignment) -> bytes:
    body = pb.CommandScalableTopicAssignmentUpdate(consumer_id=consumer_id, assignment=assigned)
    kind = BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE
    return frame(BaseCommand(type=kind, scalable_topic_assignment_update=body))


def session_over(consumer_id: int, code: ServerError, text: str) -> bytes:
    """75 with an error: the session ended for good. Only for consumers that registered with an instance."""
    body = pb.CommandScalableTopicAssignmentUpdate(
        consumer_id=consumer_id,
        assignment=pb.ScalableConsumerAssignment(layout_epoch=0),
        error=code,
        message=text,
    )
    kind = BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE
    return frame(BaseCommand(type=kind, scalable_topic_assignment_update=body))


def topics_snapshot(watch_id: int, topics: Iterable[str]) -> bytes:
    return _topics_update(watch_id, snapshot=pb.ScalableTopicsSnapshot(topics=topics))


def topics_diff(watch_id: int, added: Iterable[str], removed: Iterable[str]) -> bytes:
    return _topics_update(watch_id, diff=pb.ScalableTopicsDiff(added=added, removed=removed))


def topics_watch_failed(watch_id: int, code: ServerError, text: str) -> bytes:
    return _topics_update(watch_id, error=code, message=text)


def _topics_update(watch_id: int, **event: Any) -> bytes:
    body = pb.CommandWatchScalableTopicsUpdate(watch_id=watch_id, **event)
    return frame(BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE, watch_scalable_topics_update=body))
