"""Which positions a cumulative ack of a stream covers: per lane, the last message handed out up to a given one.

Messages of several lanes are handed out as one stream and numbered in that order. Acknowledging number n means every
message up to n, of any lane. Knows numbers and ids; nothing of acks on the wire.
"""

from __future__ import annotations

from collections import deque

from anabranch.client.message import MessageId

KEPT_MAX = 10_000  # per lane


class DeliveryLog:
    """Remembers what was handed out and not acknowledged. Long logs are thinned: an ack may then cover a little less
    in *other* lanes, never more, and the next one makes up for it."""

    def __init__(self) -> None:
        self._last = 0
        self._acked = 0
        self._lanes: dict[int, deque[tuple[int, MessageId]]] = {}

    def handed_out(self, one: MessageId) -> int:
        """The number of this message."""
        self._last += 1
        log = self._lanes.setdefault(one.lane, deque())
        log.append((self._last, one))
        if len(log) > KEPT_MAX:
            newest = log[-1]
            thinned = deque(list(log)[::2])
            if thinned[-1] != newest:
                thinned.append(newest)
            self._lanes[one.lane] = thinned
        return self._last

    def covered(self, number: int, one: MessageId) -> dict[int, MessageId]:
        """Per lane, what an ack of message `one` with this number covers; only lanes where it is news."""
        found: dict[int, MessageId] = {}
        for lane, log in self._lanes.items():
            while log and log[0][0] <= number:
                found[lane] = log.popleft()[1]
        if number > self._acked:
            self._acked = number
            found[one.lane] = one  # exact, also where the log was thinned
        return found
