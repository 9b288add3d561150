"""What brokers may ask of the controller, and what it tells them: the ports between serving and deciding. Values only.

Commands of clients, admin calls and errands between brokers all end in these calls. Names are `topic://` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from anabranch.controller.group.checkpoint_progress import Report
from anabranch.controller.operation_metrics import Totals
from anabranch.controller.placement import Reachable
from anabranch.controller.records.subscription_registry import SubscriptionKind
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.records.topic_record_codec import record_json
from anabranch.controller.segment_host import SegmentStats, Start
from anabranch.model.errors import AlreadyExists, Error, NotReady
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.reached import Reached
from anabranch.model.replacement import Replacement
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
    "Registration",
    "Report",
    "ScalableTopics",
    "ConsumerRegistration",
    "Start",
    "SubscriptionKind",
    "Totals",
    "TopicExists",
    "TopicRecord",
    "record_json",
    "topic_exists",
]


class LedElsewhere(NotReady):
    """Another broker leads this topic. `address` is who, as far as is known."""

    code = "not-leader"

    def __init__(self, topic: TopicName, address: Reachable | None) -> None:
        where = "nobody at the moment" if address is None else address.service_url
        super().__init__(f"this broker is not the leader of {topic}; it is led by {where}")
        self.topic, self.address = topic, address


@dataclass(frozen=True, slots=True)
class AssignedSegments:
    """What a consumer is to read, complete, as of `generation`."""

    topic: TopicName
    incarnation: int
    epoch: int
    generation: int
    segments: tuple[Segment, ...]
    reached: Mapping[int, Reached] = field(default_factory=dict)  # of a checkpoint group: how far it was, by segment
    void_below: int = 0  # what was given under a lower generation was read before the last seek


class TopicExists(AlreadyExists):
    """There is a scalable topic of that name."""

    code = "topic-exists"


def topic_exists(error: Error) -> TopicExists | None:
    """An error that travelled between brokers, if it said that."""
    return TopicExists(error.reason) if error.code == TopicExists.code else None


class AssignmentListener(Protocol):
    """The connection of one consumer of an ordered subscription."""

    @property
    def reports_releases(self) -> bool:
        """Does it tell when it has let go of a segment? Clients of Pulsar have no word for it."""

    def assigned(self, assignment: AssignedSegments) -> None:
        """It has another assignment now."""

    def ended(self, error: Error) -> None:
        """Nothing more is told through this link: the topic is gone, or is led elsewhere."""


@dataclass(frozen=True, slots=True)
class LayoutView:
    """What a watcher of a layout is told: complete each time."""

    topic: TopicName  # as it is really called
    layout: Layout
    incarnation: int = 0
    operation_id: str = ""  # of the change that runs; empty: none does
    plan: Replacement | None = None
    controller: Reachable | None = None
    brokers: Mapping[int, Reachable] = field(default_factory=dict)  # by segment id, planned children too
    is_synthetic: bool = False  # a regular topic, seen as segments


class LayoutListener(Protocol):
    def layout_changed(self, view: LayoutView) -> None:
        """In the order in which it changed; what was overtaken meanwhile is left out."""

    def layout_failed(self, error: Error) -> None:
        """The watch is over: the topic does not exist (any more), or may not be created."""


class LayoutWatch(Protocol):
    def close(self) -> None:
        """Nothing is told any more. Safe to repeat."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a consumer of an ordered subscription says when it comes."""

    subscription: str
    kind: SubscriptionKind
    consumer: str
    start: Start
    held: tuple[int, ...] = ()
    generation: int | None = None


class ConsumerRegistration(Protocol):
    """A consumer that is registered."""

    def released(self, segment_ids: Iterable[int], generation: int) -> None: ...

    async def progressed(self, reports: Iterable[Report]) -> None:
        """Checkpoint groups: how far this member is with segments that it has. Returns when that is durable."""

    async def leave(self) -> None:
        """Now, without grace. Returns when that is durable."""

    def disconnected(self) -> None:
        """Its grace period begins. Safe to repeat."""


@dataclass(frozen=True, slots=True)
class LedGroup:
    """An ordered subscription of a topic that is led here."""

    subscription: str
    consumers: int
    generation: int  # one more with every assignment
    drained: int  # segments it is through with


@dataclass(frozen=True, slots=True)
class LedTopic:
    """Figures of a topic that is led here."""

    topic: TopicName
    epoch: int
    active: int
    sealed: int
    is_changing: bool  # a split, merge or deletion runs
    groups: tuple[LedGroup, ...]


class ScalableTopics(Protocol):
    """The controllers of one broker. Calls that need the leader raise LedElsewhere where another broker is."""

    @property
    def totals(self) -> Totals: ...

    def led(self) -> list[LedTopic]:
        """What is led here now."""

    @property
    def is_enabled(self) -> bool: ...

    def watch(self, topic: TopicName, listener: LayoutListener, *, create: bool) -> LayoutWatch:
        """On any broker; answered through the listener, also the first time."""

    async def register(
        self, topic: TopicName, wish: Registration, listener: AssignmentListener
    ) -> tuple[AssignedSegments, ConsumerRegistration]: ...

    def new_id(self) -> str:
        """For an operation: nobody else has it."""

    async def create(self, topic: TopicName, segments: int, properties: Mapping[str, str]) -> None: ...

    async def delete(self, topic: TopicName) -> None: ...

    async def activate(self, topic: TopicName) -> None:
        """Somebody needs the topic: it is led when this returns."""

    async def record(self, topic: TopicName) -> TopicRecord:
        """On any broker. Raises TopicGone."""

    async def figures(self, topic: TopicName, record: TopicRecord) -> Mapping[int, SegmentStats]:
        """On any broker: how the segments are used; those whose owner does not answer are missing."""

    async def names(self, namespace: str, filters: Mapping[str, str]) -> list[str]:
        """On any broker: the topics that have all these properties."""

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

    async def subscribe(self, topic: TopicName, name: str, kind: SubscriptionKind, start: Start) -> None: ...

    async def unsubscribe(self, topic: TopicName, name: str) -> None: ...

    async def move(self, topic: TopicName, name: str, publish_ms: int | None) -> None:
        """Seek to a publish time; None: behind everything."""

    async def state(self, topic: TopicName) -> dict[str, Any]:
        """What the leader knows: running operation, subscriptions, sessions, assignments, drained segments."""
