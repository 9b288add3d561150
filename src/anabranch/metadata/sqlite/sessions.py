"""Sessions of the SQLite store: heartbeats, and the set that one store object has open.

A session is a row and a locked file, written under the writer lock. If a step in between fails, it is undone, or
another process sweeps the remains.

A heartbeat is only a write into the session's file. It extends `valid_until` if it was written before the previous one
ran out, because then no other process can have found the session silent. A late heartbeat (the process was stopped or
the loop was blocked) proves nothing, so the database is asked whether another process ended the session meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from anabranch.metadata.interface import Session, SessionEvent, SessionLost, StoreUnavailable
from anabranch.metadata.session_base import SessionLife
from anabranch.metadata.sqlite.session_files import SessionFiles
from anabranch.metadata.sqlite.tables import WriteTables
from anabranch.metadata.sqlite.write_queue import WriteQueue
from anabranch.metadata.sqlite.writer import Operation
from anabranch.runtime.clock import Clock, Timer

log = logging.getLogger(__name__)

BEATS_PER_TTL = 4


class SqliteSession(SessionLife):
    def __init__(
        self,
        session_id: int,
        ttl_ms: int,
        born: float,
        clock: Clock,
        files: SessionFiles,
        close: Callable[[SqliteSession], Awaitable[None]],
        revive: Callable[[SqliteSession], None],
    ) -> None:
        """`born` is the time in the file now; `revive` asks the database and calls `revived`."""
        super().__init__(ttl_ms)
        self.session_id = session_id
        self._clock = clock
        self._files = files
        self._close = close
        self._revive = revive
        self._valid_until = born + ttl_ms / 1000
        self._is_reviving = False
        self._timer: Timer | None = None

    @property
    def valid_until(self) -> float:
        return self._valid_until

    async def close(self) -> None:
        await self._close(self)

    def beat_later(self) -> None:
        self._timer = self._clock.call_later(self._ttl_ms / 1000 / BEATS_PER_TTL, self._ring)

    def _ring(self) -> None:
        if self.is_lost:
            return
        self.beat_later()
        if not self._is_reviving and not self._beat():
            self._is_reviving = True
            self.tell(SessionEvent.DISCONNECTED)
            self._revive(self)

    def _beat(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._valid_until:
            return False
        self._files.beat(self.session_id, self._ttl_ms, now)
        if self._clock.monotonic() >= self._valid_until:
            return False  # it may have been written too late
        self._valid_until = now + self._ttl_ms / 1000
        return True

    def revived(self, at: float | None) -> None:
        """The database has the session still, with a heartbeat of that time; None: nobody knows, ask again later."""
        self._is_reviving = False
        if at is not None and not self.is_lost:
            self._valid_until = max(self._valid_until, at + self._ttl_ms / 1000)
            self.tell(SessionEvent.RECONNECTED)

    def stop(self) -> None:
        """No heartbeat after this: the file may be removed."""
        if self._timer is not None:
            self._timer.cancel()
        self.tell(SessionEvent.LOST)


class OpenSessions:
    def __init__(self, intake: WriteQueue, files: SessionFiles, clock: Clock) -> None:
        self._intake = intake
        self._files = files
        self._clock = clock
        self._open: set[SqliteSession] = set()

    async def open(self, ttl_ms: int) -> SqliteSession:
        now_ms, born = self._clock.now_ms(), self._clock.monotonic()
        made: list[int] = []

        def create(table: WriteTables, files: SessionFiles) -> int:
            made.append(table.create_session(now_ms, ttl_ms))
            files.create(made[0], ttl_ms, born)
            return made[0]

        def undo(table: WriteTables, files: SessionFiles) -> None:
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

        def check(table: WriteTables, files: SessionFiles) -> float | None:
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
