"""Which segments an ordered consumer holds, against what the controller assigns. A machine: no await, clock or wire.

    held ── not assigned any more ──▶ leaving ── all handed out is settled, or time is up ──▶ closing ──▶ released
      └──── its broker refuses us (fenced): another's already ──────────────────────────────────────────────▲

While it is leaving, nothing more is handed out, and acks still count. A segment that comes back while it leaves is let
go all the same and attached afresh: what was waiting in it has been given up.

When the subscription was moved by a seek, everything that is held is void, in any state: it is dropped, unsaid acks
with it, and what is assigned is attached afresh.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Attach:
    segment_id: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Hand out nothing more. Answered by `settled`, or by `overdue` when that takes too long."""

    segment_id: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Say the acks that are due and close it. Answered by `closed`."""

    segment_id: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop it at once: what waits in it, and what it has not said yet."""

    segment_id: int


@dataclass(frozen=True, slots=True)
class Release:
    """Tell the controller that these are free."""

    generation: int
    segment_ids: tuple[int, ...]


Effect = Attach | Stop | Detach | Discard | Release


class _State(Enum):
    HELD = "held"
    LEAVING = "leaving"
    CLOSING = "closing"


class AssignmentReconciler:
    def __init__(self) -> None:
        self._target: frozenset[int] = frozenset()
        self._generation: int | None = None
        self._epoch = -1
        self._held: dict[int, _State] = {}

    @property
    def generation(self) -> int | None:
        """Of the last assignment; None where the controller does not count them."""
        return self._generation

    @property
    def held(self) -> tuple[int, ...]:
        """What is still attached, leaving or not: a new leader is told."""
        return tuple(sorted(self._held))

    @property
    def leaving(self) -> tuple[int, ...]:
        return tuple(sorted(one for one, state in self._held.items() if state is _State.LEAVING))

    def restarted(self) -> None:
        """The topic is another one: numbers begin again."""
        self._generation, self._epoch = None, -1

    def registered(self, known: Iterable[int]) -> list[Effect]:
        """The controller has us (again). What it took from us, or gave and took, while it could not reach us, it still
        waits for: of all segments that are known, those that we do not hold are free."""
        free = tuple(sorted(set(known) - self._held.keys()))
        return [] if self._generation is None or not free else [Release(self._generation, free)]

    def assigned(
        self, segment_ids: Iterable[int], *, generation: int | None, epoch: int, void_below: int = 0
    ) -> list[Effect] | None:
        """The complete list. None: it is older than what we have, and changes nothing."""
        effects: list[Effect] = []
        if generation is not None and self._generation is not None:
            if generation < self._generation:
                return None
        elif epoch < self._epoch:
            return None
        if self._generation is not None and self._generation < void_below:
            effects += [Discard(one) for one in sorted(self._held)]
            self._held.clear()
        self._target, self._generation, self._epoch = frozenset(segment_ids), generation, epoch
        for one in sorted(self._held.keys() - self._target):
            if self._held[one] is _State.HELD:
                self._held[one] = _State.LEAVING
                effects.append(Stop(one))
        for one in sorted(self._target - self._held.keys()):
            self._held[one] = _State.HELD
            effects.append(Attach(one))
        return effects

    def settled(self, segment_id: int) -> list[Effect]:
        """Everything that was handed out of a leaving one is acknowledged."""
        return self._closing(segment_id)

    def overdue(self, segment_id: int) -> list[Effect]:
        """The application takes too long: what it has not acknowledged, another will get."""
        return self._closing(segment_id)

    def _closing(self, segment_id: int) -> list[Effect]:
        if self._held.get(segment_id) is not _State.LEAVING:
            return []
        self._held[segment_id] = _State.CLOSING
        return [Detach(segment_id)]

    def fenced(self, segment_id: int) -> list[Effect]:
        """Its broker says that a newer assignment gave it to another one: it is not ours, whatever we were told last.
        Ours again it is with the next assignment that has it."""
        if self._held.pop(segment_id, None) is None:
            return []
        self._target -= {segment_id}
        return [] if self._generation is None else [Release(self._generation, (segment_id,))]

    def closed(self, segment_id: int) -> list[Effect]:
        if self._held.get(segment_id) is not _State.CLOSING:
            return []
        del self._held[segment_id]
        if segment_id in self._target:  # it came back meanwhile: the controller thinks we never let go
            self._held[segment_id] = _State.HELD
            return [Attach(segment_id)]
        return [] if self._generation is None else [Release(self._generation, (segment_id,))]
