"""A consumer's session with the controller of a scalable topic: registers it, hears its assignments, comes back.

Knows where controllers are and when to ask again; what an assignment means is for `holdings`. The session has a
connection of its own: brokers that know no farewell end it with the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from anabranch.client.connection.address import Address
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_state import command
from anabranch.client.consumer.checkpoint import After, Done, Mark
from anabranch.client.consumer.segment_consumer import FAREWELL_SECONDS
from anabranch.client.context import ClientContext
from anabranch.client.errors import (
    ClientError,
    NotAllowed,
    NotAuthenticated,
    NotAuthorized,
    NotReady,
    TimedOut,
    refusal,
)
from anabranch.client.messages.message import read_wire_id, wire_id
from anabranch.client.topic.layout_watch import TopicWatch
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.errors import Error
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import U64_MASK, BaseCommand, position_of
from anabranch.protocol.entry import Bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a consumer is to read: segments and their topics on the wire. `generation` None: it does not count them."""

    segments: dict[int, str]
    generation: int | None
    epoch: int
    incarnation: int
    marks: dict[int, Mark] = field(default_factory=dict)  # of a group: how far it was, as its members have reported
    void_below: int = 0  # what was assigned under a lower generation was read before the subscription was moved


class Moved(NotReady):
    """Another broker leads the topic now."""

    code = "controller-moved"


class SessionListener(Protocol):
    """Who sits there. Called on the event loop; must not raise."""

    def assigned(self, assignment: Assigned) -> None: ...

    def holding(self) -> tuple[tuple[int, ...], int | None]:
        """What is still read, and the generation it was assigned in."""

    def registered(self) -> None:
        """The controller knows us, and what it said first is applied."""

    def refused(self, error: ClientError) -> None:
        """It can never have a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    subscription: str
    consumer_name: str
    kind: pb.ScalableConsumerType
    from_earliest: bool


class ControllerSession:
    def __init__(self, watch: TopicWatch, spec: SessionSpec, seat: SessionListener, ground: ClientContext) -> None:
        self._watch = watch
        self._spec = spec
        self._seat = seat
        self._ground = ground
        self._connection: Connection | None = None
        self._consumer_id = 0
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._end: asyncio.Future[ClientError] = loop.create_future()
        self._first: asyncio.Future[ClientError | None] = loop.create_future()
        self._last_error: ClientError | None = None
        self._unfollow: Callable[[], None] | None = None

    async def wait_first(self, timeout_s: float) -> None:
        """Until it is registered; raises why it cannot be."""
        try:
            async with asyncio.timeout(timeout_s):
                error = await asyncio.shield(self._first)
        except TimeoutError:
            why = "no controller answers" if self._last_error is None else self._last_error.reason
            raise TimedOut(f"{self._watch.topic} is not available: {why}") from self._last_error
        if error is not None:
            raise error

    async def run(self) -> None:
        """Until cancelled, or refused for good."""
        attempt = 0
        self._unfollow = self._watch.follow(self._seen)
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
                if isinstance(error, NotAuthorized | NotAuthenticated | NotAllowed):
                    self._seat.refused(error)
                    if not self._first.done():
                        self._first.set_result(error)
                    return
                attempt = 0 if was_registered else attempt + 1
                delay = self._ground.backoff.delay(max(0, attempt - 1), self._ground.chance.random())
                log.info("registering again", extra={"topic": str(self._watch.topic), "reason": error.reason})
                if attempt:  # whoever we asked may not lead any more
                    self._watch.ask_again()
                if not isinstance(error, Moved):
                    await self._ground.clock.sleep(delay)
        finally:
            self._unfollow()

    async def _register(self) -> None:
        view, pool = self._watch.view, self._ground.pool
        controller = pool.address_of(view.controller.url, view.controller.url_tls)
        connection = self._connection = await pool.private(Address.parse(controller) if controller else None)
        self._consumer_id = connection.new_id()
        connection.listen_consumer(self._consumer_id, self)  # assignments may come before the answer
        spec = self._spec
        held, generation = self._seat.holding()
        ours = connection.has_extensions
        where = pb.CommandSubscribe.Earliest if spec.from_earliest else pb.CommandSubscribe.Latest
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
        )
        if answer.HasField("error"):
            raise refusal(answer.error, answer.message)
        if answer.HasField("assignment"):
            self._told(answer.assignment)
        self._seat.registered()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.unlisten(self._consumer_id)
            await connection.close()

    # -- what comes

    def heard(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind == BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            self._told(body.assignment)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self._over(NotReady("the controller closed the session"))

    def detached(self, error: ClientError) -> None:
        self._over(error)

    def _told(self, body: pb.ScalableConsumerAssignment) -> None:
        self._seat.assigned(
            Assigned(
                {one.segment_id: one.segment_topic for one in body.segments},
                body.generation if body.HasField("generation") else None,
                body.layout_epoch,
                body.incarnation,
                {one.segment_id: self._mark(one) for one in body.segments if one.HasField("position")},
                body.void_below,
            )
        )

    def _mark(self, one: pb.ScalableAssignedSegment) -> Mark:
        topic = str(self._watch.view.topic)
        since = position_of(one.since) if one.HasField("since") else None
        return After(read_wire_id(one.position.SerializeToString(), topic, one.segment_id), since)

    def _seen(self, view: TopicView) -> None:
        address = self._ground.pool.address_of(view.controller.url, view.controller.url_tls)
        connection = self._connection
        if connection is not None and address and not connection.address.is_same_place(Address.parse(address)):
            self._over(Moved("another broker leads the topic"))

    def _over(self, error: ClientError) -> None:
        if not self._end.done():
            self._end.set_result(error)

    # -- what is said

    def release(self, generation: int, segment_ids: Sequence[int]) -> None:
        """Lost with the connection it is told anew: the next registration says what is held."""
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
        """How far a member of a group is; returns when it is durable."""
        connection = self._connection
        if connection is None or not connection.has_extensions:
            return
        segments = []
        for one, mark in sorted(marks.items()):
            said = pb.SegmentProgress(segment_id=one, completed=isinstance(mark, Done))
            if isinstance(mark, After):
                said.position.CopyFrom(wire_id(mark.id))
                if mark.since is not None:
                    said.since.ledgerId, said.since.entryId = (part & U64_MASK for part in mark.since)
            segments.append(said)
        await connection.ask(
            BaseCommand.CHECKPOINT_PROGRESS, timeout_s, consumer_id=self._consumer_id, segments=segments
        )

    async def leave(self, timeout_s: float) -> None:
        """Ends the session at once, where the broker knows how; otherwise with the connection and a grace period."""
        connection = self._connection
        if connection is not None and connection.has_extensions and connection.is_usable and timeout_s > 0:
            try:
                await connection.ask(
                    BaseCommand.SCALABLE_TOPIC_LEAVE,
                    min(timeout_s, FAREWELL_SECONDS),
                    consumer_id=self._consumer_id,
                )
            except ClientError as error:
                log.info("left without a farewell", extra={"reason": error.reason})
