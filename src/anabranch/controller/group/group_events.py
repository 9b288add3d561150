"""What goes into the group of an ordered subscription and what comes out of it: events, effects. Values only.

The machine is `group`, its shell `members`. Events of the parts (sessions, drain gate, assignment) stand beside these.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.controller.events import Halt, Halted, LeadershipLost, Resume, Resumed, StepDown, Version
from anabranch.controller.group import assignment as assigning
from anabranch.controller.group import consumer_sessions as seating
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group.assignment import AwaitRelease
from anabranch.controller.group.checkpoint_progress import Report
from anabranch.controller.group.consumer_sessions import Connection, Fence, Refuse, WakeAt, Welcome
from anabranch.controller.group.group_record import GroupRecord
from anabranch.model.layout import Layout


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
    """Raced, or nobody knows: what is read next decides."""


@dataclass(frozen=True, slots=True)
class GroupUnread:
    """The store did not answer, and a while has passed: it may be tried again."""


@dataclass(frozen=True, slots=True)
class LayoutTold:
    layout: Layout


@dataclass(frozen=True, slots=True)
class Progressed:
    """A member of a checkpoint group says how far it is."""

    consumer: str
    report: Report


@dataclass(frozen=True, slots=True)
class ProgressDue:
    """The moment of a SaveProgressAt has come."""


@dataclass(frozen=True, slots=True)
class ReleaseOverdue:
    """The deadline of an AwaitRelease has passed."""

    segment_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class ConsumerClosed:
    """The answer to CloseConsumer: it reads there no longer, and its old attachment cannot come back."""

    request: CloseConsumer


Event = (
    GroupSeen
    | GroupSaved
    | GroupDoubtful
    | GroupUnread
    | LayoutTold
    | Halt
    | Resume
    | Progressed
    | ProgressDue
    | ReleaseOverdue
    | ConsumerClosed
    | draining.Drained
    | draining.Refilled
    | assigning.Holding
    | assigning.Released
    | seating.Event
    | LeadershipLost
)


# effects (beside Welcome, Fence, Refuse, WakeAt, AwaitRelease, StepDown) ----------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Answered by GroupSeen or GroupUnread."""


@dataclass(frozen=True, slots=True)
class SaveGroup:
    """Compare-and-set (None: there must be none). Answered by GroupSaved or GroupDoubtful."""

    record: GroupRecord
    expected: Version | None


@dataclass(frozen=True, slots=True)
class SaveProgressAt:
    """Send ProgressDue then. What members say often is written seldom."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class AskDrained:
    """Of the owners, once: which of these sealed segments are drained. Answered by Drained for those that are."""

    segment_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """The complete assignment of a consumer, for its connection."""

    connection: Connection
    consumer: str
    generation: int
    segment_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseConsumer:
    """The owner of the segment closes this consumer there; None: all owners do. Answered by ConsumerClosed.

    Meant is what was let in under a lower generation: that must not come back either. A consumer that has registered
    again meanwhile has a higher one and is not hurt.
    """

    consumer: str
    segment_id: int | None
    generation: int


Told = Halted | Resumed | Push | Welcome | Fence | Refuse | AwaitRelease | CloseConsumer
Effect = ReadGroup | SaveGroup | SaveProgressAt | AskDrained | WakeAt | StepDown | Told
