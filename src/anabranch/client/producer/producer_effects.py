"""One lane of a producer with the segment it leads to, and what may be wanted of it. Values; decided by `lanes`."""

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
    """One lane, the segment it leads to, and what is known of the two. `owner` is whatever the shell wants."""

    segment: Segment
    lane: SegmentProducerState
    hash_range: HashRange  # of the keys in it
    owner: Any = None
    is_attached: bool = False
    was_attached: bool = False
    is_closing: bool = False  # the farewell is said: nothing may follow it
    is_sealed: bool = False  # its segment takes nothing any more
    is_doubtful: bool = False  # nobody knows what became of what was sent
    is_stale: bool = False  # its ancestry was told before an ancestor was final
    ancestry: Ancestry | None = None  # None: its broker does not say


@dataclass(frozen=True, slots=True)
class On:
    """Do this on that lane's connection."""

    track: SegmentLane
    effects: Sequence[Effect]


@dataclass(frozen=True, slots=True)
class Open:
    """Attach a producer to the segment and keep it attached."""

    track: SegmentLane


@dataclass(frozen=True, slots=True)
class Reopen:
    """Attach anew: what its ancestors have may be told differently now."""

    track: SegmentLane


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """Close the producer; call `farewell_said` once the broker answered everything it had received."""

    track: SegmentLane


@dataclass(frozen=True, slots=True)
class Drop:
    """The lane is over."""

    track: SegmentLane


@dataclass(frozen=True, slots=True)
class AskLayout:
    """There must be a newer one."""


LanesEffect = On | Open | Reopen | CloseRequest | Drop | AskLayout
