"""State machines of an ordered consumer's assignment: the segments held against the segments assigned
(`AssignmentReconciler`), and the order between held segments (`SegmentOrder`).

    held ── no longer assigned ──▶ leaving ── everything handed out is acked, or deadline ──▶ closing ──▶ released
      └──── fenced by the broker: assigned to another consumer ─────────────────────────────────────────────▲

A leaving segment delivers nothing more; acks still count. If it is assigned again while it leaves, it is closed all the
same and attached again, because its buffered messages were dropped.

After a seek moved the subscription, all held segments are discarded in any state, with acks that were not sent, and the
assigned segments are attached again. After the topic was created again they are discarded, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Attach:
    segment_id: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Deliver nothing more. Followed by `settled`, or by `overdue` after the deadline."""

    segment_id: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Send pending acks and close it. Followed by `closed`."""

    segment_id: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop it at once, with its buffered messages and unsent acks."""

    segment_id: int


@dataclass(frozen=True, slots=True)
class Release:
    """Report to the controller that these segments are free."""

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
        """Of the last assignment; None if the controller sends no generations."""
        return self._generation

    @property
    def held(self) -> tuple[int, ...]:
        """Segments that are attached, leaving ones included; sent with a registration."""
        return tuple(sorted(self._held))

    @property
    def leaving(self) -> tuple[int, ...]:
        return tuple(sorted(one for one, state in self._held.items() if state is _State.LEAVING))

    def adopted(self, segment_ids: Iterable[int]) -> None:
        """Segments that are attached already, because they were partitions of the topic before its migration. Those
        that the first assignment does not contain leave like segments of an earlier one."""
        assert self._generation is None
        self._held.update((one, _State.HELD) for one in segment_ids)

    def restarted(self) -> list[Effect]:
        """The topic was deleted and created again: nothing of it is held, and generations and epochs start again."""
        effects: list[Effect] = [Discard(one) for one in sorted(self._held)]
        self._held.clear()
        self._target, self._generation, self._epoch = frozenset(), None, -1
        return effects

    def registered(self, known: Iterable[int]) -> list[Effect]:
        """Registered, perhaps again. The controller may wait for releases that it missed while disconnected, so all
        known segments that are not held are reported as free."""
        free = tuple(sorted(set(known) - self._held.keys()))
        return [] if self._generation is None or not free else [Release(self._generation, free)]

    def assigned(
        self, segment_ids: Iterable[int], *, generation: int | None, epoch: int, void_below: int = 0
    ) -> list[Effect] | None:
        """The complete assignment. Returns None, and changes nothing, if it is older than the current one."""
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
        """Everything that was handed out of a leaving segment is acknowledged."""
        return self._closing(segment_id)

    def overdue(self, segment_id: int) -> list[Effect]:
        """Deadline for acks is over. Messages that are not acknowledged go to the next consumer."""
        return self._closing(segment_id)

    def _closing(self, segment_id: int) -> list[Effect]:
        if self._held.get(segment_id) is not _State.LEAVING:
            return []
        self._held[segment_id] = _State.CLOSING
        return [Detach(segment_id)]

    def fenced(self, segment_id: int) -> list[Effect]:
        """The broker has a newer assignment of this segment. It no longer belongs to this consumer, whatever the last
        assignment said, and is attached again when a later assignment contains it."""
        if self._held.pop(segment_id, None) is None:
            return []
        self._target -= {segment_id}
        return [] if self._generation is None else [Release(self._generation, (segment_id,))]

    def closed(self, segment_id: int) -> list[Effect]:
        if self._held.get(segment_id) is not _State.CLOSING:
            return []
        del self._held[segment_id]
        if segment_id in self._target:  # assigned again meanwhile: the controller has seen no release
            self._held[segment_id] = _State.HELD
            return [Attach(segment_id)]
        return [] if self._generation is None else [Release(self._generation, (segment_id,))]


class SegmentOrder:
    """Order between the held segments of a topic when a child is assigned before its ancestors are acknowledged.

    | of a child       | waits until                                                                              |
    |------------------|------------------------------------------------------------------------------------------|
    | its messages     | everything of all its ancestors was handed out                                           |
    | acks to a broker | all its ancestors are settled: acknowledged to the end, confirmed by the segment's owner |

    So the child's cursor never passes an ancestor that is not acknowledged. After a crash the rest of the ancestors is
    delivered again first, and the child from its beginning. A child that is no longer assigned keeps waiting for the
    ancestors that it had.
    """

    def __init__(self) -> None:
        self._after: dict[int, frozenset[int]] = {}  # by held child: its ancestors, as last assigned
        self._unsettled: dict[int, set[int]] = {}  # of these, the ancestors that are not settled
        self._settled: set[int] = set()  # held ancestors that are settled

    def assigned(self, segment_ids: Iterable[int], after: Mapping[int, Iterable[int]]) -> None:
        """The complete assignment, and the ancestors that come before each child."""
        for one in segment_ids:
            ancestors = frozenset(after.get(one, ()))
            if ancestors:
                self._after[one], self._unsettled[one] = ancestors, set(ancestors - self._settled)
            else:
                self._after.pop(one, None)
                self._unsettled.pop(one, None)

    def detached(self, segment_id: int) -> None:
        self._after.pop(segment_id, None)
        self._unsettled.pop(segment_id, None)
        self._settled.discard(segment_id)

    def settled(self, segment_id: int) -> None:
        """All acks of this sealed segment are confirmed."""
        self._settled.add(segment_id)
        for ancestors in self._unsettled.values():
            ancestors.discard(segment_id)

    def rewound(self, segment_id: int) -> None:
        """The position of a settled segment was moved back."""
        self._settled.discard(segment_id)
        for one, ancestors in self._after.items():
            if segment_id in ancestors:
                self._unsettled[one].add(segment_id)

    def after(self, segment_id: int) -> frozenset[int]:
        """The ancestors that come before this segment."""
        return self._after.get(segment_id, frozenset())

    def may_deliver(self, segment_id: int, is_read: Callable[[int], bool]) -> bool:
        """`is_read`: is the segment held, and was everything in it handed out?"""
        return all(one in self._settled or is_read(one) for one in self.after(segment_id))

    @property
    def has_unsettled(self) -> bool:
        return any(self._unsettled.values())

    def unsettled(self, segment_id: int) -> frozenset[int]:
        """The ancestors that must be acknowledged to their end before acks of this segment are sent."""
        return frozenset(self._unsettled.get(segment_id, ()))
