"""Limit for the bytes of a producer that have no receipt yet, and the queue of senders that wait.

Senders wait in the order of their calls: only the first one checks, and it stays first until its message fits. One
message may always be pending, however large, because it would wait for ever otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque

from anabranch.client.errors import QueueFull


class MemoryLimit:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._turns: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self.taken = 0

    def check(self, size: int) -> None:
        """Raises QueueFull when it does not fit now, or when other senders wait."""
        if self._turns or self.taken + size > self._bytes_max:
            raise QueueFull(f"{self.taken} bytes are waiting for their receipts")

    def take(self, size: int) -> None:
        self.taken += size

    def give(self, size: int) -> None:
        self.taken -= size
        self._wake_first()

    async def wait(self, size: int) -> None:
        """Returns when it fits, or when the limit is closed."""
        if not self._turns and self._fits(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            while not self._is_closed and (self._turns[0] is not turn or not self._fits(size)):
                if turn.done():
                    index = self._turns.index(turn)
                    turn = asyncio.get_running_loop().create_future()
                    self._turns[index] = turn
                await turn
        finally:
            self._turns.remove(turn)
            self._wake_first()

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._bytes_max

    def _wake_first(self) -> None:
        if self._turns and not self._turns[0].done():
            self._turns[0].set_result(None)

    def close(self) -> None:
        """Wakes every sender that waits; each finds the producer closed."""
        self._is_closed = True
        for turn in self._turns:
            if not turn.done():
                turn.set_result(None)
