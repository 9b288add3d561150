"""One segment of a scalable topic as the record knows it, and what can be wrong with a layout. Knows no other segment.

A segment is ACTIVE (producers write to it) or SEALED (final; it is read until retention lets it go). There is no state
in between: what is half done stands in the record's `operation`, never in a segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from anabranch.model.errors import BadRequest, Error, NotFound
from anabranch.model.hashrange import HashRange
from anabranch.model.keyhash import RING_SIZE
from anabranch.model.names import SegmentDescriptor, TopicName
from anabranch.model.position import Position

NOT_SEALED = -1


class BadLayout(Error):
    """A set of segments that cannot be a topic: gaps, overlaps, cycles, children that do not cover their parents."""

    code = "bad-layout"


class UnknownSegment(NotFound):
    """The topic has no segment of that id (any more)."""

    code = "unknown-segment"


class SegmentNotActive(Error):
    """Only active segments split, merge and migrate; this one is sealed."""

    code = "segment-not-active"


class BadSplit(BadRequest):
    """The segment cannot be split like that."""

    code = "bad-split"


class BadMerge(BadRequest):
    """These segments are no run of neighbours."""

    code = "bad-merge"


class TooManySegments(Error):
    """The topic would have more active segments than its limit."""

    code = "too-many-segments"


class DagTooDeep(Error):
    """The merge would stack more merges upon each other than the limit."""

    code = "dag-too-deep"


class SegmentState(StrEnum):
    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


@dataclass(frozen=True, slots=True)
class Seal:
    """What the owner of a sealed segment answered: when it was final, and its last entry (None: not known)."""

    at_ms: int
    last_position: Position | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    segment_id: int
    hash_range: HashRange
    state: SegmentState = SegmentState.ACTIVE
    parent_ids: tuple[int, ...] = ()  # those that still exist, ascending
    child_ids: tuple[int, ...] = ()
    created_at_epoch: int = 0
    sealed_at_epoch: int = NOT_SEALED
    created_at_ms: int = 0  # nothing in it was published before
    sealed_at_ms: int = NOT_SEALED  # nothing in it was published after
    last_position: Position | None = None  # of a sealed one: its last entry
    legacy_topic_name: str | None = None  # it wraps this regular topic instead of having a `segment://` one
    entry_bucket_splits: tuple[int, ...] = ()  # bucket count - 1 split points
    merge_depth: int = 0  # merges among its ancestors and itself; survives their garbage collection
    extra: Mapping[str, object] = field(default_factory=dict)  # what a newer writer added, kept as it came
    forms: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What others have made of it (text, frame, name): a value that never changes is encoded once, not with each of the
    thousand layouts that it is in."""

    @property
    def is_active(self) -> bool:
        return self.state is SegmentState.ACTIVE

    def sealed(self, epoch: int, seal: Seal, child_ids: tuple[int, ...]) -> Segment:
        return replace(
            self,
            state=SegmentState.SEALED,
            child_ids=child_ids,
            sealed_at_epoch=epoch,
            sealed_at_ms=seal.at_ms,
            last_position=seal.last_position,
        )


def backing_topic(topic: TopicName, segment: Segment) -> TopicName:
    """The topic that has the segment's entries: the only way from a segment of `topic://…` to a topic name."""
    if segment.legacy_topic_name is not None:
        return TopicName.parse(segment.legacy_topic_name)
    known: tuple[TopicName, TopicName] | None = segment.forms.get(backing_topic)
    if known is None or known[0] != topic:
        one = segment.hash_range
        made = topic.scalable.segment_name(SegmentDescriptor(one.start, one.end, segment.segment_id))
        known = segment.forms[backing_topic] = topic, made
    return known[1]


def bucket_splits(count: int) -> tuple[int, ...]:
    """Split points of `count` entry buckets of equal width over the whole bucket ring."""
    return tuple(i * RING_SIZE // count for i in range(1, count))
