"""A segment lane of a producer, and the effects that `ProducerState` returns. Values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.client.producer.ancestry import Ancestry
from anabranch.client.producer.segment_producer_state import Effect, SegmentProducerState
from anabranch.model.hashrange import HashRange
from anabranch.model.segment import Segment


@dataclass(eq=False, slots=True)
class SegmentLane:
    """The messages for one segment, and the state of the producer on it."""

    segment: Segment
    lane: SegmentProducerState
    hash_range: HashRange  # of the keys in it
    owner: Any = None
    is_attached: bool = False
    was_attached: bool = False
    is_closing: bool = False  # CLOSE_PRODUCER was sent: no entry may follow it
    is_sealed: bool = False  # its segment accepts no more entries
    is_doubtful: bool = False  # the outcome of the sent entries is unknown
    is_stale: bool = False  # its ancestry was read before an ancestor was final
    ancestry: Ancestry | None = None  # None: its broker does not support it


@dataclass(frozen=True, slots=True)
class On:
    """Perform the effects of one segment lane."""

    track: SegmentLane
    effects: Sequence[Effect]


@dataclass(frozen=True, slots=True)
class Open:
    """Attach a producer to the segment and keep it attached."""

    track: SegmentLane


@dataclass(frozen=True, slots=True)
class Reopen:
    """Attach again, because the ancestors may have stored more since."""

    track: SegmentLane


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """Close the producer; call `close_confirmed` once the broker answered everything it had received."""

    track: SegmentLane


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the producer and forget the lane."""

    track: SegmentLane


@dataclass(frozen=True, slots=True)
class AskLayout:
    """Request the layout, because a newer one exists."""


ProducerEffect = On | Open | Reopen | CloseRequest | Drop | AskLayout
