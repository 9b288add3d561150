"""The port between a controller and the owners of its segments: requests, answers, errors, events. Knows no transport.

A request is a value; `SegmentHost.ask` brings it to the segment's owner and answers. Three rules make a lost answer, a
repeated request and a leader that is none any more harmless. Every implementation keeps them, durably:

* **Mandates.** A segment remembers the highest mandate it was asked with, also when it does not exist (any more), and
  refuses lower ones: a late request of a former leader, or one that its leader has given up, can do nothing.
* **Repeatable.** What is done stays done, and the answer is the same: a lost answer neither stops an operation nor does
  it twice.
* **Incarnations.** A request for another life of the topic is refused: a topic created again is not mixed up with
  the one that was deleted.

Terms grow per topic *name*, so they fence across incarnations too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from anabranch.model.errors import Error, NotFound
from anabranch.model.names import TopicName
from anabranch.model.position import Position


# errors ---------------------------------------------------------------------------------------------------------------
class HostError(Error):
    """A segment's owner refused, or could not be asked."""

    code = "segment-host"


class StaleTerm(HostError):
    """A newer leader has spoken: whoever is told this leads no longer."""

    code = "stale-term"


class StaleRequest(HostError):
    """A later request of the same leader was here first. Sent again, with a new number, it will be served."""

    code, retryable = "overtaken", True


class SegmentMissing(NotFound):
    """The owner has no such segment (not yet, or not any more)."""

    code = "segment-missing"


class CursorMissing(NotFound):
    """The segment has no cursor of that subscription."""

    code = "cursor-missing"


class SegmentSealed(HostError):
    """Nothing can be published here any more: go to the children."""

    code = "segment-sealed"


class OtherIncarnation(HostError):
    """The segment belongs to another life of the topic, which must be deleted first."""

    code, retryable = "other-incarnation", True


class HostUnavailable(HostError):
    """The owner could not be asked; nothing happened."""

    code, retryable = "segment-host-unavailable", True


class HostOutcomeUnknown(HostUnavailable):
    """The request left and no answer came: it may have happened, or may still happen. Ask again."""

    code = "segment-host-outcome-unknown"


# values ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, order=True)
class FencingToken:
    """In whose name, and which request of theirs: the term of the leader, and a number that grows within it.

    A request that is sent again because no answer came gets a new number: so the first one, should it still be under
    way, can do nothing after it.
    """

    term: int
    number: int


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """One segment as its owner knows it: `name` is what `backing_topic` answered."""

    name: TopicName
    incarnation: int
    segment_id: int

    def __str__(self) -> str:
        return f"segment {self.segment_id}"


class Start(StrEnum):
    """Where a new cursor begins."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FIRST = "first"  # where the first consumer of it says; until then nothing is passed over


@dataclass(frozen=True, slots=True)
class CursorSpec:
    subscription: str
    start: Start


# requests -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Create:
    """The segment exists with at least these cursors; cursors that exist stay where they are. Answered by Done."""

    operation: str
    segment: SegmentRef
    cursors: tuple[CursorSpec, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Changes nothing but the mandate that the segment remembers. Answered by Status."""

    operation: str
    segment: SegmentRef


@dataclass(frozen=True, slots=True)
class Seal:
    """Nothing is accepted any more. The owner tells its producers who the children are. Answered by SealFacts."""

    operation: str
    segment: SegmentRef
    children: tuple[SegmentRef, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """The segment is gone, cursors and data, whether it was there or not. Answered by Done."""

    operation: str
    segment: SegmentRef


@dataclass(frozen=True, slots=True)
class CreateCursor:
    """Answered by Done; SegmentMissing when the segment is not there."""

    operation: str
    segment: SegmentRef
    cursor: CursorSpec


@dataclass(frozen=True, slots=True)
class DenyCursor:
    """The answer to a SubscriptionSeen that makes nothing: whoever waits there is told why. Answered by Done."""

    operation: str
    segment: SegmentRef
    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteCursor:
    """Consumers of it are closed. Answered by Done, also when cursor or segment are not there."""

    operation: str
    segment: SegmentRef
    subscription: str


@dataclass(frozen=True, slots=True)
class Seek:
    """The cursor goes to the first entry published at or after `publish_ms`; done once per operation id. Of an ordered
    subscription, assignments below `generation` are over with it (see CloseReader). Answered by Moved.
    """

    operation: str
    segment: SegmentRef
    subscription: str
    publish_ms: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class ClearBacklog:
    """The cursor goes behind the last entry; done once per operation id."""

    operation: str
    segment: SegmentRef
    subscription: str


@dataclass(frozen=True, slots=True)
class CloseReader:
    """Assignments below `generation` are over: consumers that were let in under one are closed, and none is let in any
    more (`fence.py`); durable before it is answered, by Done. Done as well when nobody or nothing is there.
    """

    operation: str
    segment: SegmentRef
    subscription: str
    consumer: str  # the member it is about, for people
    generation: int


@dataclass(frozen=True, slots=True)
class GrantReader:
    """The member has the segment since `generation`, and cannot say so itself. Others are let in no more under a lower
    one, and none that says no generation; who reads still is not closed. Answered by Done.
    """

    operation: str
    segment: SegmentRef
    subscription: str
    consumer: str
    generation: int


@dataclass(frozen=True, slots=True)
class Hold:
    """A checkpoint group, which has no cursor, needs what comes behind `position`; None: nothing here. DeleteCursor
    ends it too. Answered by Done; SegmentMissing when the segment is not there."""

    operation: str
    segment: SegmentRef
    subscription: str
    position: Position | None


Request = (
    Create
    | Fence
    | Seal
    | Delete
    | CreateCursor
    | DenyCursor
    | DeleteCursor
    | Seek
    | ClearBacklog
    | CloseReader
    | GrantReader
    | Hold
)


# answers --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for is so."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The cursor is where it was asked to go, or was there and has gone on since."""

    is_drained: bool  # sealed, and nothing is left
    rewinds: int  # as in Drained and Refilled


@dataclass(frozen=True, slots=True)
class SealFacts:
    """How a sealed segment ended. `last_position` is EARLIEST when nothing was ever published."""

    last_position: Position
    sealed_at_ms: int
    operation: str
    sequence_ids: tuple[tuple[str, int], ...] = ()  # producer name -> its last persisted sequence id


@dataclass(frozen=True, slots=True)
class Status:
    """What is there."""

    exists: bool
    sealed: SealFacts | None = None
    cursors: frozenset[str] = frozenset()
    drained: frozenset[tuple[str, int]] = frozenset()  # subscriptions that are through, with their rewinds


Answer = Done | Moved | SealFacts | Status


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class CursorStats:
    """Of a subscription, or of what a checkpoint group holds."""

    backlog: int  # messages
    consumers: int
    position: Position | None = None  # the last entry that is passed; None: the owner did not say


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """How a segment is used: a look, no request; it raises no mandate."""

    rates_10s: Rates
    rates_60s: Rates
    producers: int
    messages: int  # stored
    bytes: int
    subscriptions: Mapping[str, CursorStats]


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Drained:
    """A sealed segment has nothing left for this subscription: durable there before it is told."""

    segment: SegmentRef
    subscription: str
    rewinds: int  # how often its cursor was taken back so far: older news is no news


@dataclass(frozen=True, slots=True)
class Refilled:
    """A seek took the cursor of a drained segment back."""

    segment: SegmentRef
    subscription: str
    rewinds: int  # this time included


@dataclass(frozen=True, slots=True)
class SubscriptionSeen:
    """Somebody subscribes durably to the segment by a name that it has no cursor of: the registry decides."""

    segment: SegmentRef
    subscription: str
    is_shared: bool
    start: Start


@dataclass(frozen=True, slots=True)
class ReaderLeft:
    """A client that has no word for leaving closed its reader of the segment. Only a hint: it may come again."""

    segment: SegmentRef
    subscription: str
    reader: str  # the consumer's name there


HostEvent = Drained | Refilled | SubscriptionSeen | ReaderLeft


@dataclass(frozen=True, slots=True)
class HostCapabilities:
    """What an implementation can promise beyond the requests themselves."""

    name: str
    has_drain_events: bool  # otherwise the controller asks
    has_fencing: bool  # mandates are durable; otherwise only the topic record's compare-and-set protects
    has_dedup_handover: bool  # SealFacts.sequence_ids are filled
    tells_children: bool  # producers learn their next segments from the sealing owner


class SegmentHost(Protocol):
    @property
    def capabilities(self) -> HostCapabilities: ...

    async def ask(self, token: FencingToken, request: Request) -> Answer:
        """Raises HostError, SegmentMissing or CursorMissing; never waits longer than the host's own deadline."""

    async def measure(self, segments: Sequence[SegmentRef]) -> tuple[SegmentStats | None, ...]:
        """In their order; None for one that is not there, or whose owner did not answer in time. Never raises."""

    def listen(self, callback: Callable[[HostEvent], None]) -> Callable[[], None]:
        """Every event of every segment from now on; the answer ends it. Events may be repeated, never lost."""
