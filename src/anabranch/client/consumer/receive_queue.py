"""Where an application waits for messages: the buffer and those who wait for something in it. Knows asyncio.

A receiver that is cancelled swallows nothing: messages leave the buffer only in the step that returns them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from anabranch.client.consumer.buffer import ReceiveQueue
from anabranch.client.errors import ClientError
from anabranch.client.messages.message import Message

K = TypeVar("K", bound=Hashable)


class Inbox(Generic[K]):
    def __init__(self) -> None:
        self.buffer: ReceiveQueue[K] = ReceiveQueue()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.failure: ClientError | None = None

    def __len__(self) -> int:
        return len(self.buffer)

    def arrived(self, channel: K, messages: Sequence[Message]) -> None:
        self.buffer.add(channel, messages)
        self._wake(len(messages))

    def drop(self, channel: K) -> list[Message]:
        return self.buffer.drop(channel)

    def hold(self, channel: K, reason: str = "order") -> None:
        self.buffer.hold(channel, reason)

    def release(self, channel: K, reason: str = "order") -> None:
        if self.buffer.release(channel, reason):
            self._wake(len(self.buffer))

    def fail(self, error: ClientError) -> None:
        """Everybody who waits, and everybody who will, gets this error. The first one stays."""
        self.failure = self.failure or error
        self._wake(len(self._waiters))

    def take(self) -> tuple[K, Message] | None:
        """The next message, without waiting; raises once it has failed."""
        if self.failure is not None:
            raise self.failure
        return self.buffer.take()

    def take_parcel(self) -> tuple[K, Sequence[Message]] | None:
        """The same with messages that arrived together."""
        if self.failure is not None:
            raise self.failure
        return self.buffer.take_parcel()

    async def wait_filled(self, timeout_s: float | None) -> None:
        """Until there is something to take, or it has failed, or it is too late."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.buffer and self.failure is None:
                    await self._wait_arrival()
        except TimeoutError:
            pass

    async def wait(self, timeout_s: float | None) -> tuple[K, Message] | None:
        """The next message; None when there was none in time."""
        if found := self.take():
            return found
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self._wait_arrival()
                    if found := self.take():
                        return found
        except TimeoutError:
            return None

    async def _wait_arrival(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            # Woken and cancelled at once: the message is still in the buffer, so somebody else must look.
            if waiter.done() and not waiter.cancelled() and self.buffer:
                self._wake(1)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
