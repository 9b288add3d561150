"""What a query's `subscription` keeps for it: what comes after the query's offset, and nothing before. Knows which
cursor belongs where; moving cursors is the cluster's work.

The subscription has a cursor on every segment of a topic, also on those that the query never had in its offset: its
start lay behind them, or they have none of the keys that it wants. What lies before the cut is passed, all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from anabranch.model.position import Position
from anabranch.spark.offsets import partitions as plan
from anabranch.spark.offsets.offset import Offset
from anabranch.spark.offsets.topic_view import View


def unread_from(offset: Offset, views: Mapping[str, View]) -> dict[str, Position]:
    """By backing topic the first entry to keep. Segments whose record is gone have nothing that could be kept."""
    found: dict[str, Position] = {}
    for topic, cut in offset.items():
        view = views.get(topic)
        if view is None:
            continue
        marks = {one: mark for one, mark in cut.marks.items() if one in view.segments}
        passed = {one: view.segments[one] for one in view.ancestors(marks)}
        found |= {plan.backing_of(topic, one, segment.opened()): segment.end for one, segment in passed.items()}
        found |= {plan.backing_of(topic, one, mark): mark.position for one, mark in marks.items()}
    return found


class Cursors(Protocol):
    """Where the subscription lives."""

    def hold(self, subscription: str, positions: Mapping[str, Position]) -> None: ...


class Hold:
    """One query's subscription. A cursor is moved when it is to be elsewhere than this process has put it."""

    def __init__(self, cursors: Cursors, subscription: str) -> None:
        self._cursors = cursors
        self._subscription = subscription
        self._held: dict[str, Position] = {}

    def keep_after(self, offset: Offset, views: Mapping[str, View]) -> None:
        wanted = unread_from(offset, views)
        news = {topic: at for topic, at in wanted.items() if self._held.get(topic) != at}
        if news:
            self._cursors.hold(self._subscription, news)
        self._held = wanted
