"""State machines of `consumer.run`: which message a handler may process now, and what may be acknowledged.

    received ──▶ waiting ──▶ ready ──▶ running ──▶ finished ──▶ acknowledged
                               ▲          │ failed
                               └── due ── backing off ──▶ given up: skipped, or the run stops

Messages have numbers, in the order in which they were received.

`OrderedHandlers` (streams) keeps these invariants:

* Messages of one key run one after another, in their order, also when the key moves to another segment.
* At most `concurrency` handlers run. A message that backs off does not count, but holds back its key.
* A message is acknowledged when it and everything received before it from its segment is finished. Messages of a
  segment wait until its ancestors have nothing unfinished: after a crash, an earlier message of a key must not come
  back without the later ones.
* At most `pending_max` messages are received and not acknowledged.

`UnorderedHandlers` (queues) starts every message at once, and acknowledges or nacks it alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Protocol

Source = Hashable
"""A partition or segment."""


@dataclass(frozen=True, slots=True)
class Start:
    """Call the handler with this message."""

    number: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Messages of one segment, in order. Streams acknowledge the last one cumulatively."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nack:
    number: int


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Call `due` after the delay that belongs to this number of failures."""

    number: int
    failures: int


@dataclass(frozen=True, slots=True)
class Skip:
    """All attempts failed. The message counts as finished."""

    number: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """All attempts failed. The run stops, and the message stays unacknowledged."""

    number: int


Effect = Start | Acknowledge | Nack | RetryLater | Skip | GiveUp


class HandlerState(Protocol):
    """What the runner needs of a machine."""

    @property
    def has_room(self) -> bool:
        """Whether another message may be received."""

    @property
    def unacknowledged(self) -> int:
        """Messages received, of which the broker does not hear before they are delivered again."""

    def received(self, number: int, source: Source, key: Hashable) -> list[Effect]: ...

    def finished(self, number: int) -> list[Effect]:
        """The handler returned."""

    def failed(self, number: int) -> list[Effect]:
        """The handler raised."""

    def cancelled(self, number: int) -> list[Effect]:
        """The handler was cancelled, because it did not finish while the run drained."""

    def due(self, number: int) -> list[Effect]:
        """The delay of a `RetryLater` has passed."""

    def stop(self) -> None:
        """Start nothing more. Handlers that run may still finish, and are acknowledged."""


class UnorderedHandlers:
    def __init__(self, *, concurrency: int) -> None:
        self._concurrency = concurrency
        self._running = 0

    @property
    def has_room(self) -> bool:
        return self._running < self._concurrency

    @property
    def unacknowledged(self) -> int:
        return 0

    def received(self, number: int, source: Source, key: Hashable) -> list[Effect]:
        assert self.has_room
        self._running += 1
        return [Start(number)]

    def finished(self, number: int) -> list[Effect]:
        self._running -= 1
        return [Acknowledge((number,))]

    def failed(self, number: int) -> list[Effect]:
        self._running -= 1
        return [Nack(number)]

    def cancelled(self, number: int) -> list[Effect]:
        return self.failed(number)

    def due(self, number: int) -> list[Effect]:
        raise AssertionError("queues retry by redelivery")

    def stop(self) -> None:
        """Nothing waits here to be started."""


@dataclass(slots=True)
class _Pending:
    source: Source
    lane: Hashable
    failures: int = 0
    is_finished: bool = False


class OrderedHandlers:
    def __init__(
        self,
        *,
        concurrency: int,
        pending_max: int,
        attempts: int | None = None,
        skips: bool = False,
        ancestors_of: Callable[[Source], Collection[Source]] = lambda source: (),
    ) -> None:
        """`attempts` None: without a limit. `skips`: go on after a message whose attempts all failed. `ancestors_of` is
        asked when a source begins to have pending messages."""
        assert min(concurrency, pending_max, attempts or 1) >= 1
        self._concurrency = concurrency
        self._pending_max = pending_max
        self._attempts = attempts
        self._skips = skips
        self._ancestors_of = ancestors_of
        self._is_stopped = False
        self._pending: dict[int, _Pending] = {}  # not acknowledged
        self._lanes: dict[Hashable, deque[int]] = {}  # unfinished; the first one is ready, running or backing off
        self._ready: deque[int] = deque()
        self._running = 0
        self._sources: dict[Source, deque[int]] = {}  # not acknowledged, in order; none is empty
        self._ancestors: dict[Source, Collection[Source]] = {}  # of the sources above

    @property
    def has_room(self) -> bool:
        return len(self._pending) < self._pending_max

    @property
    def unacknowledged(self) -> int:
        return len(self._pending)

    def received(self, number: int, source: Source, key: Hashable) -> list[Effect]:
        # Messages without a key keep the order of their segment.
        lane = ("source", source) if key is None else ("key", key)
        self._pending[number] = _Pending(source, lane)
        if source not in self._sources:
            self._sources[source] = deque()
            self._ancestors[source] = self._ancestors_of(source)
        self._sources[source].append(number)
        waiting = self._lanes.setdefault(lane, deque())
        waiting.append(number)
        if len(waiting) == 1:
            self._ready.append(number)
        return self._start([])

    def finished(self, number: int) -> list[Effect]:
        self._running -= 1
        return self._finish(number, [])

    def failed(self, number: int) -> list[Effect]:
        self._running -= 1
        one = self._pending[number]
        one.failures += 1
        if self._attempts is None or one.failures < self._attempts:
            return self._start([RetryLater(number, one.failures)])
        if self._skips:
            return self._finish(number, [Skip(number)])
        self.stop()
        return [GiveUp(number)]

    def cancelled(self, number: int) -> list[Effect]:
        self._running -= 1
        return []

    def due(self, number: int) -> list[Effect]:
        self._ready.append(number)
        return self._start([])

    def stop(self) -> None:
        self._is_stopped = True

    def _start(self, effects: list[Effect]) -> list[Effect]:
        while self._ready and self._running < self._concurrency and not self._is_stopped:
            self._running += 1
            effects.append(Start(self._ready.popleft()))
        return effects

    def _finish(self, number: int, effects: list[Effect]) -> list[Effect]:
        one = self._pending[number]
        one.is_finished = True
        waiting = self._lanes[one.lane]
        assert waiting[0] == number
        waiting.popleft()
        if waiting:
            self._ready.append(waiting[0])
        else:
            del self._lanes[one.lane]
        self._acknowledge(one.source, effects)
        return self._start(effects)

    def _acknowledge(self, source: Source, effects: list[Effect]) -> None:
        if any(ancestor in self._sources for ancestor in self._ancestors[source]):
            return
        order = self._sources[source]
        done: list[int] = []
        while order and self._pending[order[0]].is_finished:
            done.append(order.popleft())
            del self._pending[done[-1]]
        if done:
            effects.append(Acknowledge(tuple(done)))
        if not order:
            del self._sources[source], self._ancestors[source]
            for later in [later for later, ancestors in self._ancestors.items() if source in ancestors]:
                if later in self._sources:  # an earlier one of these may have ended it meanwhile
                    self._acknowledge(later, effects)
