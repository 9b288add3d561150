"""Session of a stream consumer with the controller of one scalable topic: what is assigned, and what is held."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from anabranch.client.consumer.assignment_reconciler import AssignmentReconciler, Effect, SegmentOrder
from anabranch.client.consumer.controller_session import Assignment, ControllerSession
from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer
from anabranch.client.consumer.segment.segment_consumer_spec import Grant
from anabranch.client.consumer.segment.shared_segment_consumer import SharedSegmentConsumer
from anabranch.client.consumer.segment.stream_segment_consumer import OrderedSegments
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.errors import ClientError


class AssignmentFollower(Protocol):
    """The stream consumer."""

    def apply_assignment(self, session: StreamSession, effects: Sequence[Effect]) -> None: ...

    def on_refused(self, error: ClientError, part: TopicPart | None = None) -> None:
        """The registration was refused for good."""


class StreamSession:
    """Session of a stream consumer with the controller of one scalable topic."""

    def __init__(self, consumer: AssignmentFollower, part: TopicPart) -> None:
        self.part = part
        self.reconciler = AssignmentReconciler()
        self.order = SegmentOrder()
        self.ordered = OrderedSegments(part, self.order)
        self.after: Mapping[int, tuple[int, ...]] = {}  # of the last assignment: ancestors that come before a segment
        self.buckets: Mapping[int, tuple[int, ...]] = {}  # of the last assignment: by segment read by buckets, which
        self.controller_session: ControllerSession | None = None
        self.topics: dict[int, str] = {}  # assigned segments and their topics on the wire
        self.grant: Grant | None = None  # the assignment that brokers are shown
        self.task: asyncio.Task[None] | None = None  # runs the controller session
        self._assigned = asyncio.Event()  # set by every assignment
        self._consumer = consumer

    def on_assigned(self, assignment: Assignment) -> None:
        effects = self.reconciler.assigned(
            assignment.segments,
            generation=assignment.generation,
            epoch=assignment.epoch,
            void_below=assignment.void_below,
        )
        if effects is None:
            return
        self._assigned.set()
        self.topics, self.after, self.buckets = assignment.segments, assignment.after, assignment.buckets
        if assignment.generation is not None:
            self.grant = Grant(assignment.incarnation, assignment.generation)
        self.order.assigned(assignment.segments, self.after)
        self._consumer.apply_assignment(self, effects)
        if self.grant is not None:
            for segment_id, segment_consumer in self.part.segment_consumers.items():
                if segment_id in assignment.segments:
                    self.grant_to(segment_consumer)  # discarded ones keep the old grant, which brokers refuse

    def grant_to(self, segment_consumer: SegmentConsumer) -> None:
        """The last assignment has its segment."""
        if isinstance(segment_consumer, SharedSegmentConsumer):
            segment_consumer.claim(self.buckets.get(segment_consumer.spec.segment_id, ()), self.grant)
        else:
            segment_consumer.grant = self.grant

    async def wait_assigned(self, generation: int) -> None:
        """Wait for an assignment of this generation or a later one. Returns at once if no segment is held."""
        while self.reconciler.held and (self.reconciler.generation or 0) < generation:
            self._assigned.clear()
            await self._assigned.wait()

    def restart(self) -> None:
        """The topic was deleted and created again, and its layout is known now."""
        self.topics, self.after, self.buckets, self.grant = {}, {}, {}, None
        self._consumer.apply_assignment(self, self.reconciler.restarted())

    def held_segments(self) -> tuple[tuple[int, ...], int | None]:
        return self.reconciler.held, self.reconciler.generation

    def on_registered(self) -> None:
        self._consumer.apply_assignment(self, self.reconciler.registered(self.part.view.layout.segments))

    def on_refused(self, error: ClientError) -> None:
        self._consumer.on_refused(error, self.part)
