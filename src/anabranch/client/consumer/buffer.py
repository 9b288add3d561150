"""Messages that wait for the application, fair between the channels they came by. Without I/O; knows no topics.

Channels take turns, a few messages each, so that one with a long backlog does not starve the others. Within a channel
the order of arrival stays. A channel that is held keeps its messages until it is let go: something else comes first. It
may be held for several reasons, and is let go when the last one is gone.

What arrived together stays together until somebody takes the first message of it; it can be taken as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from anabranch.client.messages.message import Message

K = TypeVar("K", bound=Hashable)

TURN_MAX = 32


class _Queue:
    """What waits of one channel: messages of the parcel that was begun, then whole parcels (none of them empty)."""

    __slots__ = ("begun", "parcels")

    def __init__(self) -> None:
        self.begun: deque[Message] = deque()
        self.parcels: deque[Sequence[Message]] = deque()

    def __len__(self) -> int:
        return len(self.begun) + sum(map(len, self.parcels))

    def messages(self) -> list[Message]:
        return [*self.begun, *(message for parcel in self.parcels for message in parcel)]


class ReceiveQueue(Generic[K]):
    def __init__(self) -> None:
        self._waiting: dict[K, _Queue] = {}
        self._turns: deque[K] = deque()  # channels with messages that are not held, in the order of their turns
        self._held: dict[K, set[str]] = {}  # why
        self._left = TURN_MAX  # of the turn of the first one

    def __len__(self) -> int:
        """Messages that can be taken now. Counted when it is asked for: they are taken more often."""
        return sum(len(self._waiting[channel]) for channel in self._turns)

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, channel: K, messages: Sequence[Message]) -> None:
        if not messages:
            return
        queue = self._waiting.get(channel)
        if queue is None:  # one that is empty is not kept
            queue = self._waiting[channel] = _Queue()
            if channel not in self._held:
                self._turns.append(channel)
        queue.parcels.append(messages)

    def take(self) -> tuple[K, Message] | None:
        turns = self._turns
        if not turns:
            return None
        channel = turns[0]
        queue = self._waiting[channel]
        begun = queue.begun
        if not begun:
            begun.extend(queue.parcels.popleft())
        message = begun.popleft()
        self._left -= 1
        if not self._left or not (begun or queue.parcels):
            self._next_turn(channel, queue)
        return channel, message

    def take_parcel(self) -> tuple[K, Sequence[Message]] | None:
        """What arrived together and nobody has begun, or what is left of it. It counts as one turn."""
        if not self._turns:
            return None
        channel = self._turns[0]
        queue = self._waiting[channel]
        parcel: Sequence[Message]
        if queue.begun:
            parcel, queue.begun = list(queue.begun), deque()
        else:
            parcel = queue.parcels.popleft()
        self._next_turn(channel, queue)
        return channel, parcel

    def _next_turn(self, channel: K, queue: _Queue) -> None:
        self._left = TURN_MAX
        if queue.begun or queue.parcels:
            self._turns.rotate(-1)
        else:
            self._turns.popleft()
            del self._waiting[channel]

    def drop(self, channel: K) -> list[Message]:
        """All that waits of this channel; nobody gets it."""
        for reason in list(self._held.get(channel, ())):
            self.release(channel, reason)
        queue = self._waiting.pop(channel, None)
        if queue is None:
            return []
        if self._turns[0] == channel:
            self._left = TURN_MAX
        self._turns.remove(channel)
        return queue.messages()

    def hold(self, channel: K, reason: str = "order") -> None:
        if channel in self._held:
            self._held[channel].add(reason)
            return
        self._held[channel] = {reason}
        if channel in self._waiting:
            if self._turns[0] == channel:
                self._left = TURN_MAX
            self._turns.remove(channel)

    def release(self, channel: K, reason: str = "order") -> bool:
        """True when there is more to take now."""
        reasons = self._held.get(channel)
        if reasons is None:
            return False
        reasons.discard(reason)
        if reasons:
            return False
        del self._held[channel]
        if channel not in self._waiting:
            return False
        self._turns.append(channel)
        return True
