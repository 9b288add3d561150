"""WATCH_SCALABLE_TOPICS and its CLOSE: names of a namespace's scalable topics with certain properties, as they come and
go.

    opening --snapshot, or nothing if the client has the list--> open <--permission revoked, given again--> silent
    any --CLOSE, same watch id again, connection closed--> over

The first list comes as a snapshot. A client that connects again names the hash of its list; if the list is the same,
nothing is sent. Changes come as diffs, computed from the newest list when the socket has room.
"""

from __future__ import annotations

from typing import Any

from anabranch.broker.catalog.scalable_lists import PropertyFilter
from anabranch.broker.catalog.topic_lists_state import parts_of
from anabranch.broker.services import Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.broker.wire.topic_list_commands import UPDATE_BYTES_MAX, TopicListSession, TopicListSessions
from anabranch.model.errors import BadName, Error, NotAllowed
from anabranch.protocol import scalable
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.frames import Frame
from anabranch.protocol.server_errors import ServerError, server_error


class ScalableListCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services
        self._sessions = TopicListSessions(connection, int(BaseCommand.WATCH_SCALABLE_TOPICS))

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.WATCH_SCALABLE_TOPICS): self._watch,
            int(BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE): self._close,
        }

    def writable(self) -> None:
        self._sessions.writable()

    def closed(self) -> None:
        self._sessions.end_all()

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        await self._sessions.permissions_changed(tenant, namespace)

    def _watch(self, body: Any, frame: Frame) -> None:
        self._connection.tasks.spawn(self._open(body), "watch scalable topics")

    async def _open(self, body: Any) -> None:
        watch_id = body.watch_id

        def update(added: list[str], deleted: list[str], digest: str) -> None:
            self._connection.send(scalable.topics_diff(watch_id, added, deleted))

        session: TopicListSession | None = None
        try:
            lists = self._services.scalable_lists
            if lists is None:
                raise NotAllowed("scalable topics are switched off at this broker")
            session = self._sessions.begin(watch_id, body.namespace, update)
            wanted = PropertyFilter({one.key: one.value for one in body.property_filters})
            found = await self._sessions.watch(session, lists, lambda: wanted)
        except Error as error:
            if session is None or not session.is_over:
                code = ServerError.InvalidTopicName if isinstance(error, BadName) else server_error(error)
                self._connection.send(scalable.topics_watch_failed(watch_id, code, error.reason))
            if session is not None:
                self._sessions.drop(watch_id, session)
            return
        if body.current_hash != found.digest:
            first, *rest = parts_of(sorted(found.names), UPDATE_BYTES_MAX)
            self._connection.send(scalable.topics_snapshot(watch_id, first))
            for more in rest:
                self._connection.send(scalable.topics_diff(watch_id, more, []))
        session.opened(found)
        session.writable()

    def _close(self, body: Any, frame: Frame) -> None:
        self._sessions.end(body.watch_id)
