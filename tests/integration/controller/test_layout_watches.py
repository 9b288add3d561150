"""Layout watches with late reads: no watcher gets an older layout after a newer one, and none is forgotten.

The real `LayoutWatches` on a memory store whose reads can be held back, so that a read is older than the records pushed
meanwhile. Time is simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace

import pytest

from anabranch.controller.events import TopicGone
from anabranch.controller.interface import LayoutView, TopicExists
from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.record_store import RecordStore
from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.records.topic_record import TopicRecord, planned
from anabranch.controller.records.topic_record_codec import encode_record
from anabranch.controller.regular_topics import RegularTopic, regular_name
from anabranch.controller.topic.leader_terms import LeaderTerms
from anabranch.metadata.interface import ANY, Versioned
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.errors import Error
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.model.replacement import plan_split
from tests.support.in_memory.controllers import TOPIC, Placing
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated
from tests.support.models.layout_histories import split


class LateStore(MemoryStore):
    """A read takes the value at its start and answers when the test allows it."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answers: list[Versioned | None] | None = None  # instead of what is there: a replica that lags behind
        self.reads = 0

    async def get(self, key: str) -> Versioned | None:
        found = await super().get(key)
        if key == scalable_topic_key(TOPIC):
            self.reads += 1
            if self.answers:
                found = self.answers.pop(0)
            await self.may_answer.wait()
        return found


class RecordingListener:
    """Records the layouts of a watch, in order; ("gone", code) at its end."""

    def __init__(self) -> None:
        self.news: list[tuple[object, ...]] = []
        self.plans: list[str] = []  # the running operation that each layout came with

    def layout_changed(self, view: LayoutView) -> None:
        self.plans.append(view.operation_id)
        self.news.append((view.incarnation, view.layout.epoch))

    def layout_failed(self, error: Error) -> None:
        self.news.append(("gone", error.code))


@dataclass
class Nursery:
    """Creates topics as the test defines."""

    create: Callable[[], None] = lambda: None
    woken: list[TopicName] = field(default_factory=list)
    partitions: int = 0  # of a regular topic of that name; 0: there is none
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def create_by_use(self, topic: TopicName) -> None:
        self.create()

    async def activate(self, topic: TopicName) -> None:
        self.woken.append(topic)

    async def regular(self, topic: TopicName, *, create: bool = False) -> RegularTopic | None:
        if not self.partitions:
            return None
        found = RegularTopic(regular_name(topic), self.partitions)
        await self.may_answer.wait()
        return found


class World:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = LateStore(self.clock)
        self.nursery = Nursery()
        placing = Placing()
        placing.owner = "a"
        records = RecordStore(self.store, LeaderTerms(self.store, "a"), RecordCache())
        self.watches = LayoutWatches(self.store, records, placing.at("a"), self.nursery, self.clock)

    async def __aenter__(self) -> World:
        await self.store.open()
        await self.watches.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.watches.__aexit__(None, None, None)
        await self.store.close()

    async def save(self, record: TopicRecord) -> None:
        await self.store.put(scalable_topic_key(TOPIC), encode_record(record), expected=ANY)

    async def remove(self) -> None:
        await self.store.delete(scalable_topic_key(TOPIC), expected=ANY)

    def watch(self, *, create: bool = False) -> RecordingListener:
        listener = RecordingListener()
        self.watches.watch(TOPIC, listener, create=create)
        return listener

    async def read_begun(self) -> None:
        """A watcher's read has seen what is there, and its answer is held back."""
        reads = self.store.reads
        async with asyncio.timeout(10):
            while self.store.reads == reads:
                await self.clock.sleep(0.001)

    async def settle(self) -> None:
        """Waits until all pending work is done."""
        self.store.may_answer.set()
        await asyncio.sleep(5)


def simulated(story: Callable[[World], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Makes a test of an async function, with its own World and simulated time."""

    async def listener() -> None:
        async with World() as world:
            await story(world)

    def test() -> None:
        run_simulated(listener())

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


def record(epoch: int, incarnation: int = 1) -> TopicRecord:
    """Of a topic that was split so often."""
    layout = Layout.initial(1, now_ms=0)
    for _ in range(epoch):
        layout = split(layout, layout.active[0].segment_id)
    return TopicRecord(layout, incarnation=incarnation, leader_term=1)


def versioned(found: TopicRecord) -> Versioned:
    return Versioned(encode_record(found), 1, 0, 0, ephemeral=False)


@simulated
async def test_late_read_does_not_replace_a_pushed_record(world: World) -> None:
    await world.save(record(0))
    world.store.may_answer.clear()
    listener = world.watch()
    await world.read_begun()  # it has seen epoch 0
    await world.save(record(2))
    world.watches.on_record(TOPIC, record(1))
    world.watches.on_record(TOPIC, record(2))
    await world.settle()
    assert listener.news == [(1, 1), (1, 2)]


@simulated
async def test_late_read_does_not_hide_a_pushed_plan(world: World) -> None:
    """Both records have the same epoch, and the plan must not be lost."""
    await world.save(record(0))
    listener = world.watch()
    await world.settle()
    world.store.may_answer.clear()
    world.watches.look_again()
    await world.read_begun()
    plan = plan_split(record(0).layout, 0, now_ms=1, limits=NO_LIMITS)
    running = planned(record(0), "op", plan, now_ms=1)
    await world.save(running)
    world.watches.on_record(TOPIC, running)
    assert listener.plans == ["", "op"]
    await world.settle()
    assert listener.plans == ["", "op"]


@simulated
async def test_read_older_than_the_last_one_is_ignored(world: World) -> None:
    """The second read returns an older record: it is not sent, and the next change is."""
    await world.save(record(3))
    listener = world.watch()
    await world.settle()
    assert listener.news == [(1, 3)]
    world.store.answers = [versioned(record(1)), versioned(record(2))]
    for _ in "12":
        reads = world.store.reads
        world.watches.look_again()
        await world.settle()
        assert world.store.reads > reads
    assert listener.news == [(1, 3)]
    await world.save(record(4))
    await world.settle()
    assert listener.news == [(1, 3), (1, 4)]


@simulated
async def test_burst_of_changes_during_a_read_is_one_push(world: World) -> None:
    await world.save(record(0))
    world.store.may_answer.clear()
    listener = world.watch()
    await world.read_begun()
    for epoch in range(1, 6):
        await world.save(record(epoch))
    await world.settle()
    assert listener.news == [(1, 0), (1, 5)]


@simulated
async def test_late_watcher_gets_the_newest_known_layout(world: World) -> None:
    await world.save(record(0))
    first = world.watch()
    await world.settle()
    world.store.may_answer.clear()
    second = world.watch()
    await world.read_begun()  # for the second one: epoch 0
    await world.save(record(1))
    world.watches.on_record(TOPIC, record(1))
    await world.settle()
    assert first.news == [(1, 0), (1, 1)]
    assert second.news == [(1, 1)]


@pytest.mark.parametrize("create", [True, False])
def test_topic_created_during_the_first_read(create: bool) -> None:
    """With `create` the watcher gets the topic that was created concurrently; without, it fails as the read said."""

    async def story() -> None:
        async with World() as world:

            def taken() -> None:
                raise TopicExists(f"{TOPIC} exists")

            world.nursery.create = taken
            world.store.may_answer.clear()
            listener = world.watch(create=create)
            await world.read_begun()  # nothing is there
            await world.save(record(0))
            await world.settle()
            assert listener.news == ([(1, 0)] if create else [("gone", TopicGone.code)])
            again = world.watch()
            await world.settle()
            assert again.news == [(1, 0)]

    run_simulated(story())


@simulated
async def test_topic_deleted_during_the_first_read(world: World) -> None:
    await world.save(record(2))
    world.store.may_answer.clear()
    listener = world.watch()
    await world.read_begun()
    await world.remove()
    await world.settle()
    assert listener.news == [(1, 2), ("gone", TopicGone.code)]
    assert len(world.watches) == 0, "no watcher is left waiting"


@simulated
async def test_topic_recreated_during_the_first_read(world: World) -> None:
    """The next incarnation has a lower epoch and is sent all the same."""
    await world.save(record(2))
    world.store.may_answer.clear()
    listener = world.watch()
    await world.read_begun()
    await world.remove()
    await world.save(record(0, incarnation=2))
    await world.settle()
    assert listener.news == [(1, 2), (2, 0)]
    await world.save(record(1, incarnation=2))
    await world.settle()
    assert listener.news[-1] == (2, 1)


@simulated
async def test_topic_being_deleted_fails_the_watch(world: World) -> None:
    await world.save(replace(record(1), is_deleting=True))
    listener = world.watch()
    await world.settle()
    assert listener.news == [("gone", TopicGone.code)]
    await world.remove()
    await world.save(record(0, incarnation=2))
    again = world.watch()
    await world.settle()
    assert again.news == [(2, 0)]


@simulated
async def test_watcher_that_leaves_during_a_read_gets_nothing(world: World) -> None:
    await world.save(record(0))
    world.store.may_answer.clear()
    listener = RecordingListener()
    watcher = world.watches.watch(TOPIC, listener, create=False)
    await world.read_begun()
    watcher.close()
    await world.settle()
    assert listener.news == []
    assert len(world.watches) == 0
    assert not world.watches._topics


@simulated
async def test_layout_of_the_regular_topic_does_not_follow_that_of_its_migration(world: World) -> None:
    """The partitions are examined for their hash while the controller commits the migration."""
    world.nursery.partitions = 3
    world.nursery.may_answer.set()
    listener = world.watch()
    await asyncio.sleep(1)
    assert listener.news == [(0, 0)]
    world.nursery.may_answer.clear()
    world.nursery.partitions = 4
    world.watches.look_again()
    await asyncio.sleep(0.5)
    await world.save(record(1))
    world.watches.on_record(TOPIC, record(1))
    world.nursery.may_answer.set()
    await world.settle()
    assert listener.news == [(0, 0), (1, 1)]


@simulated
async def test_hash_is_looked_for_again_with_growing_delays_while_there_are_watchers(world: World) -> None:
    world.nursery.partitions = 3
    world.nursery.may_answer.set()
    listener = RecordingListener()
    reads, watch = world.store.reads, world.watches.watch(TOPIC, listener, create=False)
    await asyncio.sleep(61)
    assert (world.store.reads - reads, listener.news) == (5, [(0, 0)]), "at 0, 2, 6, 14 and 30 seconds"
    watch.close()
    reads = world.store.reads
    await asyncio.sleep(3600)
    assert world.store.reads == reads
