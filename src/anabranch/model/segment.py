"""One segment of a scalable topic, and the errors of layouts.

A segment is ACTIVE (producers write to it) or SEALED (final; it is read until retention removes it). There is no state
in between: an unfinished change is in the record's `operation`, never in a segment.
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
    """Segments that do not form a valid topic: gaps, overlaps, cycles, or children that do not cover their parents."""

    code = "bad-layout"


class UnknownSegment(NotFound):
    """The topic has no segment with that id, or no longer."""

    code = "unknown-segment"


class SegmentNotActive(Error):
    """Only active segments can be split, merged or migrated; this one is sealed."""

    code = "segment-not-active"


class BadSplit(BadRequest):
    """The segment cannot be split at these points."""

    code = "bad-split"


class BadMerge(BadRequest):
    """The segments are not neighbours on the ring."""

    code = "bad-merge"


class TooManySegments(Error):
    """The topic would have more active segments than its limit."""

    code = "too-many-segments"


class DagTooDeep(Error):
    """The merge would exceed the limit of merges upon each other."""

    code = "dag-too-deep"


class SegmentState(StrEnum):
    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


MERGE_FORGOTTEN_MS = 3_600_000
"""Time that a segment must live until one merge of its lineage does not count any more."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Answer of a sealed segment's owner: when it became final, and its last entry (None: not known)."""

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
    last_position: Position | None = None  # last entry of a sealed segment
    legacy_topic_name: str | None = None  # the regular topic that it wraps, instead of a `segment://` topic
    entry_bucket_splits: tuple[int, ...] = ()  # bucket count - 1 split points
    merge_depth: int = 0  # merges among its ancestors and itself that were not forgotten when it was created
    extra: Mapping[str, object] = field(default_factory=dict)  # unknown fields of a newer version, kept unchanged
    forms: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Encoded forms of this segment (text, frame, name), cached by other modules: an immutable value is encoded once,
    not with each of the thousand layouts that contain it.
    """

    @property
    def is_active(self) -> bool:
        return self.state is SegmentState.ACTIVE

    def merge_depth_at(self, now_ms: int) -> int:
        """Merges among its ancestors and itself that count now: one is forgotten with each full `MERGE_FORGOTTEN_MS`
        of its life. Children begin with this number, so a lineage has `max_dag_depth` merges at once and one more per
        hour: enough for a daily curve, and too few for a range that is merged and split again all the time."""
        return max(0, self.merge_depth - max(0, now_ms - self.created_at_ms) // MERGE_FORGOTTEN_MS)

    def mergeable_at_ms(self, depth_max: int) -> int | None:
        """From when on fewer than `depth_max` merges count; None: never."""
        surplus = self.merge_depth - depth_max + 1
        return None if depth_max < 1 else self.created_at_ms + max(0, surplus) * MERGE_FORGOTTEN_MS

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
    """The topic that holds the segment's entries. All code maps a segment of `topic://…` to a topic name here."""
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
