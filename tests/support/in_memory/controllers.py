"""The controllers of several brokers on one memory store, without brokers: real shells, simulated time, faults.

Segments are on one `Shelf`; the test decides which broker leads. Store and host can refuse, lose answers or be slow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.controller.events import TopicGone
from anabranch.controller.interface import AssignedSegments
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.records.topic_record_codec import decode_record
from anabranch.controller.regular_topics import RegularTopic
from anabranch.controller.segment_host import (
    Answer,
    FencingToken,
    HostCapabilities,
    HostEvent,
    HostOutcomeUnknown,
    HostUnavailable,
    Request,
    SegmentRef,
    SegmentStats,
)
from anabranch.controller.service import ScalableTopicService
from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.metadata.interface import Expected, OutcomeUnknown, Session, Version
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.write_gate import GatedStore, WriteGate
from anabranch.model.errors import Error
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from tests.support.in_memory.simulated_loop import LoopClock
from tests.support.models.memory_segment_host import MemoryHost, Shelf

TOPIC = TopicName.parse("topic://public/default/orders")


@dataclass(slots=True)
class Faults:
    """Injected faults: random, or chosen by the test."""

    chance: random.Random
    trouble: float = 0.0
    before: Callable[[str], None] | None = None  # called before every write and request
    hold: Callable[[str], Awaitable[None]] | None = None  # the same; the write is made when this returns
    fate: Callable[[str], str] | None = None  # its outcome, instead of a random one

    async def strike(self, what: str) -> str:
        if self.before is not None:
            self.before(what)
        if self.hold is not None:
            await self.hold(what)
        await asyncio.sleep(self.chance.random() * 0.004)
        if self.fate is not None and (chosen := self.fate(what)):
            return chosen
        if self.chance.random() >= self.trouble:
            return ""
        return self.chance.choice(["refused", "unanswered", "slow"])


class FaultyStore(MemoryStore):
    """Writes can be refused or lose their answers; reads are not disturbed."""

    def __init__(self, clock: LoopClock, trouble: Faults) -> None:
        super().__init__(clock)
        self.trouble = trouble

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        fate = await self.trouble.strike(f"put {key}")
        if fate == "refused":
            raise OutcomeUnknown(f"{key}: not reached")
        if fate == "slow":
            await asyncio.sleep(0.2)
        version = await super().put(key, value, expected=expected, session=session)
        if fate == "unanswered":
            raise OutcomeUnknown(f"{key}: written, and not answered")
        return version


class FaultyHost:
    """The segment host of one broker, on the shelf."""

    def __init__(self, shelf: Shelf, clock: LoopClock, faults: Faults) -> None:
        self._inner, self._faults = MemoryHost(shelf, clock.now_ms), faults

    @property
    def capabilities(self) -> HostCapabilities:
        return self._inner.capabilities

    async def ask(self, token: FencingToken, request: Request) -> Answer:
        fate = await self._faults.strike(f"{type(request).__name__} {request.segment.segment_id}")
        if fate == "refused":
            raise HostUnavailable("not reached")
        if fate == "slow":
            await asyncio.sleep(0.2)
        answer = await self._inner.ask(token, request)
        if fate == "unanswered":
            raise HostOutcomeUnknown("done, and not answered")
        return answer

    async def measure(self, segments: Sequence[SegmentRef]) -> tuple[SegmentStats | None, ...]:
        return await self._inner.measure(segments)

    def listen(self, callback: Callable[[HostEvent], None]) -> Callable[[], None]:
        return self._inner.listen(callback)


@dataclass(frozen=True, slots=True)
class Url:
    service_url: str
    service_url_tls: str | None = None


class Placing:
    """One broker owns all names; the test changes it."""

    def __init__(self) -> None:
        self.owner: str | None = None
        self.ownership_epoch = 0
        self.owner_epochs: dict[TopicName, int] = {}  # of segments whose owners have changed

    def at(self, broker: str) -> PlaceOf:
        return PlaceOf(self, broker)


@dataclass(slots=True)
class PlaceOf:
    placing: Placing
    broker: str
    believes: bool = False  # it was frozen and still believes that it owns the names
    believed: int = 0

    def is_here(self, topic: TopicName) -> bool:
        return self.believes or self.placing.owner == self.broker

    def owner_address(self, topic: TopicName) -> Url | None:
        return None if self.placing.owner is None else Url(f"pulsar://{self.placing.owner}")

    def ownership_epoch(self, topic: TopicName) -> int | None:
        return self.believed if self.believes else self.placing.ownership_epoch

    def owner_epoch(self, topic: TopicName) -> int:
        return self.placing.owner_epochs.get(topic, 0)

    async def wait_placed(self, topic: TopicName) -> None:
        return


@dataclass(slots=True)
class NoRules:
    """A namespace without policies, or with the retention and auto-scale policy that the test sets."""

    said: tuple[int, int] | None = None
    policy: Mapping[str, Any] | None = None

    async def check_may_create(self, topic: TopicName) -> None:
        return

    async def check_name(self, topic: TopicName) -> None:
        return

    async def clear_name(self, topic: TopicName) -> None:
        return

    async def hold_partitions(self, topic: TopicName, partitions: int) -> bool:
        return True

    async def may_auto_create(self, namespace: str) -> bool:
        return True

    async def auto_scale_policy(self, namespace: str) -> Mapping[str, Any] | None:
        return self.policy

    async def may_auto_subscribe(self, topic: TopicName) -> bool:
        return True

    async def subscriptions_max(self, topic: TopicName) -> int:
        return 0

    async def retention(self, topic: TopicName) -> tuple[int, int] | None:
        return self.said


class NoActivation:
    """Topics are created by the test, not by their use."""

    async def create_by_use(self, topic: TopicName) -> None:
        raise TopicGone(f"{topic} does not exist")

    async def activate(self, topic: TopicName) -> None:
        return

    async def regular(self, topic: TopicName, *, create: bool = False) -> RegularTopic | None:
        return None


class Link:
    """A consumer's connection that records its assignments."""

    reports_releases = True

    def __init__(self) -> None:
        self.received: list[AssignedSegments] = []
        self.error: Error | None = None

    def assigned(self, assignment: AssignedSegments) -> None:
        self.received.append(assignment)

    def ended(self, error: Error) -> None:
        self.error = error


class Brokers:
    """`async with Brokers("a", "b") as brokers`: each with its controllers; the first one leads."""

    def __init__(self, *names: str, seed: int = 0, trouble: float = 0.0, **settings: Any) -> None:
        self.clock = LoopClock()
        self.faults = Faults(random.Random(seed), trouble)
        self.shelf = Shelf()
        self.placing = Placing()
        self.rules = NoRules()
        self.settings = ScalableTopicsSettings(**settings)
        self.bare = FaultyStore(self.clock, self.faults)
        self.gate = WriteGate()
        self.store = GatedStore(self.bare, self.gate)
        self.places: dict[str, PlaceOf] = {}
        self.controllers: dict[str, ScalableTopicService] = {}
        self._names = names
        self._lives = 0

    async def __aenter__(self) -> Brokers:
        await self.store.open()
        for name in self._names:
            await self.start(name)
        self.lead(self._names[0])
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self.controllers.values():
            await one.__aexit__(None, None, None)
        await self.store.close()

    async def start(self, name: str) -> ScalableTopicService:
        """Starts a broker, or its next incarnation."""
        self._lives += 1
        place = self.places[name] = self.placing.at(name)
        made = self.controllers[name] = ScalableTopicService(
            self.store,
            place,
            FaultyHost(self.shelf, self.clock, self.faults),
            self.rules,
            NoActivation(),
            broker=name,
            settings=self.settings,
            clock=self.clock,
            chance=random.Random(self._lives * 7919),
            gate=self.gate,
        )
        return await made.__aenter__()

    async def kill(self, name: str) -> None:
        """Its tasks end at once, without cleanup."""
        gone = self.controllers.pop(name)
        for tasks in (gone._tasks, gone.controllers._tasks, gone.watches._tasks):
            tasks.cancel()
        for leader in gone.controllers.by_topic.values():
            leader._tasks.cancel()
            leader.is_over = True
        if gone._unlisten is not None:
            gone._unlisten()
        if self.placing.owner == name:
            self.placing.owner = None

    def lead(self, name: str) -> ScalableTopicService:
        """This broker owns all names from now on."""
        before, self.placing.owner = self.placing.owner, name
        self.placing.ownership_epoch += before != name
        for other, controllers in self.controllers.items():
            if not self.places[other].believes:
                controllers.placement_changed(has_gained=other == name and before != name)
        return self.controllers[name]

    async def until(self, done: Callable[[], bool], seconds: float = 120.0) -> None:
        async with asyncio.timeout(seconds):
            while not done():
                await self.clock.sleep(0.01)

    def record(self) -> TopicRecord | None:
        """As it is in the store."""
        found = self.bare.data.get(scalable_topic_key(TOPIC))
        return None if found is None else decode_record(found.value)
