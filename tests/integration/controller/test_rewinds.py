"""A seek of an ordered subscription whose leader crashes before each of its writes and requests; the next leader
completes it. Real shells, simulated time.

Invariant: a segment that is read again admits no consumer, under any assignment sent so far, while an ancestor is
undrained.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from anabranch.controller.interface import AssignedSegments, ConsumerRegistration, Registration, Start, SubscriptionKind
from anabranch.model.errors import Error
from anabranch.model.segment import backing_topic
from tests.support.in_memory.controllers import TOPIC, Brokers, Link
from tests.support.in_memory.simulated_loop import run_simulated
from tests.support.models.memory_segment_host import StoredSegment

MESSAGES = 4
CONSUMERS = ("a", "b")


@dataclass
class Reader:
    name: str
    link: Link = field(default_factory=Link)
    received: list[AssignedSegments] = field(default_factory=list)  # over all its connections
    registration: ConsumerRegistration | None = None

    @property
    def everything(self) -> list[AssignedSegments]:
        return [*self.received, *self.link.received]

    @property
    def has(self) -> set[int]:
        last = max(self.everything, key=lambda one: one.generation)
        return {one.segment_id for one in last.segments}

    async def register(self, brokers: Brokers) -> None:
        """Registers at the leader with its last generation, like a client that reconnects."""
        self.received, self.link = self.everything, Link()
        generation = self.received[-1].generation if self.received else None
        wish = Registration("s", SubscriptionKind.STREAM, self.name, Start.EARLIEST, (), generation)
        owner = brokers.placing.owner
        assert owner is not None
        assigned, self.registration = await brokers.controllers[owner].register(TOPIC, wish, self.link)
        self.received.append(assigned)


class Story:
    """Segment 0 was split into 1 and 2, and everything is read."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.readers = [Reader(name) for name in CONSUMERS]
        self.moments: list[str] = []

    async def begin(self) -> None:
        leader = self.brokers.controllers["a"]
        await leader.create(TOPIC, 1, {})
        # the second reader is a reason to split the topic, and the story splits it itself
        await leader.set_auto_scale_policy(TOPIC, {"enabled": False})
        for reader in self.readers:
            await reader.register(self.brokers)
        self.publish(0)
        await leader.split(TOPIC, 0)
        self.publish(1, 2)
        self.read(0)
        await self.brokers.until(lambda: self.given == [1, 2])
        self.read(1, 2)

    @property
    def given(self) -> list[int]:
        return sorted(one for reader in self.readers for one in reader.has)

    def stored(self, segment_id: int) -> StoredSegment:
        record = self.brokers.record()
        assert record is not None
        return self.brokers.shelf.segments[backing_topic(TOPIC, record.segments[segment_id])]

    def publish(self, *segment_ids: int) -> None:
        for one in segment_ids:
            name = self.stored(one).ref.name
            for number in range(MESSAGES):
                self.brokers.shelf.publish(name, f"p{one}", number, b"x", self.brokers.clock.now_ms())

    def read(self, *segment_ids: int) -> None:
        for one in segment_ids:
            name = self.stored(one).ref.name
            for position, _ in self.brokers.shelf.unread(name, "s"):
                self.brokers.shelf.acknowledge(name, "s", position)

    def check(self, moment: str) -> None:
        """No child is admitted until the parent is read again."""
        self.moments.append(moment)
        for child in (1, 2):
            cursor = self.stored(child).cursors["s"]
            if cursor.next == MESSAGES:
                continue  # not sought yet: a reader gets the old tail
            for reader in self.readers:
                for received in reader.everything:
                    if any(one.segment_id == child for one in received.segments):
                        admitted = cursor.fence.admits(reader.name, child, received.generation)
                        assert not admitted, f"{moment}: {reader.name} is let in to {child} before its parent is read"


async def told_moments() -> list[str]:
    """Writes and requests of an undisturbed seek."""
    async with Brokers("a", "b") as brokers:
        story = Story(brokers)
        await story.begin()
        brokers.faults.before = story.check
        await brokers.controllers["a"].move(TOPIC, "s", 0)
        await brokers.until(lambda: story.given == [0])
        brokers.faults.before = None
        return story.moments


async def finish(story: Story) -> None:
    """The parent first, and then its children: each once."""
    brokers = story.brokers
    await brokers.until(lambda: story.given == [0])
    story.check("parent given")
    brokers.faults.before = None
    assert [len(brokers.shelf.unread(story.stored(one).ref.name, "s")) for one in (0, 1, 2)] == [MESSAGES] * 3
    story.read(0)
    await brokers.until(lambda: story.given == [1, 2])
    for reader in story.readers:
        (mine,) = reader.has
        last = max(reader.everything, key=lambda one: one.generation)
        assert story.stored(mine).cursors["s"].fence.admits(reader.name, mine, last.generation)
    assert [len(brokers.shelf.unread(story.stored(one).ref.name, "s")) for one in (1, 2)] == [MESSAGES] * 2


def test_seek_revokes_then_moves_then_assigns() -> None:
    moments = run_simulated(told_moments())
    seeks = [n for n, moment in enumerate(moments) if moment.startswith("Seek")]
    groups = [n for n, moment in enumerate(moments) if "/groups/" in moment]
    assert len(seeks) == 3
    assert groups[0] < seeks[0], "taken back, durably"
    assert any(n > seeks[-1] for n in groups), "given out when all have moved"


@pytest.mark.parametrize("kind", ["killed", "deposed"])
def test_seek_survives_a_leader_change_at_every_step(kind: str) -> None:
    steps = len(run_simulated(told_moments()))
    assert steps >= 7
    for number in range(steps):
        run_simulated(taken_over(number, kind))


async def taken_over(number: int, kind: str) -> None:
    async with Brokers("a", "b") as brokers:
        story = Story(brokers)
        await story.begin()
        turning = asyncio.Event()

        def before(moment: str) -> None:
            story.check(moment)
            if len(story.moments) == number + 1:
                turning.set()

        async def insist() -> None:
            while True:
                owner = brokers.placing.owner
                try:
                    if owner is not None:
                        await brokers.controllers[owner].move(TOPIC, "s", 0)
                        return
                except Error as error:
                    assert error.retryable, error
                await brokers.clock.sleep(0.05)

        brokers.faults.before = before
        asked = asyncio.ensure_future(insist())
        await asyncio.wait_for(turning.wait(), 60)
        if kind == "killed":
            await brokers.kill("a")
            asked.cancel()  # the caller gets no answer any more
        brokers.lead("b")
        await brokers.controllers["b"].activate(TOPIC)
        for reader in story.readers:
            await reader.register(brokers)
        if number == 0 and kind == "killed":
            asked = asyncio.ensure_future(insist())  # nothing was begun: it is asked for again
        await finish(story)
        await asyncio.gather(asked, return_exceptions=kind == "killed")
