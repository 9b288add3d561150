"""Stories of one topic that scales itself under faults: the real controllers of three brokers, seeded.

Load and consumers rise and fall. No split or merge is manual. Leaders are killed, frozen and replaced at any write;
writes and requests are refused, or lose their answers, load reports included.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from anabranch.controller.group.group_coordinator import ConsumerLink
from anabranch.controller.interface import AssignedSegments, Registration, Start, SubscriptionKind
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import SegmentRef
from anabranch.controller.service import ScalableTopicService
from anabranch.metadata.interface import Change
from anabranch.model.autoscale import evaluator
from anabranch.model.autoscale.decision import Decision, Suppression
from anabranch.model.autoscale.evaluator import GroupDemand
from anabranch.model.autoscale.history import History, decode_history, encode_history
from anabranch.model.autoscale.load import SegmentLoad, decode_load, encode_load
from anabranch.model.autoscale.policy import AutoScalePolicy
from anabranch.model.errors import Error
from anabranch.model.hashrange import HashRange
from anabranch.model.layout import Layout
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment
from anabranch.runtime.tasks import TaskOwner
from tests.support.in_memory.controllers import TOPIC, Brokers, Link
from tests.support.in_memory.segment_loads import SegmentLoads
from tests.support.in_memory.simulated_loop import run_simulated
from tests.support.simulation.controller import name_of
from tests.support.simulation.metadata_processes import LINES_SHOWN

KEYS = 48
LEVELS = (0, 3, 24, 48)
"""Keys in use; each has one message per second. On segments of equal width no rate is near a threshold."""
TICKS_PER_SECOND = 2
TICK_SECONDS = 1 / TICKS_PER_SECOND
CHECKED_DECISIONS = 4
"""One of so many is decided again from stored values: that costs as much as everything else of the leader."""
PHASE_SECONDS = (25, 60)
IDLE_SECONDS = 75  # one window of 60 s, and time to merge
SETTLE_SECONDS = 12  # until reports and sessions show what a phase has changed
CALM_SECONDS = 60
READER = "audit"
SETTINGS: dict[str, Any] = {
    "auto_scale_enabled": True,
    "auto_scale_interval_seconds": 15.0,
    "split_cooldown_seconds": 3,
    "merge_cooldown_seconds": 5,
    "merge_window_seconds": 5,
    "split_rate_window_seconds": 5,
    "split_msg_rate_in_threshold": 17.0,
    "merge_msg_rate_in_threshold": 4.0,
    "min_segments": 1,
    "max_segments": 8,
    "sweep_seconds": 5.0,
    "session_grace_seconds": 5.0,
    "drain_seconds": 2.0,
    "retention_minutes": 0,
}
FLIP_MS = 2 * 1000 * max(SETTINGS["split_cooldown_seconds"], SETTINGS["merge_cooldown_seconds"])


class ReleasingLink(Link):
    """Releases revoked segments at once, as a consumer that keeps up does."""

    def __init__(self) -> None:
        super().__init__()
        self.link: ConsumerLink | None = None
        self.leader: ScalableTopicService | None = None  # where it is registered

    def assigned(self, assignment: AssignedSegments) -> None:
        before = self.received[-1] if self.received else None
        super().assigned(assignment)
        gone = {one.segment_id for one in before.segments} if before is not None else set()
        gone -= {one.segment_id for one in assignment.segments}
        if self.link is not None and gone:
            self.link.released(sorted(gone), assignment.generation)


@dataclass(frozen=True)
class Changed:
    """A committed split or merge."""

    at_ms: int
    kind: str
    ranges: tuple[HashRange, ...]
    phase: int
    is_settled: bool  # it was decided by what the phase is like


class Life:
    def __init__(self, brokers: Brokers, seed: int, policy: AutoScalePolicy) -> None:
        self.brokers, self.policy, self.chance = brokers, policy, random.Random(seed)
        self.loads = SegmentLoads(brokers, policy, lambda: self.before)
        self.lines: list[str] = []
        self.broken: AssertionError | None = None
        self.phase, self.keys_in_use, self._phase_at = 0, 0, 0.0
        self.before: TopicRecord | None = None
        self.changes: list[Changed] = []
        self.leaders = 0
        self.sent: dict[int, int] = defaultdict(int)  # by key: messages that are stored
        self.read: dict[int, int] = defaultdict(int)  # by key: the next one that the reader expects
        self._targets: dict[int, TopicName] = {}
        self._stalled: dict[int, int] = {}  # key -> ticks for which its producer stands still
        self._consumers: dict[str, ReleasingLink] = {}
        self._names = 0
        self._are_wanted = asyncio.Event()
        brokers.bare.data.listen(self._written)

    def say(self, text: str) -> None:
        self.lines.append(f"{self.brokers.clock.monotonic():9.3f}  {text}")

    # what must hold at every write ------------------------------------------------------------------------------------
    def _written(self, changes: Any) -> None:
        for change in changes:
            assert isinstance(change, Change)
            if change.key == scalable_topic_key(TOPIC):
                record = self.brokers.record()
                assert record is not None
                try:
                    self._check(record)
                except AssertionError as error:  # raised by the story, not within a leader's write
                    self.say(f"BROKEN: {error}")
                    self.broken = self.broken or error

    def _check(self, record: TopicRecord) -> None:
        before, self.before = self.before, record
        active = record.layout.active
        assert self.policy.min_segments <= len(active) <= self.policy.max_segments, f"{len(active)} segments"
        assert max(one.merge_depth for one in active) <= self.policy.max_dag_depth
        if before is None:
            return
        self.leaders += record.leader_term != before.leader_term
        self._check_cooldown("split", before.last_split_at_ms, record.last_split_at_ms)
        self._check_cooldown("merge", before.last_merge_at_ms, record.last_merge_at_ms)
        operation = before.operation
        if operation is not None and record.operation is None and record.epoch > before.epoch:
            ranges = tuple(before.layout[one].hash_range for one in operation.plan.parent_ids)
            now = self.brokers.clock.monotonic()
            is_settled = now - self._phase_at > SETTLE_SECONDS
            kind = operation.plan.kind.lower()
            self._check_flip(Changed(self.brokers.clock.now_ms(), kind, ranges, self.phase, is_settled))

    def _check_cooldown(self, kind: str, before_ms: int, now_ms: int) -> None:
        if now_ms == before_ms or before_ms <= 0:
            return
        cooldown = getattr(self.policy, f"{kind}_cooldown_seconds") * 1000
        assert now_ms - before_ms >= cooldown, f"{kind} {now_ms - before_ms} ms after the one before"

    def _check_flip(self, change: Changed) -> None:
        """In a phase neither load nor consumers change."""
        self.say(f"{change.kind} of {[str(one) for one in change.ranges]}")
        for earlier in self.changes:
            is_near = change.at_ms - earlier.at_ms <= FLIP_MS and change.phase == earlier.phase
            if is_near and earlier.is_settled and change.kind != earlier.kind and _touch(change.ranges, earlier.ranges):
                raise AssertionError(f"{change.kind} {change.at_ms - earlier.at_ms} ms after a {earlier.kind}")
        self.changes.append(change)

    # traffic ----------------------------------------------------------------------------------------------------------
    async def traffic(self) -> None:
        for tick in count():
            await asyncio.sleep(TICK_SECONDS)
            for key in range(tick % TICKS_PER_SECOND, self.keys_in_use, TICKS_PER_SECOND):
                self._publish(key)
            if tick % TICKS_PER_SECOND == 0:
                self._consume()
            if self._absent():
                self._are_wanted.set()

    def _publish(self, key: int) -> None:
        if self._stalled.get(key, 0) > 0:
            self._stalled[key] -= 1
        elif self.chance.random() < 0.01:
            self._stalled[key] = self.chance.randint(1, 6)  # its producer keeps an old layout meanwhile
        else:
            self._send(key)

    def _send(self, key: int) -> None:
        """Into the segment that the producer knows; from a sealed one to its children, as their owner says."""
        shelf, ring = self.brokers.shelf, _ring(key)
        name = self._targets.get(key) or self._by_layout(ring)
        while True:
            stored = shelf.segments.get(name)
            if stored is None:  # pruned: the producer looks the layout up
                name = self._by_layout(ring)
                stored = shelf.segments[name]
            if stored.sealed is None:
                break
            children = shelf.children_of(name)
            name = next(child.name for child in children if ring in _range_of(child))
        self._targets[key] = name
        shelf.publish(name, f"key-{key}", self.sent[key], b"", self.brokers.clock.now_ms())
        self.sent[key] += 1

    def _by_layout(self, ring: int) -> TopicName:
        assert self.before is not None
        return name_of(self.before.layout.at(ring))

    def _consume(self, share: float = 0.7) -> bool:
        """Reads segments whose ancestors are drained. True if there was something to read."""
        record, found = self.before, False
        assert record is not None
        for number in sorted(record.segments):
            stored = self.brokers.shelf.segments.get(name_of(record.segments[number]))
            if stored is None or READER not in stored.cursors:
                continue
            if stored.cursors[READER].next == len(stored.entries) or self.chance.random() > share:
                continue
            if all(self._is_drained(record.segments[one]) for one in record.layout.ancestors(number)):
                found = True
                for position, entry in self.brokers.shelf.unread(stored.ref.name, READER):
                    key = int(entry.producer.removeprefix("key-"))
                    expected = self.read[key]
                    assert entry.sequence_id == expected, f"{entry.producer}: {entry.sequence_id} after {expected - 1}"
                    self.read[key] += 1
                    self.brokers.shelf.acknowledge(stored.ref.name, READER, position)
        return found

    def _is_drained(self, segment: Segment) -> bool:
        stored = self.brokers.shelf.segments.get(name_of(segment))
        return stored is None or stored.cursors[READER].is_drained

    # consumers --------------------------------------------------------------------------------------------------------
    async def set_consumers(self, wanted: int) -> None:
        while len(self._consumers) < wanted:
            self._names += 1
            self._consumers[f"c{self._names}"] = ReleasingLink()
            await self._attend()
        while len(self._consumers) > wanted:
            name, listener = self._consumers.popitem()
            if listener.link is not None:
                try:
                    await listener.link.leave()
                except Error:
                    listener.link.disconnected()
            self.say(f"{name} left")

    async def attend(self) -> None:
        """Consumers register again when their leader has changed, as clients do."""
        while True:
            await self._are_wanted.wait()
            self._are_wanted.clear()
            await self._attend()

    def _leader(self) -> ScalableTopicService | None:
        return self.brokers.controllers.get(self.brokers.placing.owner or "")

    def _absent(self) -> list[str]:
        """Consumers that are not registered with the leader."""
        leader = self._leader()
        if leader is None:
            return []
        return [name for name, one in self._consumers.items() if one.leader is not leader or one.error is not None]

    async def _attend(self) -> None:
        for name in self._absent():
            leader = self._leader()
            if leader is None or name not in self._consumers:
                continue
            again, request = ReleasingLink(), Registration(READER, SubscriptionKind.STREAM, name, Start.EARLIEST)
            try:
                _, again.link = await leader.register(TOPIC, request, again)
            except Error:
                continue  # the leader has changed
            if name not in self._consumers:
                again.link.disconnected()
                continue
            again.leader, self._consumers[name] = leader, again
            self.say(f"{name} joined")

    # faults -----------------------------------------------------------------------------------------------------------
    async def trouble(self) -> None:
        brokers, chance = self.brokers, self.chance
        while True:
            await asyncio.sleep(chance.uniform(0.5, 20))
            name = chance.choice("abc")
            match chance.choice(["move", "kill", "freeze"]):
                case "move":
                    self.say(f"{name} leads")
                    brokers.lead(name)
                case "kill":
                    self.say(f"{name} killed")
                    await brokers.kill(name)
                    await brokers.start(name)
                    brokers.lead(chance.choice("abc"))
                case _:  # another broker leads, which this one notices late
                    place = brokers.places[name]
                    place.believes = brokers.placing.owner == name
                    brokers.lead(chance.choice("abc"))
                    self.say(f"{name} is late: {place.believes}")
                    await asyncio.sleep(chance.uniform(0.05, 1.5))
                    place.believes = False
                    brokers.controllers[name].placement_changed(has_gained=False)

    # the whole story --------------------------------------------------------------------------------------------------
    async def live(self) -> None:
        brokers, chance, tasks = self.brokers, self.chance, TaskOwner("life")
        await brokers.controllers["a"].create(TOPIC, 1, {})
        await brokers.controllers["a"].subscribe(TOPIC, READER, SubscriptionKind.STREAM, Start.EARLIEST)
        brokers.faults.trouble = 0.1
        tasks.spawn(self.traffic(), "traffic")
        tasks.spawn(self.attend(), "consumers")
        loads = tasks.spawn(self.loads.run(), "loads")
        troubles = tasks.spawn(self.trouble(), "trouble")
        assert loads is not None
        assert troubles is not None
        try:
            for self.phase, keys in enumerate((chance.choice(LEVELS), KEYS, 0)):
                self.keys_in_use, self._phase_at = keys, float("inf")  # it begins when the consumers are there
                await self.set_consumers(chance.choice([0, 0, 2, 5]))
                self._phase_at = brokers.clock.monotonic()
                self.say(f"{keys} messages per second, {len(self._consumers)} consumers")
                await asyncio.sleep(chance.uniform(*PHASE_SECONDS) if keys else IDLE_SECONDS)
                if self.broken is not None:
                    raise self.broken
            troubles.cancel()
            await self._calm()
            if self.broken is not None:
                raise self.broken
        finally:
            await tasks.close()

    async def _calm(self) -> None:
        brokers = self.brokers
        brokers.faults.trouble = 0.0
        for place in brokers.places.values():
            place.believes = False
        await brokers.lead("a").activate(TOPIC)
        await self.set_consumers(0)
        await asyncio.sleep(CALM_SECONDS)
        while self._consume(1.0):
            pass
        assert self.read == self.sent, "messages are lost"
        await self._check_converged()

    async def _check_converged(self) -> None:
        """Idle, so at its floor. Every leader says the same, with what it knows and with what is stored."""
        said = [await self._considered(name) for name in "abab"]
        record = self.brokers.record()
        assert record is not None
        assert record.operation is None
        assert all(one.action is None for one in said)
        assert len({_short(one) for one in said}) == 1
        is_at_floor = len(record.layout.active) == self.policy.min_segments
        assert is_at_floor or Suppression.MAX_DEPTH in said[0].suppressed_by, f"not merged: {said[0]}"

    async def _considered(self, name: str) -> Decision:
        service = self.brokers.lead(name)
        await service.activate(TOPIC)
        leader = await service.controllers.lead(TOPIC)
        await leader.wait_leading()
        assert leader.scaler is not None
        return await leader.scaler.considered(self.policy)


def _ring(key: int) -> int:
    return (key * 40_503 + 7) % (1 << 16)  # spread over the ring


def _range_of(child: SegmentRef) -> HashRange:
    described = child.name.segment
    assert described is not None
    return HashRange(described.start, described.end)


def _touch(some: Sequence[HashRange], others: Sequence[HashRange]) -> bool:
    return any(one.start <= other.end and other.start <= one.end for one in some for other in others)


def _short(decision: Decision) -> tuple[object, ...]:
    """Without texts, which have times that pass."""
    return (
        decision.action,
        decision.reason,
        tuple((one.kind, one.reason, one.suppressed_by, one.segment_ids) for one in decision.suppressed),
    )


class DecideTwice:
    """The evaluator, which must say the same about the same input in another order, and as another leader reads it."""

    def __init__(self) -> None:
        self._decisions = count()

    def __call__(
        self,
        layout: Layout,
        loads: Mapping[int, SegmentLoad],
        consumers: Sequence[GroupDemand],
        policy: AutoScalePolicy,
        history: History,
        now_ms: int,
        *,
        unowned: Collection[int] = (),
    ) -> Decision:
        found = evaluator.decide(layout, loads, consumers, policy, history, now_ms, unowned=unowned)
        if next(self._decisions) % CHECKED_DECISIONS:
            return found
        again = evaluator.decide(
            replace(layout, segments=dict(reversed(list(layout.segments.items())))),
            {number: decode_load(encode_load(load)) for number, load in reversed(list(loads.items()))},
            tuple(reversed(consumers)),
            AutoScalePolicy().overridden(policy.to_json()),
            replace(
                decode_history(encode_history(replace(history, decisions=()))),
                decisions=history.decisions,
                last_split_at_ms=history.last_split_at_ms,
                last_merge_at_ms=history.last_merge_at_ms,
                operation=history.operation,
            ),
            now_ms,
            unowned=set(unowned),
        )
        assert found == again, f"two leaders decide differently: {found} and {again}"
        return found


def live(seed: int, **settings: Any) -> Life:
    """`settings`: of scalable topics, beside `SETTINGS`."""
    lives: list[Life] = []

    async def story() -> None:
        async with Brokers("a", "b", "c", seed=seed, **{**SETTINGS, **settings}) as brokers:
            life = Life(brokers, seed, brokers.settings.auto_scale_policy)
            lives.append(life)
            await life.live()

    try:
        run_simulated(story())
    except BaseException as error:
        said = "\n".join(lives[0].lines[-LINES_SHOWN:]) if lives else ""
        raise AssertionError(f"seed {seed}: {error!r}\n{said}") from error
    return lives[0]
