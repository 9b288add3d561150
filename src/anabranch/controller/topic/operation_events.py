"""Calls, events and effects of the operation workflow. Values only.

The shell (`topic_controller.py`) performs an effect and delivers its outcome as the event that the effect names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.controller.events import LeadershipLost, StepDown, Version
from anabranch.controller.records.subscription_registry import SubscriptionKind
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import Answer, Request
from anabranch.model.errors import Busy, Error


class TooManyCalls(Busy):
    """Too many operations of this topic are waiting."""

    code = "operation-running"


class OperationAborted(Error):
    """Aborted before any segment was sealed; the topic is unchanged."""

    code, retryable = "operation-aborted", True


class MigrationUndone(Error):
    """The migration was undone before any partition was sealed; the regular topic is as it was."""

    code = "migration-undone"


# calls of administrators and policies ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SplitCall:
    operation_id: str
    segment_id: int
    ways: int = 2
    points: tuple[int, ...] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MergeCall:
    operation_id: str
    segment_ids: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PruneCall:
    """Garbage collection has decided to delete these sealed segments."""

    operation_id: str
    segment_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteCall:
    """Deletes the topic; with `incarnation` only that one, so that the call can be repeated."""

    operation_id: str
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """Sets the topic's auto-scale policy; None removes it."""

    operation_id: str
    policy: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class MigrationCall:
    """Waits for the end of the migration that the topic's first record has planned."""

    operation_id: str


Call = SplitCall | MergeCall | PruneCall | DeleteCall | PolicyCall | MigrationCall


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The current record; None if there is none."""

    record: TopicRecord | None
    version: Version


@dataclass(frozen=True, slots=True)
class RecordUnread:
    """The store did not answer a read."""


@dataclass(frozen=True, slots=True)
class RecordSaved:
    """The last write is in the store."""

    version: Version


@dataclass(frozen=True, slots=True)
class RecordRemoved:
    """The record is deleted, or was deleted before."""


@dataclass(frozen=True, slots=True)
class RecordDoubtful:
    """Another leader wrote, or the outcome of the write is unknown. The next read decides."""


@dataclass(frozen=True, slots=True)
class Answered:
    request: Request
    answer: Answer


@dataclass(frozen=True, slots=True)
class Failed:
    request: Request
    error: Error


@dataclass(frozen=True, slots=True)
class Rested:
    """The pause after a failure is over; it can be tried again."""

    what: ReadRecord | Request


@dataclass(frozen=True, slots=True)
class Asked:
    call: Call


@dataclass(frozen=True, slots=True)
class SubscriptionsKnown:
    """All subscriptions in the registry, durably. Repeated at every change."""

    subscriptions: frozenset[str]


@dataclass(frozen=True, slots=True)
class SubscriptionsRegistered:
    """The subscriptions of RegisterSubscriptions are in the registry; SubscriptionsKnown came before."""

    operation_id: str


Event = (
    RecordSeen
    | RecordUnread
    | RecordSaved
    | RecordRemoved
    | RecordDoubtful
    | Answered
    | Failed
    | Rested
    | Asked
    | SubscriptionsKnown
    | SubscriptionsRegistered
    | LeadershipLost
)


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A linearizable read. Answered by RecordSeen or RecordUnread."""


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """Compare-and-set. Answered by RecordSaved or RecordDoubtful."""

    record: TopicRecord
    expected: Version
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveRecord:
    """Deletes the keys below the record, then, by compare-and-set, the record. Answered by RecordRemoved or
    RecordDoubtful.

    Only keys of this incarnation are deleted, so that a late removal does not touch the next incarnation.
    """

    incarnation: int
    expected: Version


@dataclass(frozen=True, slots=True)
class RegisterSubscriptions:
    """For the subscription workflow: the subscriptions that the regular topic had. All its partitions have their
    cursors. Safe to repeat. Answered by SubscriptionsRegistered."""

    operation_id: str
    kinds: Mapping[str, SubscriptionKind]


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the request to the segment's owner, with this leader's fencing token. Answered by Answered or Failed."""

    request: Request


@dataclass(frozen=True, slots=True)
class Rest:
    """Pause, longer with every failure. Answered by Rested."""

    what: ReadRecord | Request
    failures: int


@dataclass(frozen=True, slots=True)
class AnnouncePlan:
    """An operation runs on the layout of this record. Watchers can prepare for the planned children."""

    record: TopicRecord


@dataclass(frozen=True, slots=True)
class AnnounceLayout:
    """The layout of this record is valid and no operation runs: push it to watchers, compute assignments."""

    record: TopicRecord


@dataclass(frozen=True, slots=True)
class AnnounceDeleted:
    """The topic is deleted."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a call; `error` None: success. `epoch` is the layout epoch after it."""

    operation_id: str
    error: Error | None
    epoch: int


Effect = (
    ReadRecord
    | SaveRecord
    | RemoveRecord
    | RegisterSubscriptions
    | Ask
    | Rest
    | AnnouncePlan
    | AnnounceLayout
    | AnnounceDeleted
    | Reply
    | StepDown
)
