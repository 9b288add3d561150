"""The port between brokers and the controller: calls, listeners and their values.

Client commands, admin calls and calls between brokers all end in `ScalableTopics`. Names are `topic://` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from anabranch.controller.autoscale.scaling_totals import ScalingTotals
from anabranch.controller.events import SessionTaken
from anabranch.controller.group.checkpoint_progress import Report
from anabranch.controller.operation_metrics import Totals
from anabranch.controller.placement import Reachable
from anabranch.controller.records.subscription_registry import SegmentPosition, SubscriptionKind
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.records.topic_record_codec import record_json
from anabranch.controller.regular_topics import RegularTopic, regular_name
from anabranch.controller.segment_host import SegmentStats, Start
from anabranch.controller.topic.adoption import clients_text, subscription_kinds
from anabranch.controller.topic.operation_progress import MigrationStep
from anabranch.model.autoscale.policy import AutoScalePolicy
from anabranch.model.errors import AlreadyExists, Error, NotReady
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.reached import Reached
from anabranch.model.replacement import Replacement
from anabranch.model.routing import Routing
from anabranch.model.segment import Segment

__all__ = [
    "AssignedSegments",
    "AssignmentListener",
    "LayoutListener",
    "LayoutView",
    "LayoutWatch",
    "LedElsewhere",
    "LedGroup",
    "LedTopic",
    "MigrationStep",
    "RegularTopic",
    "Registration",
    "Report",
    "ScalableTopics",
    "ScalingTotals",
    "SegmentPosition",
    "ConsumerRegistration",
    "SessionTaken",
    "Start",
    "SubscriptionKind",
    "Totals",
    "TopicExists",
    "TopicRecord",
    "regular_name",
    "clients_text",
    "record_json",
    "subscription_kinds",
    "topic_exists",
]


class LedElsewhere(NotReady):
    """Another broker leads this topic. `address` is that broker's address, if known."""

    code = "not-leader"

    def __init__(self, topic: TopicName, address: Reachable | None) -> None:
        where = "it has no leader at the moment" if address is None else f"it is led by {address.service_url}"
        super().__init__(f"this broker is not the leader of {topic}; {where}")
        self.topic, self.address = topic, address


@dataclass(frozen=True, slots=True)
class AssignedSegments:
    """The complete assignment of a consumer as of `generation`."""

    topic: TopicName
    incarnation: int
    epoch: int
    generation: int
    segments: tuple[Segment, ...]
    reached: Mapping[int, Reached] = field(default_factory=dict)  # of a checkpoint group: its progress by segment
    void_below: int = 0  # messages read under a lower generation were read before the last seek
    after: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by followed segment: its undrained ancestors
    buckets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by segment read by entry buckets: which


class TopicExists(AlreadyExists):
    """A scalable topic of that name exists."""

    code = "topic-exists"


def topic_exists(error: Error) -> TopicExists | None:
    """TopicExists, if an error that came from another broker has its code."""
    return TopicExists(error.reason) if error.code == TopicExists.code else None


class AssignmentListener(Protocol):
    """Receives the assignments of one consumer of an ordered subscription."""

    @property
    def reports_releases(self) -> bool:
        """True if the client reports released segments. Pulsar's clients have no command for it."""

    def assigned(self, assignment: AssignedSegments) -> None:
        """The consumer has a new assignment."""

    def ended(self, error: Error) -> None:
        """No more assignments follow: the topic was deleted, another broker leads it, or (SessionTaken) another
        consumer has the session now."""


@dataclass(frozen=True, slots=True)
class LayoutView:
    """A topic's layout as it is sent to watchers: complete each time."""

    topic: TopicName  # the topic's own name
    layout: Layout
    incarnation: int = 0
    operation_id: str = ""  # of the running split or merge; empty: none
    plan: Replacement | None = None
    controller: Reachable | None = None
    brokers: Mapping[int, Reachable] = field(default_factory=dict)  # by segment id, including planned children
    is_synthetic: bool = False  # a regular topic, presented as segments


class LayoutListener(Protocol):
    def layout_changed(self, view: LayoutView) -> None:
        """Called in the order of changes; intermediate layouts may be left out."""

    def layout_failed(self, error: Error) -> None:
        """The watch has ended: the topic does not exist, was deleted, or may not be created."""


class LayoutWatch(Protocol):
    def close(self) -> None:
        """The listener is not called any more. Safe to repeat."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The request of a consumer to join an ordered subscription."""

    subscription: str
    kind: SubscriptionKind
    consumer: str
    start: Start
    held: tuple[int, ...] = ()
    generation: int | None = None
    continues: bool = False  # its client reads a child after the parents itself, also before they are acknowledged
    incarnation: int | None = None  # of the topic that the consumer knows; None: any
    instance: int | None = None  # of the consumer object; the same when it reconnects. None: an older client
    shares: bool = False  # it may share a segment with other consumers, by entry buckets


class ConsumerRegistration(Protocol):
    """A consumer that is registered."""

    def released(self, segment_ids: Iterable[int], generation: int) -> None: ...

    async def progressed(self, reports: Iterable[Report]) -> None:
        """Progress of a checkpoint group's member in its segments. Returns when it is durable."""

    async def leave(self) -> None:
        """Leaves at once, without a grace period. Returns when it is durable."""

    def disconnected(self) -> None:
        """The connection is closed: the grace period begins. Safe to repeat."""


@dataclass(frozen=True, slots=True)
class LedGroup:
    """An ordered subscription of a topic that is led here."""

    subscription: str
    consumers: int
    generation: int  # raised by every assignment
    drained: int  # number of drained segments
    waiting: int = 0  # number of segments that wait until their ancestors are drained


@dataclass(slots=True)
class ScalingCounts:
    """Of the auto-scaling of one topic, since this broker leads it."""

    splits: int = 0
    merges: int = 0
    split_suppressed_max_segments: int = 0  # evaluations that wanted a split and found too many segments
    merge_suppressed_max_depth: int = 0  # evaluations that wanted a merge and found too many merges among the ancestors


@dataclass(frozen=True, slots=True)
class LedTopic:
    """Statistics of a topic that is led here."""

    topic: TopicName
    epoch: int
    active: int
    sealed: int
    is_changing: bool  # a split, merge or deletion runs
    groups: tuple[LedGroup, ...]
    scaling: ScalingCounts = field(default_factory=ScalingCounts)


class ScalableTopics(Protocol):
    """The scalable topics of one broker. Calls that need the leader raise LedElsewhere if another broker leads."""

    @property
    def totals(self) -> Totals: ...

    @property
    def scaling_totals(self) -> ScalingTotals: ...

    def led(self) -> list[LedTopic]:
        """The topics that are led here now."""

    @property
    def is_enabled(self) -> bool: ...

    def watch(self, topic: TopicName, listener: LayoutListener, *, create: bool) -> LayoutWatch:
        """On any broker. The listener also gets the first layout."""

    async def register(
        self, topic: TopicName, request: Registration, listener: AssignmentListener
    ) -> tuple[AssignedSegments, ConsumerRegistration]: ...

    def new_id(self) -> str:
        """A unique operation id."""

    async def create(self, topic: TopicName, segments: int, properties: Mapping[str, str]) -> None: ...

    async def delete(self, topic: TopicName) -> None: ...

    @property
    def can_migrate(self) -> bool:
        """Whether regular topics may become scalable topics here."""

    async def migrate(
        self,
        topic: TopicName,
        old_name: TopicName,
        partitions: int,
        operation_id: str,
        *,
        routing: Routing,
        force: bool,
        kinds: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        """The regular topic is a scalable one when this returns. `partitions` 0: it is not partitioned; `kinds`: types
        of subscriptions that differ from those of their consumers. Raises MigrationUndone, TopicExists."""

    def migration_step(self, topic: TopicName) -> MigrationStep | None:
        """How far the topic's migration is; None if none runs, or the topic is not led here."""

    async def activate(self, topic: TopicName) -> None:
        """The topic is led when this returns."""

    async def record(self, topic: TopicName) -> TopicRecord:
        """On any broker. Raises TopicGone."""

    async def figures(self, topic: TopicName, record: TopicRecord) -> Mapping[int, SegmentStats]:
        """On any broker: statistics by segment; segments whose owner does not answer are missing."""

    async def names(self, namespace: str, filters: Mapping[str, str]) -> list[str]:
        """On any broker: the topics that have all these properties."""

    async def properties_in(self, namespace: str) -> Mapping[str, Mapping[str, str]]:
        """On any broker: the scalable topics of a namespace with their properties. Raises StoreUnavailable."""

    async def properties_of(self, topic: TopicName) -> Mapping[str, str] | None:
        """On any broker; None if there is no such topic. Raises StoreUnavailable."""

    async def split(
        self,
        topic: TopicName,
        segment_id: int,
        *,
        ways: int = 2,
        points: tuple[int, ...] | None = None,
        operation_id: str | None = None,
        reason: str = "",
    ) -> int:
        """The epoch after it."""

    async def merge(
        self, topic: TopicName, segment_ids: tuple[int, ...], *, operation_id: str | None = None, reason: str = ""
    ) -> int: ...

    async def auto_scale_policy(self, namespace: str, topic: TopicName | None = None) -> AutoScalePolicy:
        """On any broker: the policy in force for the topic, or (None) for topics of the namespace that set nothing.
        Raises BadPolicy if what is stored contradicts the broker's settings."""

    async def set_auto_scale_policy(self, topic: TopicName, override: Mapping[str, Any] | None) -> None:
        """The topic's level; None removes it. Raises BadPolicy."""

    async def auto_scale_status(self, topic: TopicName) -> dict[str, Any]:
        """Policy with its levels, loads, what auto-scaling would do now and why not more, and the last decisions."""

    async def try_auto_scale(self, topic: TopicName, override: Mapping[str, Any]) -> dict[str, Any]:
        """What auto-scaling would do now if the topic had this override; nothing is done. Raises BadPolicy."""

    async def check_namespace_policy(self, namespace: str, override: Mapping[str, Any] | None) -> None:
        """On any broker. Raises BadPolicy if the namespace, or a topic in it, cannot have this policy."""

    async def subscribe(self, topic: TopicName, name: str, kind: SubscriptionKind, start: Start) -> None: ...

    async def check_unused(self, topic: TopicName, name: str, besides: str | None = None) -> None:
        """Raises Busy while consumers of the subscription are attached, other than the one with this name."""

    async def unsubscribe(self, topic: TopicName, name: str, operation_id: str | None = None) -> None: ...

    async def move(
        self,
        topic: TopicName,
        name: str,
        publish_ms: int | None,
        positions: tuple[SegmentPosition, ...] = (),
        operation_id: str | None = None,
    ) -> int:
        """Seek to a publish time, or behind positions; neither: clear the backlog. Safe to repeat with the same id.
        Returns the generation below which assignments were made before it; 0 if the subscription is not ordered."""

    async def state(self, topic: TopicName) -> dict[str, Any]:
        """The leader's state: running operation, subscriptions, sessions, assignments, drained segments; and, as
        `autoScale`, a summary of `auto_scale_status`."""
