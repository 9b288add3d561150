"""Faults between a memory store and its data, decided per operation. Pure.

    class Drop(Faults):
        def decide(self, operation: Operation) -> Fate:
            return Fate(loss=Loss.ANSWER) if operation.kind is Kind.PUT else Fate()

A seeded simulation draws from its own generator inside `decide`; a scenario counts operations. Faults that are not per
operation are methods of the store: `cut`, `heal`, `crash`, `expire`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Protocol


class Kind(StrEnum):
    GET = "get"
    PUT = "put"
    DELETE = "delete"
    CHILDREN = "children"
    SCAN = "scan"
    SYNC = "sync"
    OPEN_SESSION = "open-session"
    CLOSE_SESSION = "close-session"
    KEEP_ALIVE = "keep-alive"
    BULK = "bulk"
    EVENT = "event"  # delivery of a change to this store's watches: may be delayed or lost, keeps its order


class Loss(Enum):
    NOTHING = "nothing"
    REFUSED = "refused"  # no connection: the caller knows that nothing happened (StoreUnavailable)
    REQUEST = "request"  # not applied, but the caller cannot know: OutcomeUnknown for a write
    ANSWER = "answer"  # applied, and the caller cannot know: OutcomeUnknown for a write
    LATE = "late"  # the caller gets OutcomeUnknown at once; applied after `request_s`, whatever happens meanwhile


@dataclass(frozen=True, slots=True)
class Operation:
    store: str
    kind: Kind
    key: str  # "" where there is none


@dataclass(frozen=True, slots=True)
class Fate:
    """Delay until the operation is applied, delay until it is answered, and what is lost."""

    request_s: float = 0.0
    answer_s: float = 0.0
    loss: Loss = Loss.NOTHING


FINE = Fate()


class Faults(Protocol):
    def decide(self, operation: Operation) -> Fate: ...


class NoFaults:
    def decide(self, operation: Operation) -> Fate:
        return FINE


class Script:
    """Fates for the next operations of a kind, then no faults: `Script().then(Kind.PUT, Fate(loss=Loss.ANSWER))`."""

    def __init__(self) -> None:
        self._next: dict[Kind, list[Fate]] = {}
        self.seen: list[Operation] = []

    def then(self, kind: Kind, *fates: Fate) -> Script:
        self._next.setdefault(kind, []).extend(fates)
        return self

    def decide(self, operation: Operation) -> Fate:
        self.seen.append(operation)
        waiting = self._next.get(operation.kind)
        return waiting.pop(0) if waiting else FINE


class DrawnFaults:
    """A fate drawn for every operation of the given kinds: `draw` is a seeded generator's `choice` over fates."""

    def __init__(self, draw: Callable[[], Fate], kinds: Iterable[Kind] = tuple(Kind)) -> None:
        self._draw = draw
        self._kinds = frozenset(kinds)

    def decide(self, operation: Operation) -> Fate:
        return self._draw() if operation.kind in self._kinds else FINE
