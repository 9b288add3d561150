"""Where a seek moves the cursor of one segment. Pure.

A seek to a publish time moves every segment. A seek behind positions says something about the segments that it names
and about their relatives, because an ancestor is read before its descendants:

| segment                   | its cursor                                                            |
|---------------------------|-----------------------------------------------------------------------|
| named                     | behind the position                                                   |
| ancestor of a named one   | at the end: all of it was read                                        |
| descendant of a named one | at the beginning: nothing of it was read                              |
| any other                 | stays; readers of an ordered subscription are closed all the same     |
"""

from __future__ import annotations

from anabranch.controller import segment_host as host
from anabranch.controller.records.subscription_registry import Move
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import Request, SegmentRef

BEGINNING_MS = 0
END_MS = (1 << 63) - 1
"""Later than every publish time."""


def seek_request(move: Move, record: TopicRecord, segment: SegmentRef, name: str, generation: int) -> Request | None:
    """`generation` 0: the subscription is not ordered. None: nothing is to be done on this segment."""

    def to_time(publish_ms: int) -> Request:
        return host.Seek(move.operation_id, segment, name, publish_ms, generation)

    if move.publish_ms is not None:
        return to_time(move.publish_ms)
    layout, segment_id = record.layout, segment.segment_id
    for one in move.positions:
        if one.segment_id == segment_id:
            return host.Seek(move.operation_id, segment, name, 0, generation, one.position, one.unread)
    if segment_id not in layout:
        return to_time(BEGINNING_MS)  # a planned child: it is empty
    named = {one.segment_id for one in move.positions}
    if any(segment_id in layout.ancestors(one) for one in named if one in layout):
        return to_time(END_MS)
    if not named.isdisjoint(layout.ancestors(segment_id)):
        return to_time(BEGINNING_MS)
    return host.CloseReader(move.operation_id, segment, name, "", generation) if generation else None
