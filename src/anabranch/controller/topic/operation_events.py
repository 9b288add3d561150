"""What goes into the operation workflow and what comes out of it: calls, events, effects. Values only.

Whoever runs the workflow (`operation.py`) does an effect and hands its outcome back as the event that the effect names.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.controller.events import LeadershipLost, StepDown, Version
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import Answer, Request
from anabranch.model.errors import Busy, Error


class TooManyCalls(Busy):
    """So many operations of this topic are waiting for their turn that no further one is taken."""

    code = "operation-running"


class OperationAborted(Error):
    """Given up before anything was sealed; the topic is as it was."""

    code, retryable = "operation-aborted", True


# calls: what people and policies want ---------------------------------------------------------------------------------
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
    """Garbage collection decided that these sealed segments may go."""

    operation_id: str
    segment_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteCall:
    """The whole topic; with `incarnation` only if it is (still) that one, so that it may be asked for again."""

    operation_id: str
    incarnation: int | None = None


Call = SplitCall | MergeCall | PruneCall | DeleteCall


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The record as it stands; None when there is none."""

    record: TopicRecord | None
    version: Version


@dataclass(frozen=True, slots=True)
class RecordUnread:
    """The store did not answer a read."""


@dataclass(frozen=True, slots=True)
class RecordSaved:
    """The write that was asked for last is in the store."""

    version: Version


@dataclass(frozen=True, slots=True)
class RecordRemoved:
    """The removal that was asked for is done, or was done already."""


@dataclass(frozen=True, slots=True)
class RecordDoubtful:
    """Somebody else wrote, or nobody knows whether ours is there: what is read next decides."""


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
    """A while has passed since the failure: it may be tried again."""

    what: ReadRecord | Request


@dataclass(frozen=True, slots=True)
class Asked:
    call: Call


@dataclass(frozen=True, slots=True)
class SubscriptionsKnown:
    """Everything that is in the registry, durably; told again at every change."""

    subscriptions: frozenset[str]


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
    | LeadershipLost
)


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Up to date, not from a cache. Answered by RecordSeen or RecordUnread."""


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """Compare-and-set. Answered by RecordSaved or RecordDoubtful."""

    record: TopicRecord
    expected: Version
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveRecord:
    """What lies below it first, then, by compare-and-set, the record. Answered by RecordRemoved or RecordDoubtful.

    Below it, only what is of this incarnation: whoever does this late must not hurt the topic's next life.
    """

    incarnation: int
    expected: Version


@dataclass(frozen=True, slots=True)
class Ask:
    """Of the owner of the segment, under this leader's mandate. Answered by Answered or Failed."""

    request: Request


@dataclass(frozen=True, slots=True)
class Rest:
    """Longer with every failure. Answered by Rested."""

    what: ReadRecord | Request
    failures: int


@dataclass(frozen=True, slots=True)
class TellPlan:
    """An operation runs on the layout of this record: watchers may prepare themselves for the planned children."""

    record: TopicRecord


@dataclass(frozen=True, slots=True)
class TellLayout:
    """The layout of this record holds and nothing runs: push it to the watchers, compute assignments."""

    record: TopicRecord


@dataclass(frozen=True, slots=True)
class TellDeleted:
    """The topic is gone."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of a call; `error` is None when what it asked for is so. `epoch` is that of the layout after it."""

    operation_id: str
    error: Error | None
    epoch: int


Effect = ReadRecord | SaveRecord | RemoveRecord | Ask | Rest | TellPlan | TellLayout | TellDeleted | Reply | StepDown
