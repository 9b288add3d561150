"""What a client knows of one topic: its segments, their brokers, and a running operation. Values only.

| topic                    | represented as                                                 |
|--------------------------|----------------------------------------------------------------|
| scalable                 | the layout that the broker sent                                |
| regular, partitioned     | a synthetic layout: one segment per partition, routed modulo   |
| regular, not partitioned | a synthetic layout of one segment                              |

`LayoutFilter` decides which received layouts are new: pushes may arrive out of order, brokers may answer from caches,
topics may be deleted and created again, and partitions may be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.client.errors import Refused
from anabranch.model.errors import Error
from anabranch.model.hashrange import HashRange
from anabranch.model.layout import Layout
from anabranch.model.names import Domain, TopicName
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.position import Position
from anabranch.model.routing import MOD_N, RingHash, Routing, RoutingKind
from anabranch.model.segment import NOT_SEALED, Segment, SegmentState, backing_topic
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import signed


class UnreadableLayout(Refused):
    """The broker sent an invalid layout."""

    code = "unreadable-layout"
    retryable = True


@dataclass(frozen=True, slots=True)
class BrokerUrls:
    """The service URLs of a broker; empty if not known."""

    url: str = ""
    url_tls: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A running split, merge or migration. Its children may be opened in advance, but not yet written to."""

    operation_id: str
    parent_ids: tuple[int, ...]
    children: tuple[Segment, ...]
    brokers: Mapping[int, BrokerUrls]


@dataclass(frozen=True, slots=True)
class TopicView:
    topic: TopicName  # as the broker resolved it
    layout: Layout
    incarnation: int = 0  # 0: not sent by the broker
    plan: Plan | None = None
    brokers: Mapping[int, BrokerUrls] = field(default_factory=dict)  # by segment; a hint, LOOKUP is authoritative
    controller: BrokerUrls = BrokerUrls()
    generation: int = 0  # local: changes when the topic was deleted and created again
    is_pushed: bool = True  # the broker pushes every change; Apache Pulsar does not push new partitions

    @property
    def is_synthetic(self) -> bool:
        return self.layout.routing.kind is RoutingKind.MOD_N

    def reroutes(self, earlier: TopicView) -> bool:
        """Whether keys of a regular topic may have another partition than in an earlier view of it."""
        if not self.is_synthetic:
            return False
        return (len(self.layout.active), self.layout.routing) != (len(earlier.layout.active), earlier.layout.routing)

    def broker_of(self, segment_id: int) -> BrokerUrls | None:
        """The broker of the segment, from the layout or from the plan of a running operation."""
        planned = None if self.plan is None else self.plan.brokers.get(segment_id)
        return self.brokers.get(segment_id) or planned

    def backing(self, segment: Segment) -> str:
        """The topic of the segment on the wire."""
        return str(backing_topic(self.topic, segment))

    def lane(self, segment: Segment) -> int:
        """The number of the segment in message ids: -1 for a topic without partitions."""
        return -1 if segment.legacy_topic_name == str(self.topic) else segment.segment_id

    def is_legacy(self, segment: Segment) -> bool:
        return segment.legacy_topic_name is not None


def synthetic_view(topic: TopicName, partitions: int, now_ms: int) -> TopicView:
    """A regular topic with this number of partitions; 0: not partitioned."""
    names = [str(topic.partition(index)) for index in range(partitions)] if partitions else [str(topic)]
    return TopicView(topic, Layout.synthetic(names, now_ms=now_ms), is_pushed=False)


def with_partition_hash(view: TopicView, partition_hash: PartitionHash | None) -> TopicView:
    """The view with the hash that the application has chosen; None, or a scalable topic: as the broker says."""
    if partition_hash is None or not view.is_synthetic:
        return view
    routing = replace(view.layout.routing, partition_hash=partition_hash)
    return replace(view, layout=replace(view.layout, routing=routing))


def read_view(update: pb.CommandScalableTopicUpdate, asked: TopicName, known: TopicView | None = None) -> TopicView:
    """The view in a SCALABLE_TOPIC_UPDATE; raises UnreadableLayout. Unchanged segments are taken from the `known` view,
    because a change concerns a few segments and a layout may have a thousand."""
    dag, before = update.dag, {} if known is None else known.layout.segments
    try:
        topic = TopicName.parse(update.resolved_topic_name) if update.resolved_topic_name else asked
        edges = Edges(tuple(dag.migrated.parent_ids), tuple(dag.migrated.child_ids))
        segments = {(number := one.segment_id): _read_again(one, before.get(number), edges) for one in dag.segments}
        active = [one for one in segments.values() if one.is_active]
        if active and all(one.legacy_topic_name is not None for one in active):
            routing = replace(MOD_N, partition_hash=PartitionHash(dag.partition_hash or PartitionHash.MURMUR3))
            if asked.domain is Domain.PERSISTENT:  # message ids and names use the regular topic
                topic = asked
        else:
            routing = Routing(RoutingKind.RANGE, RingHash(dag.ring_hash) if dag.ring_hash else RingHash.LOW16)
        layout = Layout(dag.epoch, max(segments, default=-1) + 1, segments, routing)
        plan = None
        if dag.HasField("plan"):
            plan = Plan(
                dag.plan.operation_id,
                tuple(dag.plan.parent_ids),
                tuple(read_segment(one) for one in dag.plan.children),
                read_brokers(dag.plan.child_brokers),
            )
    except (Error, ValueError) as cause:
        raise UnreadableLayout(f"the layout of {asked} cannot be read: {cause}") from cause
    return TopicView(
        topic,
        layout,
        0 if routing.kind is RoutingKind.MOD_N else dag.incarnation,  # a migration that runs may still be undone
        plan,
        read_brokers(dag.segment_brokers),
        BrokerUrls(dag.controller_broker_url, dag.controller_broker_url_tls),
        is_pushed=routing.kind is RoutingKind.RANGE or bool(dag.partition_hash),
    )


class Edges:
    """The edges of a migration, which a layout names once. Its segments share the two tuples."""

    def __init__(self, parent_ids: tuple[int, ...] = (), child_ids: tuple[int, ...] = ()) -> None:
        self.all = self._parents, self._children = parent_ids, child_ids
        self._is_parent, self._is_child = frozenset(parent_ids), frozenset(child_ids)

    def parents_of(self, one: pb.SegmentInfoProto) -> tuple[int, ...]:
        return self._parents if one.segment_id in self._is_child else tuple(one.parent_ids)

    def children_of(self, one: pb.SegmentInfoProto) -> tuple[int, ...]:
        return self._children if one.segment_id in self._is_parent else tuple(one.child_ids)


def _read_again(one: pb.SegmentInfoProto, known: Segment | None, edges: Edges) -> Segment:
    text = one.SerializeToString(), edges.all
    if known is not None and known.forms.get(_read_again) == text:
        return known
    segment = read_segment(one, edges)
    segment.forms[_read_again] = text
    return segment


NO_EDGES = Edges()


def read_segment(one: pb.SegmentInfoProto, edges: Edges = NO_EDGES) -> Segment:
    last = one.last_position if one.HasField("last_position") else None
    return Segment(
        one.segment_id,
        HashRange(one.hash_start, one.hash_end),
        SegmentState.ACTIVE if one.state == pb.ACTIVE else SegmentState.SEALED,
        edges.parents_of(one),
        edges.children_of(one),
        one.created_at_epoch,
        one.sealed_at_epoch if one.HasField("sealed_at_epoch") else NOT_SEALED,
        one.created_at_ms,
        one.sealed_at_ms if one.HasField("sealed_at_ms") else NOT_SEALED,
        None if last is None else Position(signed(last.ledgerId), signed(last.entryId)),
        one.legacy_topic_name or None,
        tuple(one.entry_bucket_splits),
    )


def read_brokers(brokers: Iterable[pb.SegmentBrokerAddress]) -> dict[int, BrokerUrls]:
    return {one.segment_id: BrokerUrls(one.broker_url, one.broker_url_tls) for one in brokers}


class LayoutFilter:
    """The current view, out of all that were received. Epochs only grow within one incarnation of a topic."""

    def __init__(self) -> None:
        self.view: TopicView | None = None

    def accept(self, seen: TopicView) -> bool:
        """Returns True if it is new. `view` is set then, with a new generation if the topic was created again."""
        known = self.view
        if known is None:
            self.view = seen
            return True
        is_other = _is_another_topic(known, seen)
        if not is_other and seen.layout.epoch < known.layout.epoch:
            return False
        if seen.is_synthetic and known.is_synthetic and not is_other:
            if not seen.reroutes(known) and seen.plan == known.plan:
                return False
        self.view = replace(seen, generation=known.generation + is_other)
        return True


def _is_another_topic(known: TopicView, seen: TopicView) -> bool:
    """True if the topic was deleted and created again. A migration is not: its parents are the former partitions."""
    if known.incarnation and seen.incarnation:
        return known.incarnation != seen.incarnation
    if seen.is_synthetic:
        if known.is_synthetic:  # partitions are only added; times of synthetic layouts mean nothing
            return len(seen.layout.active) < len(known.layout.active)
        return True
    if known.is_synthetic:
        names = {one.legacy_topic_name for one in seen.layout.segments.values()}
        return not names.issuperset(one.legacy_topic_name for one in known.layout.active)
    both = known.layout.segments.keys() & seen.layout.segments.keys()
    return any(
        known.layout[one].created_at_ms != seen.layout[one].created_at_ms
        or known.layout[one].hash_range != seen.layout[one].hash_range
        for one in both
    )
