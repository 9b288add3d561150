"""Events, effects and errors that the machines of a topic (`topic/`) and of its groups (`group/`) share. Values only.

A seek of an ordered subscription passes both. `SubscriptionWorkflow` emits `Halt` and `Resume`; the subscription's
`GroupState` answers with `Halted` and `Resumed`:

    Halt ──▶ group revokes all segments ──▶ Halted ──▶ owners move the cursors ──▶ Resume ──▶ group assigns ──▶ Resumed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.controller.segment_host import Moved
from anabranch.model.errors import NotAllowed, NotFound, NotReady

Version = int
"""Version of a stored record, for compare-and-set."""


# errors ---------------------------------------------------------------------------------------------------------------
class NotLeading(NotReady):
    """Another broker leads this topic now. A call that is repeated there with the same operation id runs only once."""

    code = "not-leader"


class TopicGone(NotFound):
    """The topic does not exist, or was deleted."""

    code = "topic-not-found"


class SessionTaken(NotAllowed):
    """Another process has registered under the consumer's name since."""

    code = "consumer-fenced"


class UnknownSubscription(NotFound):
    code = "subscription-not-found"


# leadership -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """Event: another broker leads the topic, or may lead it."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """Effect: this leader stops. It writes and sends nothing after this."""

    reason: str


# seek of an ordered subscription --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Halt:
    """To the group: revoke all segments. Answered by Halted; by Resumed if this operation was finished before."""

    subscription: str
    operation_id: str


@dataclass(frozen=True, slots=True)
class Halted:
    """No consumer has a segment, durably. Readers admitted below `generation` are to be closed."""

    operation_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Resume:
    """To the group: the cursors on all segments are moved, and readers of earlier generations are fenced.

    `moved` is the answer of each segment's owner. Answered by Resumed.
    """

    subscription: str
    operation_id: str
    moved: Mapping[int, Moved]


@dataclass(frozen=True, slots=True)
class Resumed:
    """The segments that are open after the seek are assigned, durably."""

    operation_id: str
