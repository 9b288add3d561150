"""The receive queue of a consumer: messages of all its segment consumers that wait for the application.

Each source (a segment consumer) has a queue, in the order of arrival. Sources take turns of at most `TURN_MAX`
messages, so a long backlog in one does not starve the others. A held source keeps its messages until every reason for
the hold is released. Messages that arrived together can be taken as a whole until the first of them was taken.

Messages leave the queue only in the step that returns them, so a cancelled receiver loses none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from anabranch.client.errors import ClientError
from anabranch.client.messages.message import Message

K = TypeVar("K", bound=Hashable)

TURN_MAX = 32


class _Backlog:
    """The messages of one source: the rest of the entry that was begun, then whole entries, none of them empty."""

    __slots__ = ("begun", "entries")

    def __init__(self) -> None:
        self.begun: deque[Message] = deque()
        self.entries: deque[Sequence[Message]] = deque()

    def __len__(self) -> int:
        return len(self.begun) + sum(map(len, self.entries))

    def messages(self) -> list[Message]:
        return [*self.begun, *(message for entry in self.entries for message in entry)]


class ReceiveQueue(Generic[K]):
    def __init__(self) -> None:
        self.failure: ClientError | None = None
        self._ending: ClientError | None = None  # the failure when nothing is left to take
        self._backlogs: dict[K, _Backlog] = {}  # empty ones are removed
        self._turns: deque[K] = deque()  # sources with messages that are not held, in the order of their turns
        self._held: dict[K, set[str]] = {}  # reasons
        self._left = TURN_MAX  # in the turn of the first source
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Number of messages that can be taken now. Computed on request, because messages are taken more often."""
        return sum(len(self._backlogs[source]) for source in self._turns)

    def add(self, source: K, messages: Sequence[Message]) -> None:
        """Append messages that arrived together, and wake receivers."""
        if not messages or self._ending is not None:
            return
        backlog = self._backlogs.get(source)
        if backlog is None:
            backlog = self._backlogs[source] = _Backlog()
            if source not in self._held:
                self._turns.append(source)
        backlog.entries.append(messages)
        self._wake(len(messages))

    def end(self, error: ClientError) -> None:
        """Receivers get this error once they have taken what is here; what arrives later is dropped."""
        self._ending = self._ending or error
        self._wake(len(self._waiters))

    def fail(self, error: ClientError) -> None:
        """Every present and future receiver gets this error. The first error stays."""
        self.failure = self.failure or error
        self._wake(len(self._waiters))

    # -- taking

    def take(self) -> tuple[K, Message] | None:
        """The next message and its source; None if there is none. Raises the failure."""
        if self.failure is not None:
            raise self.failure
        turns = self._turns
        if not turns:
            self._check_ending()
            return None
        source = turns[0]
        backlog = self._backlogs[source]
        begun = backlog.begun
        if not begun:
            begun.extend(backlog.entries.popleft())
        message = begun.popleft()
        self._left -= 1
        if not self._left or not (begun or backlog.entries):
            self._next_turn(source, backlog)
        return source, message

    def _check_ending(self) -> None:
        if self._ending is not None:
            self.failure = self._ending
            raise self._ending

    def take_entry(self) -> tuple[K, Sequence[Message]] | None:
        """The next messages that arrived together, or the rest of them. Counts as one turn. Raises the failure."""
        if self.failure is not None:
            raise self.failure
        if not self._turns:
            self._check_ending()
            return None
        source = self._turns[0]
        backlog = self._backlogs[source]
        entry: Sequence[Message]
        if backlog.begun:
            entry, backlog.begun = list(backlog.begun), deque()
        else:
            entry = backlog.entries.popleft()
        self._next_turn(source, backlog)
        return source, entry

    def _next_turn(self, source: K, backlog: _Backlog) -> None:
        self._left = TURN_MAX
        if backlog.begun or backlog.entries:
            self._turns.rotate(-1)
        else:
            self._turns.popleft()
            del self._backlogs[source]

    # -- holding and dropping

    def drop(self, source: K) -> list[Message]:
        """Remove all messages and holds of this source, and return the messages."""
        for reason in list(self._held.get(source, ())):
            self.release(source, reason)
        backlog = self._backlogs.pop(source, None)
        if backlog is None:
            return []
        if self._turns[0] == source:
            self._left = TURN_MAX
        self._turns.remove(source)
        return backlog.messages()

    def hold(self, source: K, reason: str = "order") -> None:
        if source in self._held:
            self._held[source].add(reason)
            return
        self._held[source] = {reason}
        if source in self._backlogs:
            if self._turns[0] == source:
                self._left = TURN_MAX
            self._turns.remove(source)

    def release(self, source: K, reason: str = "order") -> bool:
        """Returns True if there is more to take now; receivers are woken then."""
        reasons = self._held.get(source)
        if reasons is None:
            return False
        reasons.discard(reason)
        if reasons:
            return False
        del self._held[source]
        if source not in self._backlogs:
            return False
        self._turns.append(source)
        self._wake(len(self))
        return True

    # -- waiting

    async def wait(self, timeout_s: float | None) -> tuple[K, Message] | None:
        """Wait for the next message; None after the timeout."""
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

    async def wait_filled(self, timeout_s: float | None) -> None:
        """Return when there is something to take, after a failure, or after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._turns and self.failure is None and self._ending is None:
                    await self._wait_arrival()
        except TimeoutError:
            pass

    async def _wait_arrival(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            # Woken and cancelled in the same turn: the message is still queued, so another receiver must be woken.
            if waiter.done() and not waiter.cancelled() and self._turns:
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
