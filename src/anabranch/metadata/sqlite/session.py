"""A session of the embedded store: its signs of life, and how long its owner may trust it.

A heartbeat is only a write into the session's file. It extends the trust if it certainly came in time: if it was
written before the last one ran out, nobody can have found the session silent. A late one (the process was stopped, or
the loop was stuck) proves nothing, so the database is asked whether others ended the session meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anabranch.metadata.interface import SessionEvent
from anabranch.metadata.session_base import SessionLife
from anabranch.metadata.sqlite.session_files import SessionFiles
from anabranch.runtime.clock import Clock, Timer

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
