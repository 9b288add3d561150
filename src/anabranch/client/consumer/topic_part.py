"""One topic of a consumer."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer
from anabranch.client.messages.message import MessageId
from anabranch.client.topic.layout_watch import LayoutWatch
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment
from anabranch.runtime.clock import Timer


class TopicPart:
    """One topic of a consumer: its current view, and its segment consumers by segment id."""

    def __init__(self, watch: LayoutWatch, view: TopicView, *, is_new: bool = False) -> None:
        """`is_new`: the topic was created after the consumer was opened, so all of it is read."""
        self.watch = watch
        self.view = view
        self.is_new = is_new
        # Segments that existed when the consumer was opened.
        self.first = frozenset[int]() if is_new else frozenset(view.layout.segments)
        self.first_generation = -1 if is_new else view.generation
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

    def source(self, segment: Segment) -> tuple[str, int]:
        """Topic and lane of the segment in message ids. A segment that is attached since before the migration of its
        topic keeps those of the partition."""
        known = self.segment_consumers.get(segment.segment_id)
        if known is not None:
            return known.spec.identity, known.spec.lane
        return str(self.view.topic), self.view.lane(segment)

    def is_of_scalable(self, one: MessageId) -> bool:
        """Whether it is a message of this scalable topic, perhaps from before its migration."""
        if self.view.is_synthetic or not one.topic:
            return False
        return one.topic == str(self.view.topic) or TopicName.parse(one.topic).scalable == self.view.topic

    def former_partition(self, one: MessageId) -> SegmentConsumer | None:
        """The consumer of the segment that was the partition of this message."""
        is_former = one.topic != str(self.view.topic) and self.is_of_scalable(one)
        return self.segment_consumers.get(max(one.lane, 0)) if is_former else None
