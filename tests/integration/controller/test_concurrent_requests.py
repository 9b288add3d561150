"""Two concurrent calls on one topic end as if one ran after the other. Each write and request of the first call is held
in turn until the second call is done or waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count, pairwise

import pytest

from anabranch.controller.events import TopicGone
from anabranch.controller.interface import Start, SubscriptionKind
from anabranch.controller.records.keys import pending_key, registry_key, term_key
from anabranch.controller.records.subscription_registry import Registry, SubscriptionState
from anabranch.controller.records.topic_record import Outcome, TopicRecord
from anabranch.controller.service import ScalableTopicService
from anabranch.controller.topic.topic_controller import REQUESTS_TOGETHER
from anabranch.model.errors import Error
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.position import Position
from anabranch.model.segment import SegmentNotActive, backing_topic
from tests.support.in_memory.controllers import TOPIC, Brokers
from tests.support.in_memory.simulated_loop import run_simulated

EARLIEST, LATEST = Start.EARLIEST, Start.LATEST
STREAM, QUEUE = SubscriptionKind.STREAM, SubscriptionKind.QUEUE
HELD_SECONDS = 2.0  # longer than anything here takes, shorter than any deadline of the controller's

KEYS = 8

Work = Callable[[ScalableTopicService], Awaitable[object]]


def key_of(number: int) -> int:
    """Messages go round the keys, which are spread over the ring."""
    return number % KEYS


class Topic:
    """A topic with a past: segment 0 was split into 1 and 2, and a subscription "old" has read none of it."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers, self.shelf = brokers, brokers.shelf
        self.leader = brokers.controllers["a"]
        self.sent: list[int] = []

    async def begin(self) -> None:
        await self.leader.create(TOPIC, 1, {})
        await self.leader.subscribe(TOPIC, "old", STREAM, EARLIEST)
        self.publish(8)
        await self.leader.split(TOPIC, 0)
        self.publish(8)

    # messages ---------------------------------------------------------------------------------------------------------
    def publish(self, messages: int) -> None:
        """Round the ring, each to the oldest segment that takes it, as a producer does that follows seals."""
        for _ in range(messages):
            number = len(self.sent)
            at = key_of(number) * (0x10000 // KEYS) + 5
            for stored in sorted(self.shelf.segments.values(), key=lambda one: one.ref.segment_id):
                low, high = (int(part, 16) for part in stored.ref.name.local.rsplit("/", 1)[-1].split("-")[:2])
                if stored.sealed is None and low <= at <= high:
                    self.shelf.publish(stored.ref.name, "p", number, b"x", self.brokers.clock.now_ms())
                    break
            else:
                raise AssertionError(f"no segment accepts {at:04x}")
            self.sent.append(number)

    def unread(self, subscription: str) -> list[int]:
        """In all segments of the layout."""
        names = [backing_topic(TOPIC, one) for one in self.record.segments.values()]
        return sorted(entry.sequence_id for name in names for _, entry in self.shelf.unread(name, subscription))

    def read(self, subscription: str, segment_id: int) -> None:
        name = backing_topic(TOPIC, self.record.segments[segment_id])
        for position, _ in self.shelf.unread(name, subscription):
            self.shelf.acknowledge(name, subscription, position)

    # what is stored ---------------------------------------------------------------------------------------------------
    @property
    def record(self) -> TopicRecord:
        found = self.brokers.record()
        assert found is not None
        return found

    @property
    def registry(self) -> Registry:
        found = self.brokers.bare.data.get(registry_key(TOPIC))
        return Registry() if found is None else Registry.decode(found.value)

    async def calm(self) -> None:
        """Waits until no work is unfinished, then checks consistency."""

        def is_calm() -> bool:
            ready = all(
                one.state is SubscriptionState.READY and one.move is None
                for one in self.registry.subscriptions.values()
            )
            return self.record.operation is None and not self.record.garbage and ready

        await self.brokers.until(is_calm)
        record = self.record
        spans = sorted((one.hash_range.start, one.hash_range.end) for one in record.layout.active)
        assert (spans[0][0], spans[-1][1]) == (0, 0xFFFF)
        assert all(before[1] + 1 == after[0] for before, after in pairwise(spans))
        names = {backing_topic(TOPIC, one): one for one in record.segments.values()}
        assert set(self.shelf.segments) == set(names), "orphans, or segments that are not there"
        for name, segment in names.items():
            stored = self.shelf.segments[name]
            assert (stored.sealed is None) == segment.is_active, f"segment {segment.segment_id}"
            assert set(stored.cursors) == self.registry.cursors, f"cursors of segment {segment.segment_id}"


class Meeting:
    """`first` begins; the second call starts before step number `index` of `first`, and that step waits for it."""

    def __init__(self, topic: Topic, index: int, published: int) -> None:
        """`published`: so many messages at every step of both."""
        self.topic, self.index, self.published = topic, index, published
        self.steps: list[str] = []
        self.results: list[object] = []

    async def hold(self, first: Work, second: Work) -> bool:
        """False: the first one has no such step. Results, errors included, are in `results`."""
        asked: asyncio.Future[object] | None = None
        faults = self.topic.brokers.faults

        async def held(step: str) -> None:
            nonlocal asked
            self.steps.append(step)
            self.topic.publish(self.published)
            if len(self.steps) == self.index + 1 and asked is None:
                asked = asyncio.ensure_future(second(self.topic.leader))
                await asyncio.wait([asked], timeout=HELD_SECONDS)

        faults.hold = held
        begun = asyncio.ensure_future(first(self.topic.leader))
        outcome = await asyncio.gather(begun, return_exceptions=True)
        faults.hold = None
        if asked is None:
            return False
        self.results = [*outcome, *await asyncio.gather(asked, return_exceptions=True)]
        return True


def at_every_step(
    first: Work,
    second: Work,
    check: Callable[[Topic, list[object]], Awaitable[None]],
    *,
    steps_min: int,
    prepare: Callable[[Topic], Awaitable[None]] | None = None,
    retention_minutes: int = 60,
    published: int = 0,
) -> None:
    """One run per step of the first call."""

    async def story(index: int) -> bool:
        async with Brokers(
            "a", seed=index, retention_minutes=retention_minutes, sweep_seconds=3_600.0, idle_seconds=3_600.0
        ) as brokers:
            topic = Topic(brokers)
            await topic.begin()
            if prepare is not None:
                await prepare(topic)
            meeting = Meeting(topic, index, published)
            if not await meeting.hold(first, second):
                return False
            try:
                await check(topic, meeting.results)
            except AssertionError as error:
                raise AssertionError(f"held before step {index} of {meeting.steps}: {error}") from error
            return True

    steps = next(index for index in count() if not run_simulated(story(index)))
    assert steps >= steps_min, f"only {steps} steps"


def split(segment_id: int, operation_id: str = "split") -> Work:
    return lambda leader: leader.split(TOPIC, segment_id, operation_id=operation_id)


def merge(leader: ScalableTopicService) -> Awaitable[object]:
    return leader.merge(TOPIC, (1, 2), operation_id="merge")


def subscribe(start: Start, kind: SubscriptionKind = STREAM) -> Work:
    return lambda leader: leader.subscribe(TOPIC, "new", kind, start)


def delete(leader: ScalableTopicService) -> Awaitable[object]:
    return leader.delete(TOPIC)


def sweep(leader: ScalableTopicService) -> Awaitable[object]:
    return leader.controllers.sweep()


def both_orders(one: Work, other: Work) -> list[tuple[Work, Work]]:
    return [(one, other), (other, one)]


def in_order(one: Work, other: Work, is_one_first: bool) -> tuple[Work, Work]:
    return (one, other) if is_one_first else (other, one)


# -- operations


async def two_splits(topic: Topic, results: list[object]) -> None:
    assert sorted(map(str, results)) == ["2", "3"]
    await topic.calm()
    assert sorted(one.segment_id for one in topic.record.layout.active) == [3, 4, 5, 6]
    assert topic.unread("old") == topic.sent


def test_two_splits() -> None:
    at_every_step(split(1, "one"), split(2, "two"), two_splits, steps_min=5)


async def one_of_two(topic: Topic, results: list[object]) -> None:
    """Both need segment 1: one gets it, the other fails because the segment is no longer active."""
    refused = [one for one in results if isinstance(one, SegmentNotActive)]
    assert len(refused) == 1, results
    await topic.calm()
    assert topic.record.epoch == 2
    assert topic.unread("old") == topic.sent


@pytest.mark.parametrize(("first", "second"), both_orders(split(1), merge), ids=["split first", "merge first"])
def test_a_split_and_a_merge_of_one_segment(first: Work, second: Work) -> None:
    at_every_step(first, second, one_of_two, steps_min=5)


def test_repeated_split_call_runs_once() -> None:
    async def once(topic: Topic, results: list[object]) -> None:
        assert results == [2, 2]
        await topic.calm()
        assert topic.record.epoch == 2

    at_every_step(split(1), split(1), once, steps_min=5)


# -- subscriptions


@pytest.mark.parametrize("kind", [STREAM, QUEUE])
@pytest.mark.parametrize("is_split_first", [True, False])
def test_a_split_and_a_new_subscription(kind: SubscriptionKind, is_split_first: bool) -> None:
    async def everything(topic: Topic, results: list[object]) -> None:
        assert results == ([2, None] if is_split_first else [None, 2])
        topic.publish(8)
        await topic.calm()
        assert topic.unread("new") == topic.unread("old") == topic.sent

    pair = split(1), subscribe(EARLIEST, kind)
    at_every_step(*in_order(*pair, is_split_first), everything, steps_min=4)


@pytest.mark.parametrize("is_split_first", [True, False])
def test_subscription_at_latest_during_a_split(is_split_first: bool) -> None:
    """The subscription gets all messages published after its confirmation and none from before the call."""
    before, confirmed = 0, 0

    async def subscribed(leader: ScalableTopicService) -> None:
        nonlocal confirmed
        await leader.subscribe(TOPIC, "new", STREAM, LATEST)
        confirmed = len(topics[-1].sent)
        topics[-1].publish(4)  # at once: the split may still be running

    topics: list[Topic] = []

    async def prepare(topic: Topic) -> None:
        nonlocal before
        topics.append(topic)
        before = len(topic.sent)

    async def what_came_later(topic: Topic, results: list[object]) -> None:
        topic.publish(8)
        await topic.calm()
        found = topic.unread("new")
        assert set(found) >= set(topic.sent[confirmed:])
        assert set(found) <= set(topic.sent[before:])
        for key in range(KEYS):  # from some message on all of them: no holes
            mine = [number for number in topic.sent if key_of(number) == key]
            kept = [number for number in found if key_of(number) == key]
            assert kept == mine[len(mine) - len(kept) :], f"key {key}"

    pair: tuple[Work, Work] = split(1), subscribed
    at_every_step(*in_order(*pair, is_split_first), what_came_later, steps_min=4, prepare=prepare, published=KEYS)


@pytest.mark.parametrize("is_split_first", [True, False])
def test_a_split_and_a_seek(is_split_first: bool) -> None:
    """A seek to the beginning makes all messages unread, also sealed ones; a seek forward skips the earlier ones."""

    async def half_read(topic: Topic) -> None:
        topic.read("old", 0)
        topic.read("old", 1)

    async def rewound(topic: Topic, results: list[object]) -> None:
        epoch, generation = results if is_split_first else reversed(results)
        assert epoch == 2 and isinstance(generation, int) and generation > 0, "the group was halted"
        topic.publish(4)
        await topic.calm()
        assert topic.unread("old") == topic.sent

    pair: tuple[Work, Work] = split(1), lambda leader: leader.move(TOPIC, "old", 0)
    at_every_step(*in_order(*pair, is_split_first), rewound, steps_min=4, prepare=half_read)

    async def cleared(topic: Topic, results: list[object]) -> None:
        assert results == ([2, 0] if is_split_first else [0, 2]), "clearing the backlog halts no group"
        asked = len(topic.sent)
        topic.publish(4)
        await topic.calm()
        assert topic.unread("old") == topic.sent[asked:]

    pair = split(1), lambda leader: leader.move(TOPIC, "old", None)
    at_every_step(*in_order(*pair, is_split_first), cleared, steps_min=4)


# -- the end of a topic


async def gone(topic: Topic, results: list[object]) -> None:
    """The topic is deleted completely, whatever the other call did, and the name can be used again at once."""
    brokers = topic.brokers
    assert None in results, results
    assert all(one in (None, 2) or isinstance(one, TopicGone) for one in results), results
    assert brokers.record() is None
    assert brokers.shelf.segments == {}
    for key in (scalable_topic_key(TOPIC), registry_key(TOPIC), term_key(TOPIC), pending_key(TOPIC)):
        assert brokers.bare.data.get(key) is None, key
    await topic.leader.create(TOPIC, 1, {})
    assert topic.record.epoch == 0
    assert topic.registry.subscriptions == {}
    await topic.leader.subscribe(TOPIC, "old", STREAM, EARLIEST)
    await topic.calm()


@pytest.mark.parametrize(("first", "second"), both_orders(split(1), delete), ids=["split first", "delete first"])
def test_a_split_and_a_deletion(first: Work, second: Work) -> None:
    at_every_step(first, second, gone, steps_min=3)


@pytest.mark.parametrize(
    ("first", "second"), both_orders(subscribe(EARLIEST), delete), ids=["subscribe first", "delete first"]
)
def test_a_subscription_and_a_deletion(first: Work, second: Work) -> None:
    at_every_step(first, second, gone, steps_min=3)


# -- collection


@pytest.mark.parametrize("is_split_first", [True, False])
def test_a_split_and_a_collection(is_split_first: bool) -> None:
    """Segment 0 is read and past retention, 1 will be sealed unread: the first is deleted, the second is kept."""

    async def ready(topic: Topic) -> None:
        topic.read("old", 0)

    async def collected(topic: Topic, results: list[object]) -> None:
        assert not [one for one in results if isinstance(one, BaseException)], results
        unread = topic.unread("old")
        topic.publish(4)
        await topic.leader.controllers.sweep()  # if the first was in the middle of the split
        await topic.calm()
        assert sorted(topic.record.segments) == [1, 2, 3, 4]
        assert topic.unread("old") == [*unread, *topic.sent[-4:]]

    pair: tuple[Work, Work] = split(1), sweep
    at_every_step(*in_order(*pair, is_split_first), collected, steps_min=3, prepare=ready, retention_minutes=0)


@pytest.mark.parametrize("is_subscribed_first", [True, False])
def test_prune_during_the_creation_of_a_subscription(is_subscribed_first: bool) -> None:
    """Segments of the layout at the subscription's confirmation are kept unread, or were pruned before it."""
    confirmed: dict[int, int] = {}  # segments of the layout, with what was in them

    async def ready(topic: Topic) -> None:
        topics.append(topic)
        topic.read("old", 0)

    async def subscribed(leader: ScalableTopicService) -> None:
        await leader.subscribe(TOPIC, "new", STREAM, EARLIEST)
        confirmed.clear()
        for one, segment in topics[-1].record.segments.items():
            confirmed[one] = len(topics[-1].shelf.segments[backing_topic(TOPIC, segment)].entries)

    async def nothing_taken(topic: Topic, results: list[object]) -> None:
        assert not [one for one in results if isinstance(one, BaseException)], results
        await topic.calm()
        assert set(confirmed) == set(topic.record.segments), "pruned although a subscription needs it"
        assert len(topic.unread("new")) == sum(confirmed.values())

    topics: list[Topic] = []
    pair: tuple[Work, Work] = subscribed, sweep
    at_every_step(*in_order(*pair, is_subscribed_first), nothing_taken, steps_min=3, prepare=ready, retention_minutes=0)


def test_subscription_created_during_the_gc_decision_keeps_segments() -> None:
    """A subscription that is registered before the pruned layout is written prevents the prune."""

    async def story() -> None:
        async with Brokers("a", retention_minutes=0, sweep_seconds=3_600.0, idle_seconds=3_600.0) as brokers:
            topic = Topic(brokers)
            await topic.begin()
            topic.read("old", 0)
            pruning = asyncio.Event()
            tasks: list[asyncio.Future[None]] = []

            async def held(step: str) -> None:
                if step.endswith("/registry") and len(tasks) == 1:
                    tasks.append(asyncio.ensure_future(topic.leader.controllers.sweep()))
                    reached = asyncio.ensure_future(pruning.wait())
                    await asyncio.wait([reached], timeout=HELD_SECONDS)
                    reached.cancel()
                elif step == f"put {scalable_topic_key(TOPIC)}":
                    pruning.set()
                    await asyncio.wait([tasks[0]], timeout=HELD_SECONDS)

            brokers.faults.hold = held
            tasks.append(asyncio.ensure_future(topic.leader.subscribe(TOPIC, "new", STREAM, EARLIEST)))
            await tasks[0]
            had = sorted(topic.record.segments)
            await asyncio.gather(*tasks)
            brokers.faults.hold = None
            await topic.calm()
            assert sorted(topic.record.segments) == had, "pruned although a subscription needs it"
            assert topic.unread("new") == topic.sent

    run_simulated(story())


# -- many


def test_wide_split_limits_concurrent_requests() -> None:
    """The owner slows down with concurrent requests; 300 at once would time out."""
    busy, most = 0, 0

    async def story() -> None:
        async with Brokers("a", max_segments=1_000, seal_seconds=2.0) as brokers:
            leader = brokers.controllers["a"]
            await leader.create(TOPIC, 1, {})

            async def slow(step: str) -> None:
                nonlocal busy, most
                if step.startswith("Create"):
                    busy += 1
                    most = max(most, busy)
                    await asyncio.sleep(0.02 * busy)  # an owner that has its hands full
                    busy -= 1

            brokers.faults.hold = slow
            assert await leader.split(TOPIC, 0, ways=300) == 1

    run_simulated(story())
    assert most == REQUESTS_TOGETHER


# -- doubt


@pytest.mark.parametrize("fate", ["unanswered", "refused", "slow"])
def test_split_survives_every_lost_answer(fate: str) -> None:
    """Each step fails once: "unanswered" is applied and times out, "refused" is not applied."""

    async def story(index: int) -> bool:
        async with Brokers("a", seed=index) as brokers:
            topic = Topic(brokers)
            await topic.begin()
            steps: list[str] = []

            def strike(step: str) -> str:
                steps.append(step)
                return fate if len(steps) == index + 1 else ""

            brokers.faults.fate = strike
            assert await topic.leader.split(TOPIC, 1, operation_id="op") == 2
            brokers.faults.fate = None
            struck = len(steps) > index
            await topic.calm()
            assert topic.record.outcome("op") is Outcome.COMMITTED
            assert topic.record.epoch == 2
            assert topic.record.layout.next_segment_id == 5, "children were planned twice"
            assert topic.unread("old") == topic.sent
            return struck

    struck = next(index for index in count() if not run_simulated(story(index)))
    assert struck >= 5, f"only {struck} steps"


def test_checks_detect_violations() -> None:
    """The checks find a lost message and an orphaned segment."""

    async def story() -> None:
        async with Brokers("a") as brokers:
            topic = Topic(brokers)
            await topic.begin()
            await topic.calm()
            assert topic.unread("old") == topic.sent
            first = topic.shelf.segments[backing_topic(TOPIC, topic.record.segments[1])]
            lost = first.entries.pop()
            assert lost.sequence_id not in topic.unread("old")
            first.cursors["stranger"] = first.cursors.pop("old")
            with pytest.raises(AssertionError, match="cursors of segment 1"):
                await topic.calm()
            del topic.shelf.segments[first.ref.name]
            with pytest.raises(AssertionError, match="segments that are not there"):
                await topic.calm()

    run_simulated(story())


def test_positions_start_at_zero() -> None:
    """`read` acknowledges by position: one entry each."""

    async def story() -> None:
        async with Brokers("a") as brokers:
            topic = Topic(brokers)
            await topic.begin()
            topic.read("old", 0)
            name = backing_topic(TOPIC, topic.record.segments[0])
            assert topic.shelf.unread(name, "old") == []
            assert topic.shelf.segments[name].position(0) == Position(0, 0)
            assert topic.unread("old") == topic.sent[8:]
            with pytest.raises(Error):
                topic.shelf.unread(name, "missing")

    run_simulated(story())
