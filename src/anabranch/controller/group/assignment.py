"""Which consumer of an ordered subscription has which segment. A machine: no await, clock or chance; knows no wire.

Balanced (counts differ by at most one), sticky (fewest moves that balance allows), deterministic (names and ring order
break every tie), and at no moment do two consumers have one segment:

    free ── Assign ──▶ held by A ── Assign without it ──▶ A is to let go ── released, evicted or A gone ──▶ held by B

Every change has a `generation`; an `Assign` is a consumer's complete list as of its generation. What a consumer says of
an older generation than the one that took the segment from it proves nothing: it may have got it again since.

The price: a change costs what it moves, plus a sort of the consumers. Segments are not scanned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from anabranch.model.segment import Segment


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Joined:
    consumer: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """Another process has taken the consumer's place, or its readers were closed: what it has, it has anew. Only under
    this new generation is it let in where it reads."""

    consumer: str


@dataclass(frozen=True, slots=True)
class Left:
    """Closed for good or its grace is over; nothing that it had is read by it any more."""

    consumer: str


@dataclass(frozen=True, slots=True)
class SegmentsChanged:
    """The segments that are to be read now, complete. `finished`: of those that left, the ones read to their end."""

    segments: Sequence[Segment]
    finished: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Nobody has anything any more, from a new generation on."""


@dataclass(frozen=True, slots=True)
class Vacated:
    """The owners of all segments have confirmed that nobody reads: nobody's word is waited for."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A consumer has applied the assignment of `generation` and now reads exactly these."""

    consumer: str
    generation: int
    segment_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Released:
    """A consumer, or the segment's owner for it, says that it does not read this segment any more."""

    consumer: str
    segment_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class ReleaseTimedOut:
    """The deadline of an `AwaitRelease` passed."""

    segment_id: int
    generation: int


Event = Joined | Renewed | Left | SegmentsChanged | TakenBack | Vacated | Holding | Released | ReleaseTimedOut


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Save:
    """Make `record()` durable before any effect that follows: nobody is told what the next leader would not know."""

    generation: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Tell a consumer its complete list."""

    consumer: str
    generation: int
    segment_ids: tuple[int, ...]  # in ring order


@dataclass(frozen=True, slots=True)
class AwaitRelease:
    """Start a deadline; answer `ReleaseTimedOut` with the same numbers when it passes."""

    segment_id: int
    consumer: str
    generation: int


@dataclass(frozen=True, slots=True)
class Evict:
    """The consumer did not let go in time: the segment's owner closes it there before anybody else is told."""

    segment_id: int
    consumer: str


Effect = Save | Assign | AwaitRelease | Evict


@dataclass(frozen=True, slots=True)
class Leaving:
    """A segment that its former consumer was asked to let go, and the generation in which it was."""

    holder: str
    generation: int


@dataclass(frozen=True, slots=True)
class AssignmentRecord:
    """What the next leader needs to go on without taking anything from anybody."""

    generation: int = 0
    owned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # members; what each has or waits for
    leaving: Mapping[int, Leaving] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        leaving = {str(one): {"holder": it.holder, "generation": it.generation} for one, it in self.leaving.items()}
        return {"generation": self.generation, "owned": self.owned, "leaving": leaving}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AssignmentRecord:
        leaving = {int(one): Leaving(str(it["holder"]), int(it["generation"])) for one, it in value["leaving"].items()}
        owned = {str(name): tuple(map(int, ids)) for name, ids in value["owned"].items()}
        return cls(int(value["generation"]), owned, leaving)


_Heirs = Mapping[int, Sequence[tuple[int, str]]]  # new segment -> its parents that just left, and who had them


class Assignment:
    """The assignment of one subscription."""

    def __init__(self, record: AssignmentRecord | None = None) -> None:
        record = record or AssignmentRecord()
        self._generation = record.generation
        self._places: dict[int, tuple[int, int, int]] = {}  # segment -> its place in the order
        self._owned: dict[str, set[int]] = {name: set(ids) for name, ids in record.owned.items()}
        self._owner: dict[int, str] = {one: name for name, ids in record.owned.items() for one in ids}
        self._leaving: dict[int, Leaving] = dict(record.leaving)
        self._free: set[int] = set()  # nobody is there to have them
        self._touched: set[str] = set()  # members whose list changed in this event
        self._asked: list[int] = []  # segments that were asked for in this event

    # questions --------------------------------------------------------------------------------------------------------
    @property
    def generation(self) -> int:
        return self._generation

    @property
    def members(self) -> frozenset[str]:
        return frozenset(self._owned)

    def holder(self, segment_id: int) -> str | None:
        """Who reads it, or may still: the one that is to let go comes before the one that waits."""
        leaving = self._leaving.get(segment_id)
        return self._owner.get(segment_id) if leaving is None else leaving.holder

    def assigned(self, consumer: str) -> Assign:
        """The list of a member as it stands: also for one that connects again."""
        mine = [one for one in self._owned[consumer] if one not in self._leaving]
        return Assign(consumer, self._generation, tuple(sorted(mine, key=self._place)))

    def awaited(self) -> list[AwaitRelease]:
        """Releases that are due: a new leader starts their deadlines afresh."""
        return [AwaitRelease(one, it.holder, it.generation) for one, it in sorted(self._leaving.items())]

    def record(self) -> AssignmentRecord:
        owned = {name: tuple(sorted(self._owned[name])) for name in sorted(self._owned)}
        return AssignmentRecord(self._generation, owned, dict(self._leaving))

    # the machine ------------------------------------------------------------------------------------------------------
    def handle(self, event: Event) -> list[Effect]:
        self._touched, self._asked = set(), []
        effects: list[Effect] = []
        match event:
            case Joined(consumer):
                if consumer not in self._owned:
                    self._owned[consumer] = set()
                    self._touched.add(consumer)
                    self._balance({})
            case Renewed(consumer):
                self._touched |= {consumer} & self._owned.keys()
            case Left(consumer):
                self._leave(consumer)
            case SegmentsChanged(segments, finished):
                self._change(segments, finished)
            case TakenBack():
                self._change((), frozenset())
                self._touched.add("")  # a generation passes, also where nobody had anything
            case Vacated():
                self._leaving.clear()
            case Holding(consumer, generation, held):
                mine = [
                    one for one, it in self._leaving.items() if it.holder == consumer and it.generation <= generation
                ]
                for one in mine:
                    if one not in held:
                        self._let_go(one)
            case Released(consumer, segment_id, generation):
                found = self._leaving.get(segment_id)
                if found is not None and found.holder == consumer and found.generation <= generation:
                    self._let_go(segment_id)
            case ReleaseTimedOut(segment_id, generation):
                found = self._leaving.get(segment_id)
                if found is not None and found.generation == generation:
                    effects.append(Evict(segment_id, found.holder))
                    self._let_go(segment_id)
            case _:
                assert_never(event)
        return effects + self._told()

    def _told(self) -> list[Effect]:
        """What this event changed, as effects of a new generation."""
        asked = [one for one in self._asked if one in self._leaving]
        if not self._touched and not asked:
            return []
        self._generation += 1
        for one in asked:
            self._leaving[one] = Leaving(self._leaving[one].holder, self._generation)
        effects: list[Effect] = [Save(self._generation)]
        effects += [self.assigned(name) for name in sorted(self._touched & self._owned.keys())]
        effects += [AwaitRelease(one, self._leaving[one].holder, self._generation) for one in sorted(asked)]
        return effects

    def _leave(self, consumer: str) -> None:
        if consumer not in self._owned:
            return
        for one in [one for one, it in self._leaving.items() if it.holder == consumer]:
            self._let_go(one)
        orphans = self._owned.pop(consumer)
        for one in orphans:
            del self._owner[one]
        self._free |= orphans
        self._touched.add(consumer)  # a generation passes, though nobody may be left to hear of it
        self._balance({})

    def _change(self, segments: Iterable[Segment], finished: frozenset[int]) -> None:
        now = {segment.segment_id: segment for segment in segments}
        before = self._owner.keys() | self._free
        last_owner: dict[int, str] = {}
        for one in sorted(before - now.keys()):
            self._free.discard(one)
            owner = self._owner.pop(one, None)
            if owner is None:
                continue
            last_owner[one] = owner
            self._owned[owner].discard(one)
            if one in finished:
                self._leaving.pop(one, None)
                self._touched.add(owner)
            else:
                self._ask(one, owner)
        for one in finished:
            self._leaving.pop(one, None)
        fresh = now.keys() - before
        self._places = {one: (it.hash_range.start, it.hash_range.end, one) for one, it in now.items()}
        self._free |= fresh
        heirs = {
            one: [(parent, last_owner[parent]) for parent in now[one].parent_ids if parent in last_owner]
            for one in fresh
        }
        self._balance(heirs)

    # balance ----------------------------------------------------------------------------------------------------------
    def _balance(self, heirs: _Heirs) -> None:
        """Give the free segments out and move the fewest so that counts differ by at most one.

        Those who have most get the larger shares (so the fewest give anything up), among equals those who would get a
        child of what they read, then by name.
        """
        if not self._owned:
            return
        share, larger = divmod(len(self._owner) + len(self._free), len(self._owned))
        favoured = {name for pairs in heirs.values() for _, name in pairs}
        ranked = sorted(self._owned, key=lambda name: (-len(self._owned[name]), name not in favoured, name))
        pool, room = self._free, dict[str, int]()
        self._free = set()
        for rank, name in enumerate(ranked):
            quota, owned = share + (rank < larger), self._owned[name]
            if len(owned) < quota:
                room[name] = quota - len(owned)
            elif len(owned) > quota:
                # what it only waits for goes first: that moves nothing
                given = sorted(owned, key=lambda one: (one in self._leaving, self._place(one)), reverse=True)
                for one in given[: len(owned) - quota]:
                    owned.discard(one)
                    del self._owner[one]
                    pool.add(one)
                    if one not in self._leaving:
                        self._ask(one, name)
        self._deal(sorted(pool, key=self._place), room, heirs)

    def _deal(self, pool: list[int], room: dict[str, int], heirs: _Heirs) -> None:
        """The pool to those with room: back to who still reads it, one child to each parent's consumer, the rest."""
        rest: list[int] = []
        for one in pool:
            holder = self._leaving[one].holder if one in self._leaving else ""
            if not self._give(one, holder, room):
                rest.append(one)
        served: set[int] = set()  # parents
        later: list[int] = []
        for one in rest:
            pairs = heirs.get(one, ())
            parent = next((p for p, name in pairs if p not in served and self._give(one, name, room)), None)
            if parent is None:
                later.append(one)
            else:
                served.add(parent)
        takers = iter(sorted(room))
        taker = next(takers, "")
        for one in later:
            while not self._give(one, taker, room):
                taker = next(takers)

    def _give(self, one: int, name: str, room: dict[str, int]) -> bool:
        if room.get(name, 0) <= 0:
            return False
        room[name] -= 1
        self._owned[name].add(one)
        self._owner[one] = name
        it = self._leaving.get(one)
        if it is not None and it.holder == name:
            del self._leaving[one]
        if one not in self._leaving:
            self._touched.add(name)
        return True

    # moves ------------------------------------------------------------------------------------------------------------
    def _ask(self, one: int, holder: str) -> None:
        """The holder is to let go; until then nobody else gets it."""
        if one not in self._leaving:
            self._leaving[one] = Leaving(holder, self._generation + 1)
            self._asked.append(one)
            self._touched.add(holder)

    def _let_go(self, one: int) -> None:
        del self._leaving[one]
        owner = self._owner.get(one)
        if owner is not None:
            self._touched.add(owner)

    def _place(self, one: int) -> tuple[int, int, int]:
        return self._places.get(one, (0, 0, one))
