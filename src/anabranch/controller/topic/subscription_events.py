"""Calls, events and effects of the subscription workflow. Values only.

The shell (`topic_controller.py`) performs an effect and delivers its outcome as the event that the effect names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.controller.events import Halt, Halted, LeadershipLost, Resume, Resumed, StepDown, Version
from anabranch.controller.records.subscription_registry import Registry, SegmentPosition, SubscriptionKind
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import Request, Start
from anabranch.controller.topic.operation_events import Answered, Ask, Failed, Reply
from anabranch.model.errors import AlreadyExists, Busy


class OtherKind(AlreadyExists):
    """The subscription exists with another type."""

    code = "subscription-of-other-type"


class SubscriptionBusy(Busy):
    """The subscription is being deleted or moved."""

    code = "subscription-busy"


# calls ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SubscribeCall:
    operation_id: str
    name: str
    kind: SubscriptionKind
    start: Start
    count_max: int = 0
    """Subscriptions with cursors that the topic may have; 0: no limit."""


@dataclass(frozen=True, slots=True)
class UnsubscribeCall:
    operation_id: str
    name: str


@dataclass(frozen=True, slots=True)
class MoveCall:
    """A seek to a publish time, or behind positions; with neither it clears the backlog."""

    operation_id: str
    name: str
    publish_ms: int | None
    positions: tuple[SegmentPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterCall:
    """The subscriptions of a regular topic that is being migrated. All its partitions have their cursors, and its
    children are created with them. Answered by Registered."""

    operation_id: str
    kinds: Mapping[str, SubscriptionKind]


SubscriptionCall = SubscribeCall | UnsubscribeCall | MoveCall | RegisterCall


# events (beside Answered, Failed, LeadershipLost) ---------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RegistrySeen:
    """The current registry; None and no version if there is none."""

    registry: Registry | None
    version: Version | None


@dataclass(frozen=True, slots=True)
class RegistryUnread:
    """The store did not answer a read."""


@dataclass(frozen=True, slots=True)
class RegistrySaved:
    version: Version


@dataclass(frozen=True, slots=True)
class RegistryDoubtful:
    """The write lost a race, or its outcome is unknown. The next read decides."""


@dataclass(frozen=True, slots=True)
class LayoutKnown:
    """The topic's record, at every AnnouncePlan and AnnounceLayout of the workflow."""

    record: TopicRecord


@dataclass(frozen=True, slots=True)
class CursorRested:
    what: ReadRegistry | Request


@dataclass(frozen=True, slots=True)
class SubscriptionAsked:
    call: SubscriptionCall


Event = (
    RegistrySeen
    | RegistryUnread
    | RegistrySaved
    | RegistryDoubtful
    | LayoutKnown
    | CursorRested
    | Halted
    | Resumed
    | SubscriptionAsked
    | Answered
    | Failed
    | LeadershipLost
)


# effects (beside Ask, Reply, StepDown) --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadRegistry:
    """Answered by RegistrySeen or RegistryUnread."""


@dataclass(frozen=True, slots=True)
class SaveRegistry:
    """Compare-and-set (`expected` None: must not exist). Answered by RegistrySaved or RegistryDoubtful."""

    registry: Registry
    expected: Version | None
    reason: str


@dataclass(frozen=True, slots=True)
class CursorRest:
    """Answered by CursorRested."""

    what: ReadRegistry | Request
    failures: int


@dataclass(frozen=True, slots=True)
class AnnounceSubscriptions:
    """For the operation workflow (SubscriptionsKnown): the subscriptions whose cursors new segments get."""

    subscriptions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Registered:
    """For the operation workflow (SubscriptionsRegistered): the RegisterCall of this operation is done."""

    operation_id: str


Effect = (
    ReadRegistry
    | SaveRegistry
    | CursorRest
    | AnnounceSubscriptions
    | Registered
    | Halt
    | Resume
    | Ask
    | Reply
    | StepDown
)
