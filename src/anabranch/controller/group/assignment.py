"""Assignment of segments to the consumers of one ordered subscription. A state machine: no await, clock or randomness.

The assignment is balanced (counts differ by at most one), sticky (as few moves as balance allows) and deterministic
(names and ring order break ties). A segment never has two consumers at a time:

    free ── Assign ──▶ held by A ── Assign without it ──▶ A must release ── released, evicted or A gone ──▶ held by B

A member may also *follow*: it gets a segment before the segment's ancestors are drained, because it holds all of them
(`continuation.py` decides that). Followed segments do not count for the balance. When the last ancestor is drained, the
segment becomes an ordinary segment of the member that followed.

Members without a segment may *share* segments of others, by entry buckets (`sharing.py` decides that). The owner of a
shared segment reads its share like the others. A share needs no release by its former reader before it is assigned,
because the segment's dispatcher keeps the order of each bucket; who loses all of it is still asked to release it.

Every change raises `generation`; an `Assign` is a consumer's complete list as of its generation. A release that names a
generation older than the revocation is ignored, because the consumer may have got the segment again since.

Cost: proportional to the segments that move, plus a sort of the consumers. Segments are not scanned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from anabranch.controller.group.assignment_record import AssignmentRecord, Leaving
from anabranch.model.segment import Segment


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Joined:
    consumer: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """Another process uses the consumer's name, or its readers were closed. Its segments get a new generation, and
    owners admit it only under that."""

    consumer: str


@dataclass(frozen=True, slots=True)
class Left:
    """The consumer has left or its grace period is over; it no longer reads any of its segments."""

    consumer: str


@dataclass(frozen=True, slots=True)
class SegmentsChanged:
    """The complete list of segments to read. `finished`: those removed because they were read to their end."""

    segments: Sequence[Segment]
    finished: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Followed:
    """The complete list of followed segments, with the member that follows. `finished`: segments that are drained."""

    following: Mapping[int, str]
    finished: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Shared:
    """The complete list of shared segments, with the buckets of each reader, the owner included."""

    shares: Mapping[int, Mapping[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """All segments are revoked, with a new generation."""


@dataclass(frozen=True, slots=True)
class Vacated:
    """The owners of all segments have confirmed that there are no readers, so no release is awaited any more."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A consumer has applied the assignment of `generation` and now reads exactly these segments."""

    consumer: str
    generation: int
    segment_ids: frozenset[int]
    connection: int | None = None  # that reported it; it counts only while it has the consumer's session


@dataclass(frozen=True, slots=True)
class Released:
    """A consumer, or the segment's owner for it, reports that it no longer reads this segment."""

    consumer: str
    segment_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class ReleaseTimedOut:
    """The deadline of an `AwaitRelease` has passed."""

    segment_id: int
    generation: int
    consumer: str = ""  # empty: the holder


Event = (
    Joined
    | Renewed
    | Left
    | SegmentsChanged
    | Followed
    | Shared
    | TakenBack
    | Vacated
    | Holding
    | Released
    | ReleaseTimedOut
)


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Save:
    """Make `record()` durable before any effect that follows, so that the next leader knows whatever was sent."""

    generation: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Send a consumer its complete list."""

    consumer: str
    generation: int
    segment_ids: tuple[int, ...]  # in ring order, followed segments last
    buckets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by shared segment: its share


@dataclass(frozen=True, slots=True)
class AwaitRelease:
    """Start a deadline; answer `ReleaseTimedOut` with the same numbers when it passes."""

    segment_id: int
    consumer: str
    generation: int


@dataclass(frozen=True, slots=True)
class Evict:
    """The consumer did not release in time. The segment's owner closes it before the segment is assigned again."""

    segment_id: int
    consumer: str


Effect = Save | Assign | AwaitRelease | Evict


_ParentOwners = Mapping[int, Sequence[tuple[int, str]]]  # new segment -> its removed parents, with their consumers


class Assignment:
    """The assignment of one subscription."""

    def __init__(self, record: AssignmentRecord | None = None) -> None:
        record = record or AssignmentRecord()
        self._generation = record.generation
        self._order: dict[int, tuple[int, int, int]] = {}  # segment -> sort key in ring order
        self._owned: dict[str, set[int]] = {name: set(ids) for name, ids in record.owned.items()}
        self._owner: dict[int, str] = {one: name for name, ids in record.owned.items() for one in ids}
        self._leaving: dict[int, Leaving] = dict(record.leaving)
        self._following: dict[int, str] = dict(record.following)
        self._shares: dict[int, Mapping[str, tuple[int, ...]]] = dict(record.shares)
        self._losing: dict[tuple[int, str], int] = dict(record.losing)
        self._free: set[int] = set()  # there is no member to have them
        self._touched: set[str] = set()  # members whose list changed in this event
        self._asked: list[int] = []  # segments revoked in this event

    # questions --------------------------------------------------------------------------------------------------------
    @property
    def generation(self) -> int:
        return self._generation

    @property
    def members(self) -> frozenset[str]:
        return frozenset(self._owned)

    def holder(self, segment_id: int) -> str | None:
        """The consumer that reads it or may still read it: until the release, the former one."""
        leaving = self._leaving.get(segment_id)
        owner = self._owner.get(segment_id) or self._following.get(segment_id)
        return owner if leaving is None else leaving.holder

    @property
    def following(self) -> Mapping[int, str]:
        return self._following

    @property
    def shares(self) -> Mapping[int, Mapping[str, tuple[int, ...]]]:
        """By shared segment: the buckets of its readers."""
        return self._shares

    @property
    def segments(self) -> list[int]:
        """Those that have an owner, in ring order."""
        return sorted(self._owner, key=self._order_key)

    @property
    def without_segments(self) -> frozenset[str]:
        """Members that own no segment."""
        return frozenset(name for name, owned in self._owned.items() if not owned)

    def is_shared(self, segment_id: int) -> bool:
        """Several members read it, or may still read it."""
        return segment_id in self._shares or any(one == segment_id for one, _ in self._losing)

    def is_leaving(self, segment_id: int) -> bool:
        return segment_id in self._leaving

    def owner(self, segment_id: int) -> str | None:
        """The member that has the segment, or will have it after its release. None: no member, or only followed."""
        return self._owner.get(segment_id)

    def copy(self, following: Mapping[int, str]) -> Assignment:
        """The same assignment with other followed segments, to try changes on."""
        made = Assignment(replace(self.record(), following=following))
        made._order, made._free = dict(self._order), set(self._free)
        return made

    def assigned(self, consumer: str) -> Assign:
        """The current list of a member, also sent when it reconnects."""
        mine = sorted((one for one in self._owned[consumer] if one not in self._leaving), key=self._order_key)
        mine += sorted(one for one, name in self._following.items() if name == consumer)
        buckets = {one: readers[consumer] for one, readers in sorted(self._shares.items()) if consumer in readers}
        mine += [one for one in buckets if self._owner.get(one) != consumer]
        return Assign(consumer, self._generation, tuple(mine), {one: buckets[one] for one in mine if one in buckets})

    def awaited(self) -> list[AwaitRelease]:
        """Releases that are awaited. A new leader restarts their deadlines."""
        awaited = [AwaitRelease(one, it.holder, it.generation) for one, it in sorted(self._leaving.items())]
        return awaited + [AwaitRelease(one, name, at) for (one, name), at in sorted(self._losing.items())]

    def record(self) -> AssignmentRecord:
        owned = {name: tuple(sorted(self._owned[name])) for name in sorted(self._owned)}
        following = dict(sorted(self._following.items()))
        return AssignmentRecord(
            self._generation, owned, dict(self._leaving), following, dict(self._shares), dict(self._losing)
        )

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
                for readers in self._shares.values():  # the fence that is raised for it concerns them, too
                    self._touched |= readers.keys() if consumer in readers else set()
            case Left(consumer):
                self._leave(consumer)
            case SegmentsChanged(segments, finished):
                self._change(segments, finished)
            case Followed(following, finished):
                self._follow(following, finished)
            case Shared(shares):
                self._share(shares)
            case TakenBack():
                self._follow({}, frozenset())
                self._share({})
                self._change((), frozenset())
                self._touched.add("")  # raises the generation, even if no member had a segment
            case Vacated():
                self._leaving.clear()
                self._losing.clear()
            case Holding(consumer, generation, held, _):
                mine = [
                    one for one, it in self._leaving.items() if it.holder == consumer and it.generation <= generation
                ]
                for one in mine:
                    if one not in held:
                        self._released(one)
                for one, at in self._lost_by(consumer).items():
                    if at <= generation and one not in held:
                        del self._losing[one, consumer]
            case Released(consumer, segment_id, generation):
                found = self._leaving.get(segment_id)
                if found is not None and found.holder == consumer and found.generation <= generation:
                    self._released(segment_id)
                if self._losing.get((segment_id, consumer), generation + 1) <= generation:
                    del self._losing[segment_id, consumer]
            case ReleaseTimedOut(segment_id, generation, consumer):
                found = self._leaving.get(segment_id)
                if self._losing.get((segment_id, consumer)) == generation:
                    effects.append(Evict(segment_id, consumer))
                    del self._losing[segment_id, consumer]
                elif found is not None and found.generation == generation:
                    effects.append(Evict(segment_id, found.holder))
                    self._released(segment_id)
            case _:
                assert_never(event)
        return effects + self._changes()

    def _changes(self) -> list[Effect]:
        """Effects of the changes of this event, with a new generation."""
        asked = [one for one in self._asked if one in self._leaving]
        if not self._touched and not asked:
            return []
        self._generation += 1
        lost = [AwaitRelease(one, name, at) for (one, name), at in self._losing.items() if at == self._generation]
        for one in asked:
            self._leaving[one] = Leaving(self._leaving[one].holder, self._generation)
        effects: list[Effect] = [Save(self._generation)]
        effects += [self.assigned(name) for name in sorted(self._touched & self._owned.keys())]
        effects += [AwaitRelease(one, self._leaving[one].holder, self._generation) for one in sorted(asked)]
        return effects + lost

    def _leave(self, consumer: str) -> None:
        if consumer not in self._owned:
            return
        for one in [one for one, it in self._leaving.items() if it.holder == consumer]:
            self._released(one)
        self._following = {one: name for one, name in self._following.items() if name != consumer}
        self._losing = {key: at for key, at in self._losing.items() if key[1] != consumer}
        for one, readers in self._shares.items():
            self._shares[one] = {name: buckets for name, buckets in readers.items() if name != consumer}
        orphans = self._owned.pop(consumer)
        for one in orphans:
            del self._owner[one]
        self._free |= orphans
        self._touched.add(consumer)  # raises the generation, even if no member is left
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
            self._touched |= self._shares.pop(one, {}).keys()
            self._losing = {key: at for key, at in self._losing.items() if key[0] != one}
        fresh = now.keys() - before
        for one in sorted(fresh & self._following.keys()):  # its ancestors are drained; the follower has it already
            name = self._following.pop(one)
            self._owned[name].add(one)
            self._owner[one] = name
            fresh -= {one}
        self._order = {one: (it.hash_range.start, it.hash_range.end, one) for one, it in now.items()}
        self._free |= fresh
        parent_owners = {
            one: [(parent, last_owner[parent]) for parent in now[one].parent_ids if parent in last_owner]
            for one in fresh
        }
        self._balance(parent_owners)

    def _follow(self, following: Mapping[int, str], finished: frozenset[int]) -> None:
        for one, name in sorted(self._following.items()):
            if following.get(one) == name:
                continue
            del self._following[one]
            if one in finished:
                self._touched.add(name)
            else:
                self._ask(one, name)
        for one, name in sorted(following.items()):
            if one not in self._following:
                assert one not in self._leaving
                assert one not in self._owner
                self._following[one] = name
                self._touched.add(name)

    def _share(self, shares: Mapping[int, Mapping[str, tuple[int, ...]]]) -> None:
        """All readers of a segment get their shares of one generation, because later claims take buckets over."""
        for one in sorted(self._shares.keys() | shares.keys()):
            before, now = self._shares.get(one, {}), shares.get(one, {})
            if before == now:
                continue
            for name in before.keys() - now.keys() - {self._owner.get(one), self._following.get(one)}:
                self._losing.setdefault((one, name), self._generation + 1)
            owner = {self._owner[one]} if one in self._owner else set()
            self._touched |= (before.keys() | now.keys() | owner) & self._owned.keys()
        self._shares = {one: dict(readers) for one, readers in shares.items()}
        for one, readers in shares.items():
            for name in readers:
                self._losing.pop((one, name), None)

    def _lost_by(self, consumer: str) -> dict[int, int]:
        return {one: at for (one, name), at in self._losing.items() if name == consumer}

    # balance ----------------------------------------------------------------------------------------------------------
    def _balance(self, parent_owners: _ParentOwners) -> None:
        """Assigns the free segments and moves as few as possible, so that counts differ by at most one.

        Members with most segments get the larger shares, so that few are revoked. Ties: first members that would get a
        child of a segment they read, then by name.
        """
        if not self._owned:
            return
        share, larger = divmod(len(self._owner) + len(self._free), len(self._owned))
        favoured = {name for pairs in parent_owners.values() for _, name in pairs}
        ranked = sorted(self._owned, key=lambda name: (-len(self._owned[name]), name not in favoured, name))
        pool, quota_left = self._free, dict[str, int]()
        self._free = set()
        for rank, name in enumerate(ranked):
            quota, owned = share + (rank < larger), self._owned[name]
            if len(owned) < quota:
                quota_left[name] = quota - len(owned)
            elif len(owned) > quota:
                # segments that it only waits for are taken first, because that revokes nothing
                given = sorted(owned, key=lambda one: (one in self._leaving, self._order_key(one)), reverse=True)
                for one in given[: len(owned) - quota]:
                    owned.discard(one)
                    del self._owner[one]
                    pool.add(one)
                    if one not in self._leaving:
                        self._ask(one, name)
        self._deal(sorted(pool, key=self._order_key), quota_left, parent_owners)

    def _deal(self, pool: list[int], quota_left: dict[str, int], parent_owners: _ParentOwners) -> None:
        """Deals the pool to members below their quota: first to the current reader, then one child to each parent's
        consumer, then the rest in order."""
        rest: list[int] = []
        for one in pool:
            holder = self._leaving[one].holder if one in self._leaving else ""
            readers = (holder, *self._shares.get(one, ()))
            if not any(self._give(one, name, quota_left) for name in readers):
                rest.append(one)
        served: set[int] = set()  # parents
        later: list[int] = []
        for one in rest:
            pairs = parent_owners.get(one, ())
            parent = next((p for p, name in pairs if p not in served and self._give(one, name, quota_left)), None)
            if parent is None:
                later.append(one)
            else:
                served.add(parent)
        takers = iter(sorted(quota_left))
        taker = next(takers, "")
        for one in later:
            while not self._give(one, taker, quota_left):
                taker = next(takers)

    def _give(self, one: int, name: str, quota_left: dict[str, int]) -> bool:
        if quota_left.get(name, 0) <= 0:
            return False
        quota_left[name] -= 1
        self._owned[name].add(one)
        self._owner[one] = name
        self._losing.pop((one, name), None)
        it = self._leaving.get(one)
        if it is not None and it.holder == name:
            del self._leaving[one]
        if one not in self._leaving:
            self._touched.add(name)
        return True

    # moves ------------------------------------------------------------------------------------------------------------
    def _ask(self, one: int, holder: str) -> None:
        """Revokes the segment from its holder. Another member gets it after the release."""
        if one not in self._leaving:
            self._leaving[one] = Leaving(holder, self._generation + 1)
            self._asked.append(one)
            self._touched.add(holder)

    def _released(self, one: int) -> None:
        del self._leaving[one]
        owner = self._owner.get(one)
        if owner is not None:
            self._touched.add(owner)

    def _order_key(self, one: int) -> tuple[int, int, int]:
        return self._order.get(one, (0, 0, one))
