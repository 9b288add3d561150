"""Events and effects of `GroupState`. Values only.

Its parts (sessions, drain tracker, assignment) define their own events and effects; some pass through unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.controller.events import Halt, Halted, LeadershipLost, Resume, Resumed, StepDown, Version
from anabranch.controller.group import assignment as assigning
from anabranch.controller.group import consumer_sessions as sessions
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group.assignment import AwaitRelease
from anabranch.controller.group.checkpoint_progress import Report
from anabranch.controller.group.consumer_sessions import Connection, Fence, Refuse, WakeAt, Welcome
from anabranch.controller.group.group_record import GroupRecord


# events (beside those of sessions, Holding, Released, LeadershipLost) -------------------------------------------------
@dataclass(frozen=True, slots=True)
class GroupSeen:
    record: GroupRecord | None
    version: Version | None


@dataclass(frozen=True, slots=True)
class GroupSaved:
    version: Version


@dataclass(frozen=True, slots=True)
class GroupDoubtful:
    """The write lost a race, or its outcome is unknown. The next read decides."""


@dataclass(frozen=True, slots=True)
class GroupUnread:
    """The store did not answer the read. Sent after a pause, so the read can be repeated."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """A member of a checkpoint group reports its progress."""

    consumer: str
    report: Report


@dataclass(frozen=True, slots=True)
class ProgressDue:
    """The time of a SaveProgressAt has come."""


@dataclass(frozen=True, slots=True)
class ReleaseOverdue:
    """The deadline of an AwaitRelease has passed."""

    segment_id: int
    generation: int
    consumer: str


@dataclass(frozen=True, slots=True)
class ConsumerClosed:
    """The answer to CloseConsumer: the consumer no longer reads there, and cannot return under its old generation."""

    request: CloseConsumer


Event = (
    GroupSeen
    | GroupSaved
    | GroupDoubtful
    | GroupUnread
    | Halt
    | Resume
    | Progressed
    | ProgressDue
    | ReleaseOverdue
    | ConsumerClosed
    | draining.Event
    | assigning.Holding
    | assigning.Released
    | sessions.Event
    | LeadershipLost
)


# effects (beside Welcome, Fence, Refuse, WakeAt, AwaitRelease, StepDown) ----------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Answered by GroupSeen or GroupUnread."""


@dataclass(frozen=True, slots=True)
class SaveGroup:
    """Compare-and-set (`expected` None: the record must not exist). Answered by GroupSaved or GroupDoubtful."""

    record: GroupRecord
    expected: Version | None


@dataclass(frozen=True, slots=True)
class SaveProgressAt:
    """Send ProgressDue at this time. It limits how often frequent progress reports are written."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class AskDrained:
    """Ask the owners once which of these sealed segments are drained. Answered by Drained for each that is."""

    segment_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """Send a consumer's complete assignment to its connection. `after`: by followed segment, its undrained ancestors,
    which the consumer has too and must read first."""

    connection: Connection
    consumer: str
    generation: int
    segment_ids: tuple[int, ...]
    after: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    buckets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by segment read by entry buckets: which


@dataclass(frozen=True, slots=True)
class CloseConsumer:
    """The segment's owner closes this consumer (`segment_id` None: all owners do). Answered by ConsumerClosed.

    Only readers admitted below `generation` are closed and kept out. A consumer that has registered again meanwhile has
    a higher generation and stays.
    """

    consumer: str
    segment_id: int | None
    generation: int


DurableEffect = Halted | Resumed | Push | Welcome | Fence | Refuse | AwaitRelease | CloseConsumer
"""Effects that wait until the record behind them is saved."""

Effect = ReadGroup | SaveGroup | SaveProgressAt | AskDrained | WakeAt | StepDown | DurableEffect
