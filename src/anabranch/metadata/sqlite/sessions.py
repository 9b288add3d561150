"""Sessions of the SQLite store: heartbeats, and the set that one store object has open.

A session is a row and a locked file, written under the writer lock. If a step in between fails, it is undone, or
another process sweeps the remains.

A heartbeat is only a write into the session's file. It extends `valid_until` if it was written before the previous one
ran out, because then no other process can have found the session silent. A late heartbeat (the process was stopped or
the loop was blocked) proves nothing, so the database is asked whether another process ended the session meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from anabranch.metadata.interface import Session, SessionEvent, SessionLost, StoreUnavailable
from anabranch.metadata.session_base import SessionBase
from anabranch.metadata.sqlite.session_files import SessionFiles
from anabranch.metadata.sqlite.tables import WriteTables
from anabranch.metadata.sqlite.write_queue import WriteQueue
from anabranch.metadata.sqlite.writer import Operation
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

HEARTBEATS_PER_TTL = 4


class SqliteSession(SessionBase):
    def __init__(
        self,
        session_id: int,
        ttl_ms: int,
        created_at: float,
        clock: Clock,
        files: SessionFiles,
        close: Callable[[SqliteSession], Awaitable[None]],
        revive: Callable[[SqliteSession], None],
    ) -> None:
        """`created_at` is the heartbeat in the file; `revive` queries the database and calls `on_revived`."""
        super().__init__(ttl_ms)
        self.session_id = session_id
        self._clock = clock
        self._files = files
        self._close = close
        self._revive = revive
        self._valid_until = created_at + ttl_ms / 1000
        self._is_reviving = False
        self._timer: Timer | None = None

    @property
    def valid_until(self) -> float:
        return self._valid_until

    async def close(self) -> None:
        await self._close(self)

    def schedule_heartbeat(self) -> None:
        self._timer = self._clock.call_later(self._ttl_ms / 1000 / HEARTBEATS_PER_TTL, self._on_timer)

    def _on_timer(self) -> None:
        if self.is_lost:
            return
        self.schedule_heartbeat()
        if not self._is_reviving and not self._heartbeat():
            self._is_reviving = True
            self.notify(SessionEvent.DISCONNECTED)
            self._revive(self)

    def _heartbeat(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._valid_until:
            return False
        self._files.heartbeat(self.session_id, self._ttl_ms, now)
        if self._clock.monotonic() >= self._valid_until:
            return False  # the write may have been too late
        self._valid_until = now + self._ttl_ms / 1000
        return True

    def on_revived(self, at: float | None) -> None:
        """The database still has the session, with a heartbeat at `at`; None if the query failed."""
        self._is_reviving = False
        if at is not None and not self.is_lost:
            self._valid_until = max(self._valid_until, at + self._ttl_ms / 1000)
            self.notify(SessionEvent.RECONNECTED)

    def stop(self) -> None:
        """Stop the heartbeats, so that the file can be removed."""
        if self._timer is not None:
            self._timer.cancel()
        self.notify(SessionEvent.LOST)


class OpenSessions:
    def __init__(self, write_queue: WriteQueue, files: SessionFiles, clock: Clock) -> None:
        self._write_queue = write_queue
        self._files = files
        self._clock = clock
        self._open: set[SqliteSession] = set()

    async def open(self, ttl_ms: int) -> SqliteSession:
        now_ms, created_at = self._clock.now_ms(), self._clock.monotonic()
        made: list[int] = []

        def create(table: WriteTables, files: SessionFiles) -> int:
            made.append(table.create_session(now_ms, ttl_ms))
            files.create(made[0], ttl_ms, created_at)
            return made[0]

        def undo(table: WriteTables, files: SessionFiles) -> None:
            if made:
                table.end_session(made[0])

        try:
            session_id = await self._write_queue.write(create)
        except (asyncio.CancelledError, StoreUnavailable):  # it will not be used, if it was created
            self._write_queue.submit(Operation(None, undo, lambda files: files.remove(made[0]) if made else None))
            raise
        self._write_queue.check()
        session = SqliteSession(session_id, ttl_ms, created_at, self._clock, self._files, self._end, self._revive)
        self._open.add(session)
        session.schedule_heartbeat()
        return session

    def id_of(self, session: Session | None) -> int | None:
        if session is None:
            return None
        if not isinstance(session, SqliteSession) or session not in self._open:
            raise SessionLost("the session has ended")
        return session.session_id

    async def close(self) -> None:
        for session in tuple(self._open):
            try:
                await self._end(session)
            except StoreUnavailable as error:  # closing releases its lock, so another process ends it
                log.warning("metadata session not ended; it will be swept", extra={"error": str(error)})

    def forget(self, session: Session | None) -> None:
        """Another process ended it: only the file is left to remove."""
        if isinstance(session, SqliteSession) and session in self._open:
            self._open.discard(session)
            session.stop()
            session_id = session.session_id
            self._write_queue.submit(Operation(None, lambda table, files: None, lambda files: files.remove(session_id)))

    async def _end(self, session: SqliteSession) -> None:
        if session in self._open:
            session_id = session.session_id
            self._open.discard(session)
            session.stop()
            await self._write_queue.write(
                lambda table, files: table.end_session(session_id), after=lambda files: files.remove(session_id)
            )

    def _revive(self, session: SqliteSession) -> None:
        """After a late heartbeat: check that the session exists, and write a heartbeat in the same transaction."""

        def check(table: WriteTables, files: SessionFiles) -> float | None:
            if not table.has_session(session.session_id):
                return None
            now = self._clock.monotonic()
            files.heartbeat(session.session_id, session.ttl_ms, now)
            return now

        def on_checked(done: asyncio.Future[float | None]) -> None:
            if done.cancelled() or done.exception() is not None:
                session.on_revived(None)
            elif (at := done.result()) is None:
                self.forget(session)
            else:
                session.on_revived(at)

        answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(on_checked)
        self._write_queue.submit(Operation(answer, check))
