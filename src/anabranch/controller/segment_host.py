"""The port between a controller and the owners of its segments: requests, answers, errors, events.

A request is a value; `SegmentHost.ask` sends it to the segment's owner and returns the answer. Three rules make lost
answers, repeated requests and former leaders harmless. Every implementation keeps them, durably:

* **Fencing tokens.** A segment remembers the highest token it was asked with, even before it exists and after it is
  deleted, and refuses lower ones. So a late request of a former leader, or one that its leader has given up, has no
  effect.
* **Idempotence.** A repeated request changes nothing and gets the same answer. So a lost answer neither stops an
  operation nor runs it twice.
* **Incarnations.** A request for another incarnation of the topic is refused. So a topic that was created again is not
  mixed up with the deleted one.

Leader terms grow per topic *name*, so they also fence across incarnations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from anabranch.model.autoscale.load import SegmentLoad
from anabranch.model.errors import Error, NotFound
from anabranch.model.names import TopicName
from anabranch.model.position import Position


# errors ---------------------------------------------------------------------------------------------------------------
class HostError(Error):
    """A segment's owner refused, or could not be asked."""

    code = "segment-host"


class StaleTerm(HostError):
    """A newer leader has sent a request. The receiver of this error leads no longer."""

    code = "stale-term"


class StaleRequest(HostError):
    """A later request of the same leader arrived first. A retry with a new number is served."""

    code, retryable = "overtaken", True


class SegmentMissing(NotFound):
    """The owner has no such segment: not created yet, or deleted."""

    code = "segment-missing"


class CursorMissing(NotFound):
    """The segment has no cursor of that subscription."""

    code = "cursor-missing"


class SegmentSealed(HostError):
    """The segment accepts no more messages; they go to its children."""

    code = "segment-sealed"


class NotPlanned(HostError):
    """The topic's record does not want this regular topic as a segment: the migration was undone, or the topic cannot
    be migrated."""

    code = "not-planned"


class OtherIncarnation(HostError):
    """The segment belongs to another incarnation of the topic, which must be deleted first."""

    code, retryable = "other-incarnation", True


class HostUnavailable(HostError):
    """The owner could not be reached; the request was not applied."""

    code, retryable = "segment-host-unavailable", True


class HostOutcomeUnknown(HostUnavailable):
    """The request was sent and no answer came: it may have been applied, or may still be. Ask again."""

    code = "segment-host-outcome-unknown"


# values ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, order=True)
class FencingToken:
    """Orders requests: the leader's term, and a number that grows within the term.

    A request that is repeated because no answer came gets a new number. So the first one has no effect if it arrives
    after the second.
    """

    term: int
    number: int


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """One segment as its owner knows it. `name` is the result of `backing_topic`."""

    name: TopicName
    incarnation: int
    segment_id: int

    def __str__(self) -> str:
        return f"segment {self.segment_id}"


class Start(StrEnum):
    """Where a new cursor begins."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FIRST = "first"  # the first consumer decides; until then nothing is skipped


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
    """Raises only the fencing token of the segment. Answered by Status."""

    operation: str
    segment: SegmentRef


@dataclass(frozen=True, slots=True)
class Seal:
    """The segment accepts no more messages. The owner sends the children to its producers. Answered by SealFacts."""

    operation: str
    segment: SegmentRef
    children: tuple[SegmentRef, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes cursors and data, if the segment exists. Answered by Done."""

    operation: str
    segment: SegmentRef


@dataclass(frozen=True, slots=True)
class CreateCursor:
    """Answered by Done; SegmentMissing if the segment does not exist."""

    operation: str
    segment: SegmentRef
    cursor: CursorSpec


@dataclass(frozen=True, slots=True)
class DenyCursor:
    """Refuses a SubscriptionSeen: clients that wait for the cursor get the reason. Answered by Done."""

    operation: str
    segment: SegmentRef
    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteCursor:
    """Closes the cursor's consumers and deletes it. Answered by Done, also if cursor or segment do not exist."""

    operation: str
    segment: SegmentRef
    subscription: str


@dataclass(frozen=True, slots=True)
class Seek:
    """Moves the cursor to the first entry published at or after `publish_ms`, once per operation id. With `after` it
    moves behind that entry instead, or to its messages in `unread` (bits of its batch). For an ordered subscription it
    also ends assignments below `generation` (see CloseReader). Answered by Moved.
    """

    operation: str
    segment: SegmentRef
    subscription: str
    publish_ms: int
    generation: int = 0
    after: Position | None = None
    unread: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClearBacklog:
    """Moves the cursor behind the last entry, once per operation id. Answered by Done."""

    operation: str
    segment: SegmentRef
    subscription: str


@dataclass(frozen=True, slots=True)
class CloseReader:
    """Ends assignments below `generation`: consumers admitted under one are closed, and none is admitted any more
    (`broker/segment/reader_fence.py`). Of consumers that share the segment by entry buckets, only those of `consumer`
    are closed. Durable before it is answered, by Done. Also Done if nothing is there.
    """

    operation: str
    segment: SegmentRef
    subscription: str
    consumer: str  # the member concerned; empty: all
    generation: int


@dataclass(frozen=True, slots=True)
class GrantReader:
    """The member has the segment since `generation`, and cannot send that itself. Other consumers with a lower or no
    generation are not admitted any more; current readers are not closed. Answered by Done.
    """

    operation: str
    segment: SegmentRef
    subscription: str
    consumer: str
    generation: int


@dataclass(frozen=True, slots=True)
class Hold:
    """A checkpoint group, which has no cursor, needs the entries after `position`; None: none. DeleteCursor ends the
    hold too. Answered by Done; SegmentMissing if the segment does not exist."""

    operation: str
    segment: SegmentRef
    subscription: str
    position: Position | None


@dataclass(frozen=True, slots=True)
class Adopt:
    """The regular topic `segment.name` becomes a segment, if the topic's record still wants that: from now on no client
    is admitted that cannot follow its migration. With `force` such clients are closed. Answered by Adopted; NotPlanned
    if the migration is over."""

    operation: str
    segment: SegmentRef
    force: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Undoes Adopt: the topic is the regular topic that it was, without the cursors that it got as a segment. Answered
    by Done, also if it was never adopted."""

    operation: str
    segment: SegmentRef


Request = (
    Create
    | Adopt
    | Release
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
    """The request is applied."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The cursor was moved; it may have advanced since."""

    is_drained: bool  # the segment is sealed and has no entries left for it
    rewind_count: int  # see Drained and Refilled


@dataclass(frozen=True, slots=True)
class SealFacts:
    """The end of a sealed segment. `last_position` is EARLIEST if nothing was ever published."""

    last_position: Position
    sealed_at_ms: int
    operation: str
    sequence_ids: tuple[tuple[str, int], ...] = ()  # producer name -> its last persisted sequence id


@dataclass(frozen=True, slots=True)
class OldClient:
    """A producer or consumer of a regular topic that cannot follow a migration."""

    role: str  # producer or consumer
    name: str
    address: str
    version: str  # of its client library
    subscription: str = ""  # of a consumer

    def __str__(self) -> str:
        of = f" of {self.subscription}" if self.subscription else ""
        return f"{self.role} {self.name}{of} at {self.address} ({self.version})"


@dataclass(frozen=True, slots=True)
class Adopted:
    """The topic is a segment. `subscriptions`: the durable ones, and whether their consumers share messages."""

    clients: tuple[OldClient, ...] = ()
    subscriptions: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a segment."""

    exists: bool
    sealed: SealFacts | None = None
    cursors: frozenset[str] = frozenset()
    drained: frozenset[tuple[str, int]] = frozenset()  # subscriptions that have drained it, with their rewind counts


Answer = Done | Moved | SealFacts | Adopted | Status


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class CursorStats:
    """Of a subscription, or of a checkpoint group's hold."""

    backlog: int  # messages
    consumers: int
    position: Position | None = None  # the last consumed entry; None: not reported


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """Statistics of a segment. Measuring is no request and raises no fencing token."""

    rates_10s: Rates
    rates_60s: Rates
    producers: int
    messages: int  # stored
    bytes: int
    subscriptions: Mapping[str, CursorStats]


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Drained:
    """The subscription has drained a sealed segment. Durable at the owner before it is reported."""

    segment: SegmentRef
    subscription: str
    rewind_count: int  # how often seeks took the cursor back so far; an event with a lower count is outdated


@dataclass(frozen=True, slots=True)
class Refilled:
    """A seek took the cursor of a drained segment back."""

    segment: SegmentRef
    subscription: str
    rewind_count: int  # including this one


@dataclass(frozen=True, slots=True)
class SubscriptionSeen:
    """A client subscribes durably to the segment by a name that has no cursor there. The registry decides."""

    segment: SegmentRef
    subscription: str
    is_shared: bool
    start: Start


@dataclass(frozen=True, slots=True)
class ReaderLeft:
    """A client without a LEAVE command closed its reader of the segment. Only a hint: it may open it again."""

    segment: SegmentRef
    subscription: str
    reader: str  # the consumer's name there


@dataclass(frozen=True, slots=True)
class LoadReported:
    """The owner of the segment has stored a new load report. Only a hint, which may be lost: the report is in the
    store."""

    segment: SegmentRef
    load: SegmentLoad


SubscriptionEvent = Drained | Refilled | SubscriptionSeen | ReaderLeft
HostEvent = SubscriptionEvent | LoadReported


@dataclass(frozen=True, slots=True)
class HostCapabilities:
    """What an implementation guarantees beyond the requests."""

    name: str
    has_drain_events: bool  # otherwise the controller asks
    has_fencing: bool  # tokens are durable; otherwise only the topic record's compare-and-set protects
    has_dedup_handover: bool  # SealFacts.sequence_ids are filled
    tells_children: bool  # the sealing owner sends the child segments to its producers


class SegmentHost(Protocol):
    @property
    def capabilities(self) -> HostCapabilities: ...

    async def ask(self, token: FencingToken, request: Request) -> Answer:
        """Raises HostError, SegmentMissing or CursorMissing. Never waits longer than the host's deadline."""

    async def measure(self, segments: Sequence[SegmentRef]) -> tuple[SegmentStats | None, ...]:
        """In the order of `segments`; None if one does not exist or its owner did not answer. Never raises."""

    def listen(self, callback: Callable[[HostEvent], None]) -> Callable[[], None]:
        """Calls back with all events from now on; the result ends that. Events of subscriptions may be repeated, never
        lost."""
