"""Commands of scalable topics: layout sessions (70-72), consumers of ordered subscriptions (73-75), 200-202.

A layout session works on any broker. Consumers register at the broker that leads their topic. An update is not queued
while the socket queue is full: the newest state is sent when there is room.
"""

from __future__ import annotations

from typing import Any

from anabranch.broker.errors import ConsumerNotFound, TooManyRequests
from anabranch.broker.services import Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler, concerns
from anabranch.controller.interface import (
    AssignedSegments,
    ConsumerRegistration,
    LayoutView,
    LayoutWatch,
    LedElsewhere,
    Registration,
    Report,
    ScalableTopics,
    SessionTaken,
    Start,
    SubscriptionKind,
)
from anabranch.model.errors import BadName, Error, NotAllowed
from anabranch.model.names import TopicName, check_subscription_name
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol import replies, scalable
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.errors import BadCommand
from anabranch.protocol.frames import Frame
from anabranch.protocol.server_errors import ServerError, server_error
from anabranch.runtime.logs import get_logger
from anabranch.security.authorization import Resource

log = get_logger(__name__)

WATCHES_MAX = 10_000
"""Layout sessions of one connection."""


class LayoutSession:
    """One layout session; implements `controller.interface.LayoutListener`."""

    def __init__(self, connection: Connection, session_id: int, topic: TopicName) -> None:
        self.topic = topic
        self._connection, self._id = connection, session_id
        self._unsent: LayoutView | None = None
        self.watch: LayoutWatch | None = None
        self.is_over = False

    def layout_changed(self, view: LayoutView) -> None:
        if self.is_over:
            return
        if not self._connection.has_room:
            self._unsent = view
            return
        self._unsent = None
        self._connection.send(
            scalable.layout_update(
                self._id,
                view.topic,
                view.layout,
                incarnation=view.incarnation,
                brokers=view.brokers,
                controller=view.controller,
                operation_id=view.operation_id,
                plan=view.plan,
                extensions=self._connection.extensions,
                reads_migrated=self._connection.reads_migrated,
            )
        )

    def layout_failed(self, error: Error) -> None:
        if not self.is_over:
            self._unsent, self.is_over = None, True
            self._connection.send(scalable.layout_failed(self._id, server_error(error), error.reason))

    def writable(self) -> None:
        if self._unsent is not None:
            self.layout_changed(self._unsent)

    def close(self) -> None:
        self.is_over = True
        watch, self.watch = self.watch, None  # it refers to this session
        if watch is not None:
            watch.close()


class RegisteredConsumer:
    """One registered consumer; implements `controller.interface.AssignmentListener`."""

    def __init__(self, connection: Connection, consumer_id: int, topic: TopicName, wish: Registration) -> None:
        self.consumer_id, self.topic, self.wish = consumer_id, topic, wish
        self.registration: ConsumerRegistration | None = None
        self._connection = connection
        self._unsent: AssignedSegments | None = None
        self.is_over = False

    @property
    def reports_releases(self) -> bool:
        return self._connection.extensions

    def assigned(self, assignment: AssignedSegments) -> None:
        if self.is_over:
            return
        if not self._connection.has_room:
            self._unsent = assignment
            return
        self._unsent = None
        self._connection.send(scalable.assignment_update(self.consumer_id, self.as_wire(assignment)))

    def as_wire(self, assigned: AssignedSegments) -> pb.ScalableConsumerAssignment:
        return scalable.assignment(
            assigned.topic,
            assigned.segments,
            epoch=assigned.epoch,
            generation=assigned.generation,
            incarnation=assigned.incarnation,
            extensions=self._connection.extensions,
            reached=assigned.reached,
            void_below=assigned.void_below,
            after=assigned.after,
            buckets=assigned.buckets,
        )

    def ended(self, error: Error) -> None:
        """A client with our extensions registers again, unless another consumer has the session now. Pulsar's V5 client
        does so only when its connection ends, so the connection is closed if it could go on elsewhere."""
        if self.is_over:
            return
        if not self._connection.extensions:
            if error.retryable:
                log.info(
                    "connection closed, its consumer has to register again",
                    extra={
                        "peer": self._connection.address,
                        "topic": str(self.topic),
                        "reason": error.reason,
                    },
                )
                self._connection.close()
        elif isinstance(error, SessionTaken):
            self._connection.send(scalable.session_over(self.consumer_id, server_error(error), error.reason))
        else:
            self._connection.send(replies.close_consumer(self.consumer_id))
        self.is_over = True

    def writable(self) -> None:
        if self._unsent is not None:
            self.assigned(self._unsent)

    def close(self) -> None:
        self.is_over = True
        registration, self.registration = self.registration, None  # it refers to this consumer
        if registration is not None:
            registration.disconnected()


class ScalableCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services
        self._sessions: dict[int, LayoutSession] = {}
        self._members: dict[int, RegisteredConsumer] = {}

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.SCALABLE_TOPIC_LOOKUP): self._lookup,
            int(BaseCommand.SCALABLE_TOPIC_CLOSE): self._close,
            int(BaseCommand.SCALABLE_TOPIC_SUBSCRIBE): self._subscribe,
            int(BaseCommand.SEGMENT_RELEASE): self._release,
            int(BaseCommand.SCALABLE_TOPIC_LEAVE): self._leave,
            int(BaseCommand.CHECKPOINT_PROGRESS): self._progress,
        }

    def writable(self) -> None:
        for session in tuple(self._sessions.values()):
            session.writable()
        for member in tuple(self._members.values()):
            member.writable()

    def closed(self) -> None:
        for session in self._sessions.values():
            session.close()
        for member in self._members.values():
            member.close()
        self._sessions.clear()
        self._members.clear()

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        for session_id, session in tuple(self._sessions.items()):
            if not concerns(session.topic, tenant, namespace):
                continue
            try:
                await self._connection.authorize(BaseCommand.SCALABLE_TOPIC_LOOKUP, Resource.of_topic(session.topic))
            except Error as error:
                session.layout_failed(error)
                self._forget(session_id)
        for consumer_id, member in tuple(self._members.items()):
            if not concerns(member.topic, tenant, namespace):
                continue
            try:
                await self._authorize_member(member.topic, member.wish.subscription)
            except Error:
                if self._members.get(consumer_id) is member:
                    del self._members[consumer_id]
                await self._remove_unauthorized(member)

    async def _remove_unauthorized(self, member: RegisteredConsumer) -> None:
        """Remove a consumer whose grant was revoked. If that cannot be stored now, its grace period ends it."""
        try:
            if member.registration is not None:
                await member.registration.leave()
        except Error as error:
            log.warning("consumer with revoked grant not removed yet", extra={"reason": error.reason})
        member.close()

    def _controllers(self) -> ScalableTopics:
        found = self._services.scalable
        if found is None or not found.is_enabled:
            raise NotAllowed("scalable topics are switched off (scalable_topics.enabled)")
        return found

    # -- layouts

    def _lookup(self, body: Any, frame: Frame) -> None:
        session_id, connection = body.session_id, self._connection
        try:
            topic = TopicName.parse(body.topic)
        except BadName as error:
            raise BadCommand(error.reason) from error  # the connection is closed, as in Pulsar
        self._forget(session_id)
        session = self._sessions[session_id] = LayoutSession(connection, session_id, topic)
        if len(self._sessions) > WATCHES_MAX:
            self._sessions.pop(session_id)
            session.layout_failed(TooManyRequests(f"{WATCHES_MAX} layout sessions are open on this connection already"))
            return
        connection.tasks.spawn(self._open(session, body.create_if_missing), "layout lookup")

    async def _open(self, session: LayoutSession, create: bool) -> None:
        try:
            await self._connection.authorize(BaseCommand.SCALABLE_TOPIC_LOOKUP, Resource.of_topic(session.topic))
            controllers = self._controllers()
            if not session.is_over:
                session.watch = controllers.watch(session.topic, session, create=create)
        except Error as error:
            session.layout_failed(error)
        if session.is_over:
            session.close()

    def _close(self, body: Any, frame: Frame) -> None:
        self._forget(body.session_id)

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    # -- consumers

    def _subscribe(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._register(body), "scalable subscribe")

    async def _register(self, body: Any) -> None:
        try:
            member, assigned = await self._registered(body)
        except Error as error:
            code = server_error(error)
            if isinstance(error, LedElsewhere) and not self._connection.extensions:
                code = ServerError.UnknownError  # as in Pulsar, whose client then looks the leader up
            self._connection.send(scalable.subscribe_failed(body.request_id, code, error.reason))
            return
        self._connection.send(scalable.subscribed(body.request_id, member.as_wire(assigned)))

    async def _registered(self, body: Any) -> tuple[RegisteredConsumer, AssignedSegments]:
        topic = TopicName.parse(body.topic).scalable
        subscription = check_subscription_name(body.subscription)
        await self._authorize_member(topic, subscription)
        controllers = self._controllers()
        start = Start.LATEST if self._connection.extensions else Start.FIRST
        if body.HasField("initial_position") and body.initial_position == pb.CommandSubscribe.Earliest:
            start = Start.EARLIEST
        wish = Registration(
            subscription,
            SubscriptionKind.STREAM if body.consumer_type == pb.STREAM else SubscriptionKind.CHECKPOINT,
            check_subscription_name(body.consumer_name),
            start,
            tuple(body.held_segments),
            body.generation if body.HasField("generation") else None,
            continues=self._connection.continues,
            incarnation=body.incarnation if body.HasField("incarnation") else None,
            instance=body.instance if body.HasField("instance") else None,
            shares=body.shares_buckets,
        )
        self._drop(body.consumer_id)
        member = RegisteredConsumer(self._connection, body.consumer_id, topic, wish)
        self._members[body.consumer_id] = member
        try:
            assigned, member.registration = await controllers.register(topic, wish, member)
        except BaseException:
            if self._members.get(body.consumer_id) is member:
                del self._members[body.consumer_id]
            member.is_over = True
            raise
        if member.is_over:  # closed, or registered again, while this registration was stored
            member.close()
        return member, assigned

    async def _authorize_member(self, topic: TopicName, subscription: str) -> None:
        resource = Resource.of_topic(topic, subscription)
        await self._connection.authorize(BaseCommand.SCALABLE_TOPIC_SUBSCRIBE, resource)

    def _drop(self, consumer_id: int) -> None:
        member = self._members.pop(consumer_id, None)
        if member is not None:
            member.close()

    def _registration(self, consumer_id: int) -> ConsumerRegistration:
        member = self._members.get(consumer_id)
        if member is None or member.registration is None or member.is_over:
            raise ConsumerNotFound(f"no consumer {consumer_id} is registered on this connection")
        return member.registration

    def _release(self, body: Any, frame: Frame) -> None:
        member = self._members.get(body.consumer_id)
        if member is not None and member.registration is not None:
            member.registration.released(body.segment_ids, body.generation)

    def _leave(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_leave(body), "leave")

    async def _answer_leave(self, body: Any) -> None:
        registration = self._registration(body.consumer_id)
        await registration.leave()
        member = self._members.pop(body.consumer_id, None)
        if member is not None:
            member.is_over, member.registration = True, None
        self._connection.send(replies.success(body.request_id))

    def _progress(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_progress(body), "checkpoint progress")

    async def _answer_progress(self, body: Any) -> None:
        reports = [Report(one.segment_id, scalable.reached(one), one.completed) for one in body.segments]
        await self._registration(body.consumer_id).progressed(reports)
        self._connection.send(replies.success(body.request_id))
