"""Positions that a cumulative ack of a stream covers: per source, the last message handed out up to a given one.

Messages of several sources (segment consumers) are handed out as one stream and numbered in that order. An ack of
number n covers every message up to n, of any source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from anabranch.client.messages.message import MessageId

K = TypeVar("K", bound=Hashable)

KEPT_MAX = 10_000  # per source


class CumulativeAckLog(Generic[K]):
    """Remembers messages that were handed out and not acknowledged. Long logs are thinned: an ack may then cover less
    in *other* sources, never more, and the next ack covers the rest."""

    def __init__(self) -> None:
        self._last = 0
        self._acked = 0
        self._sources: dict[K, deque[tuple[int, MessageId]]] = {}
        self._first: dict[K, int] = {}  # lower numbers belong to a former use of the source

    def handed_out(self, source: K, one: MessageId) -> int:
        """Returns the number of this message."""
        self._last += 1
        log = self._sources.get(source)
        if log is None:
            log = self._sources[source] = deque()
            self._first[source] = self._last
        log.append((self._last, one))
        if len(log) > KEPT_MAX:
            newest = log[-1]
            thinned = deque(list(log)[::2])
            if thinned[-1] != newest:
                thinned.append(newest)
            self._sources[source] = thinned
        return self._last

    def covered(self, number: int, source: K, one: MessageId) -> dict[K, MessageId]:
        """Per source, the position that an ack of message `one` with this number covers; only where it advances."""
        found: dict[K, MessageId] = {}
        for known, log in self._sources.items():
            while log and log[0][0] <= number:
                found[known] = log.popleft()[1]
        if number > self._acked:
            self._acked = number
            if number >= self._first.get(source, number + 1):
                found[source] = one  # exact, even if the log was thinned
        return found

    def covers_alone(self, number: int, source: K) -> bool:
        """Like `covered` for an ack of one source only. Returns False if the message is of a former use of it."""
        log = self._sources.get(source)
        while log and log[0][0] <= number:
            log.popleft()
        return number >= self._first.get(source, number + 1)

    def vector(self, number: int) -> dict[K, MessageId]:
        """The last unacknowledged message of every source up to this number, without acknowledging it."""
        found: dict[K, MessageId] = {}
        for source, log in self._sources.items():
            for at, one in log:
                if at > number:
                    break
                found[source] = one
        return found

    def forget(self, source: K) -> None:
        """The segment is detached."""
        self._sources.pop(source, None)
        self._first.pop(source, None)
