"""WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE: names of a namespace's persistent topics that match a pattern, as they
come and go.

    opening --SUCCESS--> open <--permission revoked, given again--> silent
    any --WATCH_TOPIC_LIST_CLOSE, same watcher id again, connection closed--> over

A client with a watch does not poll any more. So a watch stays while its permission is revoked, without updates, and an
update that has to wait for room on the socket is computed from the newest list.
"""

from __future__ import annotations

from typing import Any

from anabranch.broker.catalog.topic_lists import TopicListWatch
from anabranch.broker.catalog.topic_lists_state import TopicList, parts_of
from anabranch.broker.errors import TooManyRequests
from anabranch.broker.services import Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import parse_namespace
from anabranch.protocol import replies
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.frames import Frame
from anabranch.security.authorization import Resource

WATCHERS_MAX = 1_000
"""Watches of one connection."""
UPDATE_BYTES_MAX = 1024 * 1024
"""Names in one WATCH_TOPIC_UPDATE; more are sent in several."""


class TopicListSession:
    """One watch; implements `topic_lists.TopicListListener`."""

    def __init__(self, connection: Connection, watcher_id: int, namespace: str) -> None:
        self.namespace = namespace
        self.watch: TopicListWatch | None = None
        self.is_allowed = False
        self.is_over = False
        self._connection, self._id = connection, watcher_id
        self._sent: TopicList | None = None  # None until SUCCESS

    def opened(self, sent: TopicList) -> None:
        """The client has this list."""
        self._sent = sent

    def topics_changed(self, found: TopicList) -> None:
        self.writable()

    def writable(self) -> None:
        """Send what has changed, if it may be sent now."""
        sent = self._sent
        if sent is None or self.watch is None or self.is_over or not self.is_allowed or not self._connection.has_room:
            return
        found = self.watch.found
        if found is sent:
            return
        self._sent = found
        for deleted in parts_of(found.deleted_since(sent), UPDATE_BYTES_MAX):
            if deleted:
                self._update([], deleted, found.digest)
        for added in parts_of(found.added_since(sent), UPDATE_BYTES_MAX):
            if added:
                self._update(added, [], found.digest)

    def _update(self, added: list[str], deleted: list[str], digest: str) -> None:
        self._connection.send(replies.topic_list_update(self._id, added, deleted, topics_hash=digest))

    def close(self) -> None:
        self.is_over = True
        watch, self.watch = self.watch, None  # it refers to this session
        if watch is not None:
            watch.close()


class TopicListCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services
        self._sessions: dict[int, TopicListSession] = {}

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.WATCH_TOPIC_LIST): self._watch,
            int(BaseCommand.WATCH_TOPIC_LIST_CLOSE): self._close,
        }

    def writable(self) -> None:
        for session in tuple(self._sessions.values()):
            session.writable()

    def closed(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        for session in tuple(self._sessions.values()):
            if tenant in (None, session.namespace.partition("/")[0]) and namespace in (None, session.namespace):
                try:
                    await self._authorize(session.namespace)
                except Error:
                    session.is_allowed = False
                else:
                    session.is_allowed = True
                    session.writable()

    async def _authorize(self, namespace: str) -> None:
        await self._connection.authorize(BaseCommand.WATCH_TOPIC_LIST, Resource.of_namespace(namespace))

    def _watch(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_watch(body), "watch topics")

    async def _answer_watch(self, body: Any) -> None:
        if self._services.topic_lists is None:
            raise NotAllowed("topic lists cannot be watched at this broker")
        parse_namespace(body.namespace)
        if (earlier := self._sessions.pop(body.watcher_id, None)) is not None:
            earlier.close()
        if len(self._sessions) >= WATCHERS_MAX:
            raise TooManyRequests(f"{WATCHERS_MAX} topic lists are watched on this connection already")
        session = self._sessions[body.watcher_id] = TopicListSession(self._connection, body.watcher_id, body.namespace)
        try:
            watch = await self._open(session, body.topics_pattern)
            self._send_list(body, session, watch.found)
        except BaseException:
            if self._sessions.get(body.watcher_id) is session:
                del self._sessions[body.watcher_id]
            session.close()
            raise

    async def _open(self, session: TopicListSession, pattern: str) -> TopicListWatch:
        assert self._services.topic_lists is not None
        changes = self._connection.access_changes
        await self._authorize(session.namespace)
        session.is_allowed = True
        watch = session.watch = await self._services.topic_lists.watch(session.namespace, pattern, session)
        if changes != self._connection.access_changes:  # perhaps revoked while the topics were read
            await self._authorize(session.namespace)
        if session.is_over:
            raise NotAllowed("the watch was closed while it was opened")
        return watch

    def _send_list(self, body: Any, session: TopicListSession, found: TopicList) -> None:
        is_known = body.HasField("topics_hash") and body.topics_hash == found.digest
        names = [] if is_known else sorted(found.names)
        if sum(len(name.encode()) + 4 for name in names) > self._services.settings.message_bytes_max:
            raise NotAllowed(f"{len(names)} topics match the pattern: more than one answer can hold")
        session.opened(found)
        self._connection.send(
            replies.topic_list_watched(body.request_id, body.watcher_id, names, topics_hash=found.digest)
        )

    def _close(self, body: Any, frame: Frame) -> None:
        session = self._sessions.pop(body.watcher_id, None)
        if session is not None:
            session.close()
        self._connection.send(replies.success(body.request_id))
