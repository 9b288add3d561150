"""Session of a consumer with the controller of a scalable topic: registers, receives assignments, re-registers.

The session has its own connection, because brokers without SCALABLE_TOPIC_LEAVE end a session with its connection.
`AssignmentReconciler` interprets the assignments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from anabranch.client.connection.address import Address
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_state import command
from anabranch.client.consumer.checkpoint import After, Done, Mark
from anabranch.client.consumer.segment.segment_consumer import CLOSE_TIMEOUT_SECONDS
from anabranch.client.context import ClientContext
from anabranch.client.errors import (
    ClientError,
    ConsumerFenced,
    ConsumerReplaced,
    HandshakeFailed,
    NotAllowed,
    NotAuthenticated,
    NotAuthorized,
    NotReady,
    Refused,
    TimedOut,
    refusal,
)
from anabranch.client.messages.message import read_wire_id, wire_id
from anabranch.client.topic.layout_watch import LayoutWatch
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.errors import Error
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import U64_MASK, BaseCommand, position_of
from anabranch.protocol.entry import Bytes
from anabranch.runtime.chance import secret_bytes
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The segments that a consumer is to read, with their topics on the wire. `generation` None: not sent."""

    segments: dict[int, str]
    generation: int | None
    epoch: int
    incarnation: int
    marks: dict[int, Mark] = field(default_factory=dict)  # in a group: the progress that its members reported
    void_below: int = 0  # assignments of lower generations were made before the subscription was moved
    after: dict[int, tuple[int, ...]] = field(default_factory=dict)  # ancestors that come before a segment
    buckets: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by segment that is read by buckets, which


class ControllerMoved(NotReady):
    """Another broker is the controller of the topic now."""

    code = "controller-moved"


class SessionOutdated(NotReady):
    """The topic was deleted and created again, so the session must be registered with the new topic."""

    code = "session-outdated"


class SessionListener(Protocol):
    """The consumer of a session. Called on the event loop; must not raise."""

    def on_assigned(self, assignment: Assignment) -> None: ...

    def held_segments(self) -> tuple[tuple[int, ...], int | None]:
        """Segments that are still attached, and the generation of the last assignment."""

    def on_registered(self) -> None:
        """Registered, and the first assignment is applied."""

    def on_refused(self, error: ClientError) -> None:
        """The registration was refused for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    subscription: str
    consumer_name: str
    kind: pb.ScalableConsumerType
    from_earliest: bool
    generation: int = 0  # of the view when the consumer was opened; a topic created again is read from its beginning
    shares_buckets: bool = False  # it may share a segment with other consumers, by entry buckets


class ControllerSession:
    def __init__(
        self, watch: LayoutWatch, spec: SessionSpec, listener: SessionListener, context: ClientContext
    ) -> None:
        self._watch = watch
        self._spec = spec
        self._listener = listener
        self._context = context
        self._connection: Connection | None = None
        self._consumer_id = 0
        # The same in every registration: so the controller can distinguish a reconnect from a second consumer.
        self._instance = int.from_bytes(secret_bytes(8), "big")
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._end: asyncio.Future[ClientError] = loop.create_future()
        self._first: asyncio.Future[ClientError | None] = loop.create_future()
        self._last_error: ClientError | None = None
        self._unfollow: Callable[[], None] | None = None
        self._view_generation = watch.view.generation  # of the topic with which it was registered last
        self._pause: asyncio.Future[None] | None = None  # set while it waits before the next attempt

    @property
    def _log_fields(self) -> dict[str, str]:
        return {"topic": str(self._watch.topic), "subscription": self._spec.subscription}

    async def wait_first(self, timeout_s: float) -> None:
        """Wait until it is registered. Raises the refusal, or TimedOut with the last error."""
        try:
            async with asyncio.timeout(timeout_s):
                error = await asyncio.shield(self._first)
        except TimeoutError:
            why = "its controller does not answer" if self._last_error is None else self._last_error.reason
            raise TimedOut(f"{self._watch.topic} is not available: {why}") from self._last_error
        if error is not None:
            raise error

    async def run(self) -> None:
        """Runs until cancelled, or refused for good."""
        attempt = 0
        self._unfollow = self._watch.follow(self._on_layout)
        try:
            while True:
                self._end = self._loop.create_future()
                was_registered = False
                try:
                    await self._register()
                    was_registered = True
                    if not self._first.done():
                        self._first.set_result(None)
                    error = await self._end
                except Error as refused:
                    error = refused if isinstance(refused, ClientError) else ClientError(refused.reason)
                finally:
                    await self._hang_up()
                self._last_error = error
                is_first = not self._first.done()
                if isinstance(error, NotAuthorized | NotAuthenticated | NotAllowed | ConsumerReplaced) or (
                    is_first and isinstance(error, HandshakeFailed)
                ):
                    self._listener.on_refused(error)
                    if is_first:
                        self._first.set_result(error)
                    return
                attempt = 0 if was_registered else attempt + 1
                delay = self._context.backoff.delay(max(0, attempt - 1), self._context.chance.random())
                if isinstance(error, ControllerMoved | SessionOutdated):
                    delay = 0.0
                log.info(
                    "registering again with the topic's controller",
                    extra={**self._log_fields, "reason": error.reason, "delay_s": delay},
                )
                if attempt:  # that broker may no longer be the controller
                    self._watch.refresh()
                if delay:
                    await self._wait(delay)
        finally:
            self._unfollow()

    async def _wait(self, delay_s: float) -> None:
        """Wait for the next attempt: until the delay is over, or the topic was created again."""
        if self._watch.view.generation != self._view_generation:
            return
        self._pause = pause = self._loop.create_future()
        timer = self._context.clock.call_later(delay_s, self._resume)
        try:
            await pause
        finally:
            self._pause = None
            timer.cancel()

    def _resume(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    async def _register(self) -> None:
        view, pool = self._watch.view, self._context.pool
        self._view_generation = view.generation
        controller = pool.address_of(view.controller.url, view.controller.url_tls)
        connection = self._connection = await pool.private(Address.parse(controller) if controller else None)
        self._consumer_id = connection.new_id()
        connection.listen_consumer(self._consumer_id, self)  # assignments may come before the answer
        spec = self._spec
        held, generation = self._listener.held_segments()
        ours = connection.has_extensions
        from_earliest = spec.from_earliest or view.generation != spec.generation
        where = pb.CommandSubscribe.Earliest if from_earliest else pb.CommandSubscribe.Latest
        answer = await connection.ask(
            BaseCommand.SCALABLE_TOPIC_SUBSCRIBE,
            pool.answer_timeout_s,
            topic=str(view.topic.scalable),
            subscription=spec.subscription,
            consumer_name=spec.consumer_name,
            consumer_id=self._consumer_id,
            consumer_type=spec.kind,
            initial_position=where if ours else None,
            held_segments=held if ours and held else None,
            generation=generation if ours else None,
            incarnation=view.incarnation or None if ours else None,
            instance=self._instance if ours else None,
            shares_buckets=True if ours and spec.shares_buckets else None,
        )
        if answer.HasField("error"):
            error = refusal(answer.error, answer.message)
            raise _replaced(error) if ours and isinstance(error, ConsumerFenced) else error
        if answer.HasField("assignment"):
            self._on_assignment(answer.assignment)
        self._listener.on_registered()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.unlisten(self._consumer_id)
            await connection.close()

    # -- commands of the controller

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind == BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE and body.HasField("error"):
            self._over(_replaced(refusal(body.error, body.message)))
        elif kind == BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            self._on_assignment(body.assignment)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self._over(NotReady("the controller closed the session"))

    def on_detached(self, error: ClientError) -> None:
        self._over(error)

    def _on_assignment(self, body: pb.ScalableConsumerAssignment) -> None:
        if body.incarnation and self._watch.view.incarnation not in (0, body.incarnation):
            # The topic was created again, and its layout has not arrived yet; with the layout it is registered again.
            self._watch.refresh()
            return
        self._listener.on_assigned(
            Assignment(
                {one.segment_id: one.segment_topic for one in body.segments},
                body.generation if body.HasField("generation") else None,
                body.layout_epoch,
                body.incarnation,
                {one.segment_id: self._mark(one) for one in body.segments if one.HasField("position")},
                body.void_below,
                {one.segment_id: tuple(one.after) for one in body.segments if one.after},
                {one.segment_id: tuple(one.buckets) for one in body.segments if one.bucket_ranges},
            )
        )

    def _mark(self, one: pb.ScalableAssignedSegment) -> Mark:
        topic = str(self._watch.view.topic)
        since = position_of(one.since) if one.HasField("since") else None
        return After(read_wire_id(one.position.SerializeToString(), topic, one.segment_id), since)

    def _on_layout(self, view: TopicView) -> None:
        if view.generation != self._view_generation:
            self._over(SessionOutdated(f"{view.topic} was deleted and created again"))
            self._resume()
            return
        address = self._context.pool.address_of(view.controller.url, view.controller.url_tls)
        connection = self._connection
        if connection is not None and address and not connection.address.is_same_place(Address.parse(address)):
            self._over(ControllerMoved("another broker is the topic's controller now"))

    def _over(self, error: ClientError) -> None:
        if not self._end.done():
            self._end.set_result(error)

    # -- commands to the controller

    def release(self, generation: int, segment_ids: Sequence[int]) -> None:
        """Report released segments. If this is lost with the connection, the next registration lists what is held."""
        if self._connection is not None and self._connection.has_extensions:
            self._connection.write(
                command(
                    BaseCommand.SEGMENT_RELEASE,
                    consumer_id=self._consumer_id,
                    generation=generation,
                    segment_ids=list(segment_ids),
                )
            )

    async def progress(self, marks: dict[int, Mark], timeout_s: float) -> None:
        """Report the progress of a group member. Returns when the controller has stored it."""
        connection = self._connection
        if connection is None or not connection.has_extensions:
            return
        segments = []
        for one, mark in sorted(marks.items()):
            progress = pb.SegmentProgress(segment_id=one, completed=isinstance(mark, Done))
            if isinstance(mark, After):
                progress.position.CopyFrom(wire_id(mark.id))
                if mark.since is not None:
                    progress.since.ledgerId, progress.since.entryId = (part & U64_MASK for part in mark.since)
            segments.append(progress)
        await connection.ask(
            BaseCommand.CHECKPOINT_PROGRESS, timeout_s, consumer_id=self._consumer_id, segments=segments
        )

    async def leave(self, timeout_s: float) -> None:
        """End the session at once. Brokers without the command end it with the connection, after a grace period."""
        connection = self._connection
        if connection is not None and connection.has_extensions and connection.is_usable and timeout_s > 0:
            try:
                await connection.ask(
                    BaseCommand.SCALABLE_TOPIC_LEAVE,
                    min(timeout_s, CLOSE_TIMEOUT_SECONDS),
                    consumer_id=self._consumer_id,
                )
            except ClientError as error:
                log.info(
                    "controller did not confirm that the consumer left",
                    extra={**self._log_fields, "reason": error.reason},
                )


def _replaced(error: Refused) -> ConsumerReplaced:
    made = ConsumerReplaced(error.reason)
    made.server_error = error.server_error
    return made
