"""The sessions that one store object has open: made, revived and ended through the intake. Knows no watches.

A session is a row and a locked file, written under one lock; whatever fails in between is undone or swept by others.
"""

from __future__ import annotations

import asyncio
import logging

from anabranch.metadata.interface import Session, SessionLost, StoreUnavailable
from anabranch.metadata.sqlite.session import SqliteSession
from anabranch.metadata.sqlite.session_files import SessionFiles
from anabranch.metadata.sqlite.tables import Writing
from anabranch.metadata.sqlite.write_queue import WriteQueue
from anabranch.metadata.sqlite.writer import Operation
from anabranch.runtime.clock import Clock

log = logging.getLogger(__name__)


class OpenSessions:
    def __init__(self, intake: WriteQueue, files: SessionFiles, clock: Clock) -> None:
        self._intake = intake
        self._files = files
        self._clock = clock
        self._open: set[SqliteSession] = set()

    async def open(self, ttl_ms: int) -> SqliteSession:
        now_ms, born = self._clock.now_ms(), self._clock.monotonic()
        made: list[int] = []

        def create(table: Writing, files: SessionFiles) -> int:
            made.append(table.create_session(now_ms, ttl_ms))
            files.create(made[0], ttl_ms, born)
            return made[0]

        def undo(table: Writing, files: SessionFiles) -> None:
            if made:
                table.end_session(made[0])

        try:
            session_id = await self._intake.write(create)
        except (asyncio.CancelledError, StoreUnavailable):  # nobody will use it, if there is one
            self._intake.submit(Operation(None, undo, lambda files: files.remove(made[0]) if made else None))
            raise
        self._intake.check()
        session = SqliteSession(session_id, ttl_ms, born, self._clock, self._files, self._end, self._revive)
        self._open.add(session)
        session.beat_later()
        return session

    def number_of(self, session: Session | None) -> int | None:
        if session is None:
            return None
        if not isinstance(session, SqliteSession) or session not in self._open:
            raise SessionLost("the session has ended")
        return session.session_id

    async def close(self) -> None:
        for session in tuple(self._open):
            try:
                await self._end(session)
            except StoreUnavailable as error:  # closing drops its lock, so the next to look ends it
                log.warning("session was not ended", extra={"error": str(error)})

    def forget(self, session: Session | None) -> None:
        """Others ended it: nothing is left but our file."""
        if isinstance(session, SqliteSession) and session in self._open:
            self._open.discard(session)
            session.stop()
            session_id = session.session_id
            self._intake.submit(Operation(None, lambda table, files: None, lambda files: files.remove(session_id)))

    async def _end(self, session: SqliteSession) -> None:
        if session in self._open:
            session_id = session.session_id
            self._open.discard(session)
            session.stop()
            await self._intake.write(
                lambda table, files: table.end_session(session_id), after=lambda files: files.remove(session_id)
            )

    def _revive(self, session: SqliteSession) -> None:
        """A heartbeat came late: does the session exist still? If so it beats again, in the same transaction."""

        def check(table: Writing, files: SessionFiles) -> float | None:
            if not table.has_session(session.session_id):
                return None
            now = self._clock.monotonic()
            files.beat(session.session_id, session.ttl_ms, now)
            return now

        def checked(done: asyncio.Future[float | None]) -> None:
            if done.cancelled() or done.exception() is not None:
                session.revived(None)
            elif (at := done.result()) is None:
                self.forget(session)
            else:
                session.revived(at)

        answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(checked)
        self._intake.submit(Operation(answer, check))
