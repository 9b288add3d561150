"""Pulsar's four producer access modes as a state machine. No await, no sockets, no clock.

The machine holds opaque producer handles. `admit` returns what to do; the shell does it: closes fenced producers,
persists the raised epoch, answers a waiting producer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from anabranch.broker.errors import ProducerBusy, ProducerFenced

H = TypeVar("H")


class AccessMode(IntEnum):
    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3

    @property
    def label(self) -> str:
        return ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")[self]


@dataclass(frozen=True, slots=True)
class Admission(Generic[H]):
    """`ready` is False for a producer that waits. The shell closes the producers in `fence` before it answers."""

    ready: bool
    epoch: int | None
    fence: tuple[H, ...] = ()


@dataclass(slots=True)
class AccessTable(Generic[H]):
    """The producers of one topic. `epoch` only grows and is persisted."""

    epoch: int = 0
    holders: list[H] = field(default_factory=list)
    exclusive: H | None = None
    waiting: deque[H] = field(default_factory=deque)

    def admit(self, producer: H, mode: AccessMode, known_epoch: int | None) -> Admission[H]:
        if mode is AccessMode.SHARED:
            if self.exclusive is not None or self.waiting:
                raise ProducerBusy("topic has an exclusive producer")
            self.holders.append(producer)
            return Admission(True, None)
        if known_epoch is not None and known_epoch < self.epoch:
            raise ProducerFenced(f"producer's topic epoch {known_epoch} is older than {self.epoch}")
        if mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            fenced = (*self.holders, *self.waiting)
            self.holders.clear()
            self.waiting.clear()
            return self._take(producer, known_epoch, fenced)
        if mode is AccessMode.EXCLUSIVE:
            if self.exclusive is not None or self.waiting:
                raise ProducerFenced("topic has an exclusive producer")
            if self.holders:
                raise ProducerFenced("topic has shared producers")
            return self._take(producer, known_epoch, ())
        if self.holders or self.waiting:
            self.waiting.append(producer)
            return Admission(False, None)
        return self._take(producer, known_epoch, ())

    def _take(self, producer: H, known_epoch: int | None, fenced: tuple[H, ...]) -> Admission[H]:
        # A returning holder knows the current epoch and keeps it; a new one raises it, which fences the old one.
        if known_epoch is None or known_epoch != self.epoch:
            self.epoch += 1
        self.holders.append(producer)
        self.exclusive = producer
        return Admission(True, self.epoch, fenced)

    def leave(self, producer: H) -> H | None:
        """Remove a producer. Returns the waiting producer that becomes exclusive now, if any."""
        if producer in self.waiting:
            self.waiting.remove(producer)
            return None
        if producer not in self.holders:
            return None
        self.holders.remove(producer)
        if self.exclusive is producer:
            self.exclusive = None
        if self.holders or not self.waiting:
            return None
        waiting = self.waiting.popleft()
        self._take(waiting, None, ())
        return waiting
