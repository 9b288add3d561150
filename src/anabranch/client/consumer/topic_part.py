"""One topic of a consumer."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer
from anabranch.client.topic.layout_watch import LayoutWatch
from anabranch.client.topic.topic_view import TopicView
from anabranch.runtime.clock import Timer


class TopicPart:
    """One topic of a consumer: its current view, and its segment consumers by segment id."""

    def __init__(self, watch: LayoutWatch, view: TopicView) -> None:
        self.watch = watch
        self.view = view
        self.first = frozenset(view.layout.segments)  # segments that existed when the consumer was opened
        self.first_generation = view.generation
        self.segment_consumers: dict[int, SegmentConsumer] = {}
        self.unfollow: Callable[[], None] = lambda: None
        self.gone_timer: Timer | None = None  # runs while the topic does not exist

    def advance(self, view: TopicView) -> bool:
        """The next view. Returns True if the topic was deleted and created again: all of it is newer than the consumer,
        so all of it is read from its beginning."""
        is_another = view.generation != self.view.generation
        self.view = view
        if is_another:
            self.first = frozenset()
        return is_another
