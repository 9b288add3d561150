"""The port's session: one ZooKeeper session with the keys it has put.

`valid_until` is the session timeout after the latest answered request or ping was sent. In an ensemble a follower
reports sessions to the leader every half tick; if it dies in between, the leader counts from up to half a tick earlier.
A session without contact for twice its timeout counts as lost and is never used again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from anabranch.metadata.interface import SessionEvent
from anabranch.metadata.session_base import SessionBase
from anabranch.runtime.clock import Clock
from anabranch.zookeeper.connection import Connection, Phase


class ZooKeeperSession(SessionBase):
    def __init__(self, clock: Clock, on_end: Callable[[ZooKeeperSession], None]) -> None:
        super().__init__(0)
        self._clock = clock
        self._on_end = on_end
        self._ended_at = inf
        self._connection: Connection | None = None
        self._was_connected = False
        self.parents: set[str] = set()
        """Parents of its keys; those that the end of the session leaves empty are removed."""

    async def open(self, connection: Connection) -> None:
        self._connection = connection
        await connection.open(connection.deadline())

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    @property
    def ttl_ms(self) -> int:
        return self.connection.timeout_ms

    @property
    def valid_until(self) -> float:
        return min(self.connection.confirmed_at + self.connection.timeout_ms / 1000, self._ended_at)

    def on_phase(self, phase: Phase) -> None:
        match phase:
            case Phase.CONNECTED:
                if self._was_connected:
                    self.notify(SessionEvent.RECONNECTED)
                self._was_connected = True
            case Phase.CONNECTING:
                self.notify(SessionEvent.DISCONNECTED)
            case Phase.LOST | Phase.CLOSED:
                if not self.is_lost:
                    self._ended_at = self._clock.monotonic()
                    self._on_end(self)
                    self.notify(SessionEvent.LOST)

    async def close(self) -> None:
        """Its keys are deleted when this returns, or after its timeout if no server answers."""
        await self.connection.close()
