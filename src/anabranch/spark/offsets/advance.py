"""How a cut moves: where it begins, when a segment is followed by its children, how far a batch goes. Pure functions.

The rule that keeps keys in order: the children of a segment are opened when *all* their parents were read to the end
at the **start** of a batch. So a key is in one segment per batch, and across batches in the order of its messages; the
price is one more batch after a split or merge. Empty sealed segments are passed without a batch of their own, but a cut
that moved is kept, by an empty batch where there is nothing to read.

What is lost is an error (`LostData`) unless the caller takes it: then reading goes on behind the hole, and the hole is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.spark.offsets.key_filter import EVERYTHING, KeyFilter
from anabranch.spark.offsets.offset import Cut, Mark, Offset
from anabranch.spark.offsets.topic_view import SegmentExtent, View

Segment = tuple[str, int]
"""Topic and segment id."""

OnLoss = Callable[[Error], None]
"""Raises what it is given, or takes note of it."""


class LostData(Error):
    """Entries that the query has not read are gone."""

    code = "lost-data"

    def __init__(
        self, topic: str, segment: int, wanted: Position, first: Position | None, *, is_certain: bool = True
    ) -> None:
        there = "the segment is gone" if first is None else f"the first one there is {first}"
        what = (
            "Retention took what was not read yet"
            if is_certain
            else f"Ledger {wanted.ledger} was deleted, and the cluster does not say whether it had more entries"
        )
        super().__init__(
            f"{topic}, segment {segment}: the next entry to read was {wanted}, but {there}. "
            f"{what}; set failOnDataLoss=false to go on behind the hole, "
            "or a `subscription` that holds retention"
        )
        self.topic, self.segment, self.wanted, self.first = topic, segment, wanted, first


class TopicRecreated(Error):
    """The topic was deleted and created again: its old entries are gone, the new ones were never planned."""

    code = "topic-recreated"

    def __init__(self, topic: str, wanted: str, found: str) -> None:
        super().__init__(
            f"{topic} was deleted and created again (incarnation {found}, the checkpoint is of {wanted}). "
            "Start with a new checkpoint, or set failOnDataLoss=false to read the new topic from its beginning"
        )
        self.topic = topic


def raise_loss(error: Error) -> None:
    raise error


# ------------------------------------------------------------------------------------------------------- where to begin


def earliest(view: View) -> Cut:
    """Everything that is retained is still ahead."""
    return Cut(view.uid, {one: view.segments[one].opened() for one in view.roots})


def latest(view: View) -> Cut:
    """Everything there is now is behind."""
    ends = [one for one in view.segments.values() if not view.known(one.child_ids)]
    return Cut(view.uid, {one.segment_id: one.mark_at(max(one.first, one.end)) for one in ends})


def at(view: View, positions: Mapping[int, Position]) -> Cut:
    """From given positions (a time's, say), one per segment; segments with nothing behind theirs are passed."""
    marks = {one: view.segments[one].mark_at(positions[one]) for one in view.roots}
    return Cut(view.uid, _passed(marks, view, lambda one: one.mark_at(positions[one.segment_id])))


# ------------------------------------------------------------------------------------------------------ between batches


def is_of_interest(segment: SegmentExtent | Mark, view: View, wanted: KeyFilter) -> bool:
    """Segments that cannot have a wanted row are passed unread. Partitions of a regular topic can have any key."""
    return wanted.is_all or segment.topic is not None or wanted.can_be_in(segment.span, view.ring_hash)


def settled(cut: Cut, view: View, on_loss: OnLoss = raise_loss, wanted: KeyFilter = EVERYTHING) -> Cut:
    """The cut at the start of a batch: holes found, drained parents replaced by their children, segments without a
    wanted row passed."""

    def opened(segment: SegmentExtent) -> Mark:
        return (
            segment.opened()
            if is_of_interest(segment, view, wanted)
            else segment.mark_at(max(segment.first, segment.end))
        )

    if view.uid and cut.uid and cut.uid not in (view.uid, view.former_uid):
        on_loss(TopicRecreated(view.topic, cut.uid, view.uid))
        return earliest(view)
    marks: dict[int, Mark] = {}
    gone: list[Mark] = []
    for one, mark in cut.marks.items():
        segment = view.segments.get(one)
        if segment is None:
            if not mark.is_drained and is_of_interest(mark, view, wanted):
                on_loss(LostData(view.topic, one, mark.position, None))
            gone.append(mark)
        elif not is_of_interest(segment, view, wanted):
            end = max(mark.position, segment.end)
            marks[one] = replace(mark, position=end, base=None, is_drained=segment.is_read(end))
        elif mark.position <= segment.trimmed_to:
            on_loss(LostData(view.topic, one, mark.position, segment.first, is_certain=segment.is_trim_exact))
            marks[one] = segment.mark_at(segment.first)
        elif (further := segment.without_gap(mark.position)) != mark.position:
            marks[one] = segment.mark_at(further)
        else:
            marks[one] = mark
    known = view.ancestors(marks) | set(marks)
    for one in view.roots:  # what follows a segment whose record is gone, and partitions that were added
        segment = view.segments[one]
        is_heir = any(_overlaps(segment.span, mark.span) for mark in gone)
        if one not in known and (is_heir or segment.topic is not None):
            marks[one] = opened(segment)
    return Cut(view.uid or cut.uid, _passed(marks, view, opened))


def _passed(marks: dict[int, Mark], view: View, opened: Callable[[SegmentExtent], Mark]) -> dict[int, Mark]:
    """Drained segments replaced by their children, as often as it goes."""
    ahead = list(marks)
    while ahead:
        one = ahead.pop()
        segment = view.segments.get(one)
        if one not in marks or segment is None or not segment.is_read(marks[one].position):
            continue
        children = view.known(segment.child_ids)
        parents = {parent for child in children for parent in view.known(view.segments[child].parent_ids)}
        if not children or not all(
            parent in marks and view.segments[parent].is_read(marks[parent].position) for parent in parents
        ):
            continue
        for parent in parents:
            del marks[parent]
        for child in children:
            marks[child] = opened(view.segments[child])
            ahead.append(child)
    return marks


# ----------------------------------------------------------------------------------------------------------- one batch


def ahead(offset: Offset, views: Mapping[str, View]) -> dict[Segment, tuple[Position, Position]]:
    """What could be read now: from and to of every segment of a settled offset that has something."""
    return {
        (topic, one): (mark.position, views[topic].segments[one].end)
        for topic, cut in offset.items()
        for one, mark in cut.marks.items()
        if one in views[topic].segments and mark.position < views[topic].segments[one].end
    }


def shares(backlog: Mapping[Segment, int], limit: int) -> dict[Segment, int]:
    """How much of `limit` each segment may use: in proportion to its backlog, never more than the limit in all."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    given = {one: size * limit // total for one, size in backlog.items()}
    # The rest goes to the longest backlogs, one each.
    rest = limit - sum(given.values())
    for one in sorted(backlog, key=lambda one: (-backlog[one], one))[:rest]:
        given[one] += 1
    return given


def advanced(offset: Offset, views: Mapping[str, View], ends: Mapping[Segment, Position]) -> dict[str, Cut]:
    """The settled offset after a batch that reads each segment up to `ends`. Marks that were fresh keep their base."""

    def moved(topic: str, one: int, mark: Mark) -> Mark:
        position = max(mark.position, ends.get((topic, one), mark.position))
        segment = views[topic].segments.get(one)
        is_drained = mark.is_drained if segment is None else segment.is_read(position)
        return replace(mark, position=position, base=mark.base if mark.is_fresh else None, is_drained=is_drained)

    return {
        topic: Cut(cut.uid, {one: moved(topic, one, mark) for one, mark in cut.marks.items()})
        for topic, cut in offset.items()
    }


def has_passed(before: Offset, after: Offset) -> bool:
    """Did a cut move through the graph: other segments, or some that are known to be read to their end? That is worth
    a separate batch, even an empty one: retention may delete what is read, and an offset that still points there could
    not be distinguished from a loss. Topics that are new in `after` are not asked for."""
    known = [(cut, after[topic]) for topic, cut in before.items() if topic in after]
    return any(_shape(cut) != _shape(other) or _has_rolled(cut, other) for cut, other in known)


def _has_rolled(before: Cut, after: Cut) -> bool:
    """A mark is in a later ledger and nothing was read: the ledger before may be deleted, and then it could not
    be known whether it had more entries."""
    return any(
        mark.is_fresh and one in before.marks and before.marks[one].position.ledger < mark.position.ledger
        for one, mark in after.marks.items()
    )


def _shape(cut: Cut) -> tuple[str, dict[int, bool]]:
    return cut.uid, {one: mark.is_drained for one, mark in cut.marks.items()}


def _overlaps(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
