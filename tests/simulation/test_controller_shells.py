"""The real shells of the controller in seeded simulations: three brokers, a store and segment owners that lose answers.

Random splits, merges, subscribes, seeks, deletions and garbage collections are sent to the leader, while leaders are
killed, frozen (they continue with their old term) and replaced between any two writes. The invariants are checked at
every write of the record and at the end. The machines alone are simulated in `tests/support/simulation/controller.py`,
faster and with more kinds of faults; this test covers the shells.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable

import pytest

from anabranch.controller.interface import LedElsewhere, Start, SubscriptionKind, TopicExists
from anabranch.controller.records.keys import registry_key, term_key
from anabranch.controller.records.subscription_registry import Registry, SubscriptionState
from anabranch.controller.records.topic_record import Outcome, TopicRecord
from anabranch.controller.service import ScalableTopicService
from anabranch.metadata.interface import Change
from anabranch.model.errors import Error
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.segment import backing_topic
from tests.support.in_memory.controllers import TOPIC, Brokers
from tests.support.in_memory.simulated_loop import run_simulated
from tests.support.simulation.metadata_processes import LINES_SHOWN, seeds

SEEDS = int(os.environ.get("ANABRANCH_SEEDS", "1500")) // 4
STEPS = 14


class Life:
    def __init__(self, brokers: Brokers, seed: int) -> None:
        self.brokers, self.chance = brokers, random.Random(seed)
        self.outcomes: dict[str, Outcome] = {}
        self.before: TopicRecord | None = None
        self.term = 0  # the highest of the name, over all its lives
        self.lines: list[str] = []
        self.broken: AssertionError | None = None
        self.asked: list[asyncio.Future[None]] = []
        self.number = 0
        brokers.bare.data.listen(self._written)

    def say(self, text: str) -> None:
        self.lines.append(f"{self.brokers.clock.monotonic():9.3f}  {text}")

    # what must hold at every write ------------------------------------------------------------------------------------
    def _written(self, changes: object) -> None:
        for change in changes:  # type: ignore[attr-defined]  # what the memory backend tells
            assert isinstance(change, Change)
            if change.key == scalable_topic_key(TOPIC):
                try:
                    self._check(self.brokers.record())
                except AssertionError as error:  # raised by the story: a task of a leader would only log it
                    self.say(f"BROKEN: {error!r}")
                    self.broken = self.broken or error

    def check_writes(self) -> None:
        if self.broken is not None:
            raise self.broken

    def _check(self, record: TopicRecord | None) -> None:
        before, self.before = self.before, record
        if record is None:
            assert before is not None
            assert before.is_deleting, "a topic disappeared without a deletion"
            return
        self.say(f"record: term {record.leader_term} epoch {record.epoch} {'runs' if record.operation else ''}")
        if record.leader_term:
            assert record.leader_term >= self.term, "a leader of an older term has written"
            self.term = record.leader_term
        if before is not None and before.incarnation == record.incarnation:
            assert record.epoch >= before.epoch
            assert record.layout.next_segment_id >= before.layout.next_segment_id
        last = record.last_operation
        if last is not None:
            assert self.outcomes.setdefault(last.operation_id, last.outcome) is last.outcome

    # what happens -----------------------------------------------------------------------------------------------------
    def ask(self, name: str, work: Callable[[ScalableTopicService], Awaitable[object]]) -> None:
        """Calls the leader, again if it has changed; refusals are allowed."""

        async def insist() -> None:
            for _ in range(30):
                owner = self.brokers.placing.owner
                if owner is None:
                    await asyncio.sleep(0.05)
                    continue
                try:
                    await work(self.brokers.controllers[owner])
                except LedElsewhere:
                    await asyncio.sleep(0.02)
                except Error as error:
                    self.say(f"{name}: {error.code}")
                    if not error.retryable:
                        return
                    await asyncio.sleep(0.05)
                else:
                    self.say(f"{name}: done")
                    return

        self.say(f"asked: {name}")
        self.asked.append(asyncio.ensure_future(insist()))

    def something(self) -> None:
        chance, record = self.chance, self.before
        self.number += 1
        operation_id = f"op{self.number}"
        active = [] if record is None else list(record.layout.active)
        match chance.choice(["split", "split", "merge", "subscribe", "unsubscribe", "seek", "delete", "create"]):
            case "split" if active:
                target = chance.choice(active).segment_id
                ways = chance.choice([2, 2, 3])
                self.ask(operation_id, lambda c: c.split(TOPIC, target, ways=ways, operation_id=operation_id))
            case "merge" if len(active) > 1:
                first = chance.randrange(len(active) - 1)
                pair = active[first].segment_id, active[first + 1].segment_id
                self.ask(operation_id, lambda c: c.merge(TOPIC, pair, operation_id=operation_id))
            case "subscribe":
                name, start = chance.choice("xyz"), chance.choice([Start.EARLIEST, Start.LATEST])
                kind = SubscriptionKind.QUEUE if name == "x" else SubscriptionKind.STREAM
                self.ask(f"subscribe {name}", lambda c: c.subscribe(TOPIC, name, kind, start))
            case "unsubscribe":
                gone = chance.choice("xyz")
                self.ask(f"unsubscribe {gone}", lambda c: c.unsubscribe(TOPIC, gone))
            case "seek":
                moved, to = chance.choice("xyz"), chance.choice([0, None])
                self.ask(f"move {moved}", lambda c: c.move(TOPIC, moved, to))
            case "delete" if chance.random() < 0.3:
                self.ask("delete", lambda c: c.delete(TOPIC))
            case _:
                self.ask("create", lambda c: c.create(TOPIC, chance.choice([1, 2, 3]), {}))

    async def trouble(self) -> None:
        brokers, chance = self.brokers, self.chance
        name = chance.choice("abc")
        match chance.choice(["move", "kill", "freeze", "nothing"]):
            case "move":
                self.say(f"{name} leads")
                self._lead(name)
            case "kill":
                self.say(f"{name} killed")
                await brokers.kill(name)
                await brokers.start(name)
                self._lead(chance.choice("abc"))
            case "freeze":  # it believes that it still leads, whatever happens
                brokers.places[name].believes = chance.random() < 0.5
                self.say(f"{name} believes: {brokers.places[name].believes}")
            case _:
                return

    def _lead(self, name: str) -> None:
        self.brokers.lead(name)

    # the end ----------------------------------------------------------------------------------------------------------
    async def calm(self) -> None:
        brokers = self.brokers
        brokers.faults.trouble = 0.0
        await asyncio.wait_for(asyncio.gather(*self.asked), 300)
        for place in brokers.places.values():
            place.believes = False
        leader = brokers.lead("a")
        try:
            await leader.create(TOPIC, 1, {})
        except TopicExists:
            pass
        await leader.activate(TOPIC)
        await brokers.until(self._is_calm, 300)
        self._check_calm()

    def _registry(self) -> Registry:
        found = self.brokers.bare.data.get(registry_key(TOPIC))
        return Registry() if found is None else Registry.decode(found.value)

    def _is_calm(self) -> bool:
        record, registry = self.brokers.record(), self._registry()
        if record is None or record.operation is not None or record.garbage or record.is_deleting:
            return False
        found = registry.subscriptions.values()
        return registry.incarnation == record.incarnation and all(
            one.state is SubscriptionState.READY and one.move is None for one in found
        )

    def _check_calm(self) -> None:
        record, registry, shelf = self.brokers.record(), self._registry(), self.brokers.shelf
        assert record is not None
        names = {backing_topic(TOPIC, one): one for one in record.segments.values()}
        assert set(shelf.segments) == set(names), "orphans, or segments that are not there"
        for name, segment in names.items():
            stored = shelf.segments[name]
            assert (stored.sealed is None) == segment.is_active, f"segment {segment.segment_id}"
            assert set(stored.cursors) == registry.cursors, f"cursors of segment {segment.segment_id}"
        assert self.brokers.bare.data.get(term_key(TOPIC)) is not None


@pytest.mark.parametrize("part", seeds(SEEDS, 10))
def test_shells_under_faults(part: range) -> None:
    for seed in part:
        live(seed)


def live(seed: int) -> None:
    lives: list[Life] = []

    async def story() -> None:
        async with Brokers("a", "b", "c", seed=seed, trouble=0.15, max_segments=12, retention_minutes=0) as brokers:
            life = Life(brokers, seed)
            lives.append(life)
            life.ask("create", lambda c: c.create(TOPIC, 2, {}))
            for _ in range(STEPS):
                await asyncio.sleep(life.chance.choice([0.0, 0.01, 0.05, 0.3]))
                life.something()
                if life.chance.random() < 0.5:
                    await asyncio.sleep(life.chance.random() * 0.05)
                    await life.trouble()
                life.check_writes()
            await life.calm()
            life.check_writes()

    try:
        run_simulated(story())
    except BaseException as error:
        said = "\n".join(lives[0].lines[-LINES_SHOWN:]) if lives else ""
        raise AssertionError(f"seed {seed}: {error!r}\n{said}") from error
