"""How far a subscription is on each segment of its topic, as people are shown it. Values in, values out.

Where it is with a segment is known by the segment's owner (its cursor, or what it holds for a checkpoint group), who
has it and what is drained by the topic's leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.controller.segment_host import CursorStats, SegmentStats
from anabranch.model.position import EARLIEST, Position
from anabranch.model.segment import Segment


def positions_of(
    segments: Mapping[int, Segment], figures: Mapping[int, SegmentStats], name: str, facts: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """By segment id: `position` (the last entry that is passed; None: none), `backlog` in messages (None: its owner did
    not say), `drained`, `consumer` (who has it, of an ordered subscription) and `consumers` (how many are attached).
    `facts`: what the leader says of the subscription."""
    holders = _holders(facts.get("consumers", {}))
    drained, reached = set(facts.get("drained", ())), facts.get("positions", {})
    found: dict[str, dict[str, Any]] = {}
    for one, segment in sorted(segments.items()):
        stats = figures.get(one)
        cursor = None if stats is None else stats.subscriptions.get(name)
        is_through = one in drained or (not segment.is_active and cursor is not None and cursor.backlog == 0)
        found[str(one)] = {
            "position": reached.get(str(one)) or _text(cursor),
            "backlog": 0 if is_through else None if cursor is None else cursor.backlog,
            "drained": is_through,
            "consumer": holders.get(one),
            "consumers": 0 if cursor is None else cursor.consumers,
        }
    return found


def _holders(consumers: Mapping[str, Mapping[str, Any]]) -> dict[int, str]:
    return {one: name for name, facts in consumers.items() for one in _ids(facts.get("segments", ()))}


def _ids(ids: Iterable[Any]) -> list[int]:
    return [int(one) for one in ids]


def _text(cursor: CursorStats | None) -> str | None:
    return None if cursor is None or cursor.position in (None, EARLIEST) else position_text(cursor.position)


def position_text(position: Position) -> str:
    """As Pulsar's stats write it."""
    return f"{position.ledger}:{position.entry}"
