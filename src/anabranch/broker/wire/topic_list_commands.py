"""WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE: names of a namespace's persistent topics that match a pattern, as they
come and go.

    opening --SUCCESS--> open <--permission revoked, given again--> silent
    any --WATCH_TOPIC_LIST_CLOSE, same watcher id again, connection closed--> over

A client with a watch does not poll any more. So a watch stays while its permission is revoked, without updates, and an
update that has to wait for room on the socket is computed from the newest list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.broker.catalog.namespace_lists import NamespaceLists, Selector, TopicListWatch
from anabranch.broker.catalog.topic_lists_state import TopicList, parts_of
from anabranch.broker.errors import TooManyRequests
from anabranch.broker.services import Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import parse_namespace
from anabranch.model.topic_pattern import TopicPattern
from anabranch.protocol import replies
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.frames import Frame
from anabranch.security.authorization import Resource

WATCHERS_MAX = 1_000
"""Watches of one connection."""
UPDATE_BYTES_MAX = 1024 * 1024
"""Names in one WATCH_TOPIC_UPDATE; more are sent in several."""


SendUpdate = Callable[[list[str], list[str], str], None]
"""Called with added names, deleted names and the digest of the whole list."""


class TopicListSession:
    """One watch; implements `namespace_lists.TopicListListener`."""

    def __init__(self, connection: Connection, namespace: str, update: SendUpdate) -> None:
        self.namespace = namespace
        self.watch: TopicListWatch | None = None
        self.is_allowed = False
        self.is_over = False
        self._connection, self._update = connection, update
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

    def close(self) -> None:
        self.is_over = True
        watch, self.watch = self.watch, None  # it refers to this session
        if watch is not None:
            watch.close()


class TopicListSessions:
    """The watches of one connection, opened with one kind of command."""

    def __init__(self, connection: Connection, command: int) -> None:
        self._connection, self._command = connection, command
        self._sessions: dict[int, TopicListSession] = {}

    def begin(self, watch_id: int, namespace: str, update: SendUpdate) -> TopicListSession:
        """Ends an earlier one with the same id. Raises BadName, TooManyRequests."""
        parse_namespace(namespace)
        self.end(watch_id)
        if len(self._sessions) >= WATCHERS_MAX:
            raise TooManyRequests(f"{WATCHERS_MAX} topic lists are watched on this connection already")
        session = self._sessions[watch_id] = TopicListSession(self._connection, namespace, update)
        return session

    async def watch(
        self, session: TopicListSession, lists: NamespaceLists, selector: Callable[[], Selector]
    ) -> TopicList:
        """The first list. Raises NotAllowed, LimitExceeded, StoreUnavailable."""
        changes = self._connection.access_changes
        await self._authorize(session)
        session.is_allowed = True
        session.watch = await lists.watch(session.namespace, selector(), session)
        if changes != self._connection.access_changes:  # perhaps revoked while the topics were read
            await self._authorize(session)
        if session.is_over:
            session.close()
            raise NotAllowed("the watch was closed while it was opened")
        return session.watch.found

    async def _authorize(self, session: TopicListSession) -> None:
        await self._connection.authorize(self._command, Resource.of_namespace(session.namespace))

    def drop(self, watch_id: int, session: TopicListSession) -> None:
        if self._sessions.get(watch_id) is session:
            del self._sessions[watch_id]
        session.close()

    def end(self, watch_id: int) -> None:
        session = self._sessions.pop(watch_id, None)
        if session is not None:
            session.close()

    def end_all(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def writable(self) -> None:
        for session in tuple(self._sessions.values()):
            session.writable()

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        for session in tuple(self._sessions.values()):
            if tenant in (None, session.namespace.partition("/")[0]) and namespace in (None, session.namespace):
                try:
                    await self._authorize(session)
                except Error:
                    session.is_allowed = False
                else:
                    session.is_allowed = True
                    session.writable()


class TopicListCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services
        self._sessions = TopicListSessions(connection, int(BaseCommand.WATCH_TOPIC_LIST))

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.WATCH_TOPIC_LIST): self._watch,
            int(BaseCommand.WATCH_TOPIC_LIST_CLOSE): self._close,
        }

    def writable(self) -> None:
        self._sessions.writable()

    def closed(self) -> None:
        self._sessions.end_all()

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        await self._sessions.permissions_changed(tenant, namespace)

    def _watch(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_watch(body), "watch topics")

    async def _answer_watch(self, body: Any) -> None:
        lists, watcher_id = self._services.topic_lists, body.watcher_id
        if lists is None:
            raise NotAllowed("topic lists cannot be watched at this broker")

        def update(added: list[str], deleted: list[str], digest: str) -> None:
            self._connection.send(replies.topic_list_update(watcher_id, added, deleted, topics_hash=digest))

        session = self._sessions.begin(watcher_id, body.namespace, update)
        try:
            found = await self._sessions.watch(session, lists, lambda: TopicPattern(body.topics_pattern))
            self._send_list(body, session, found)
        except BaseException:
            self._sessions.drop(watcher_id, session)
            raise

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
        self._sessions.end(body.watcher_id)
        self._connection.send(replies.success(body.request_id))
