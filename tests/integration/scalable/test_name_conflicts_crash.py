"""A regular and a scalable topic of one name are made by brokers that die or hang before or after any of their writes;
others come back to what they left. Every such moment of the one against every such moment of the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import product

import pytest

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.controller.events import TopicGone
from anabranch.metadata.interface import ABSENT, Expected, Session, Version
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.write_gate import GatedStore
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.node.adapters.metadata_records import MetadataRecords
from anabranch.storage.ledger.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog
from tests.integration.scalable.test_name_conflicts import PARTITIONED, REGULAR, CatalogRules, outcome
from tests.support.in_memory.controllers import TOPIC, Brokers
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated
from tests.support.models.memory_ledger_store import MemoryLedgerStore

PLAIN = Catalog.topic_key(REGULAR)
KINDS = {"plain": PLAIN, "partitioned": PARTITIONED}
LOSING = 4  # moments of withdrawing what was made
Moments = frozenset[int | None]
REFUSED = {TopicNotFound.code, TopicGone.code, "taken"}


class Halting(GatedStore):
    """The store as one broker sees it: at some moments, each before or after one of its writes, it stands still."""

    def __init__(self, inner: MemoryStore, at: Moments) -> None:
        super().__init__(inner)
        self._at = at
        self.moments = 0
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _moment(self) -> None:
        self.moments += 1
        if self.moments - 1 in self._at:
            self.go_on.clear()
            self.reached.set()
            await self.go_on.wait()

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        await self._moment()
        version = await super().put(key, value, expected=expected, session=session)
        await self._moment()
        return version

    async def delete(self, key: str, *, expected: Expected) -> None:
        await self._moment()
        await super().delete(key, expected=expected)
        await self._moment()


class Regular:
    """A broker with regular topics."""

    def __init__(self, store: GatedStore, ledgers: MemoryLedgerStore) -> None:
        self.store, self.ledgers = store, ledgers
        self.catalog = Catalog(store, BrokerSettings())
        self.topics = TopicRegistry(
            self.catalog, self._open, settings=BrokerSettings(), clock=LoopClock(), check_writable=lambda: None
        )

    async def _open(self, name: TopicName) -> TopicLog:
        records = MetadataRecords(self.store)
        key = self.catalog.topic_key(name)
        return await TopicLog.open(
            key, ledgers=self.ledgers, metadata=records, ids=LedgerIds(records), clock=LoopClock()
        )

    async def make(self, kind: str) -> None:
        if kind == "plain":
            await self.topics.create(REGULAR)
        else:
            await self.catalog.create_partitioned(REGULAR, 2)

    async def use(self, kind: str) -> None:
        """As a client that does not make it."""
        if kind == "plain":
            await self.topics.get(REGULAR, create=False)
        else:
            await self.catalog.partitions_or_create(REGULAR, auto_create=False)

    async def die(self) -> None:
        await self.topics._tasks.close()


class Scene:
    """Both brokers, and those that come after them."""

    def __init__(self, kind: str, at: dict[str, Moments]) -> None:
        self.kind = kind
        self.brokers = Brokers("a")
        self.stores = {name: Halting(self.brokers.bare, at[name]) for name in ("regular", "scalable")}
        self.brokers.store = self.stores["scalable"]
        self.brokers.rules = CatalogRules(Catalog(self.stores["scalable"], BrokerSettings()))
        self.regular = Regular(self.stores["regular"], MemoryLedgerStore())
        self.tasks: dict[str, asyncio.Task[str]] = {}

    def work(self, name: str) -> Awaitable[object]:
        if name == "regular":
            return self.regular.make(self.kind)
        return self.brokers.controllers["a"].create(TOPIC, 1, {})

    async def start(self, name: str) -> bool:
        self.tasks[name] = asyncio.create_task(outcome(self.work(name)))
        return await self.stands(name)

    async def wake(self, name: str) -> bool:
        self.stores[name].reached.clear()
        self.stores[name].go_on.set()
        return await self.stands(name)

    async def stands(self, name: str) -> bool:
        """Until it stands still (True) or is done."""
        task = self.tasks[name]
        reached = asyncio.create_task(self.stores[name].reached.wait())
        await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        return not task.done()

    async def kill(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])
        if name == "regular":
            await self.regular.die()
        else:
            await self.brokers.kill("a")

    def answer(self, name: str) -> str:
        task = self.tasks[name]
        return task.result() if task.done() and not task.cancelled() else "nothing"

    async def recover(self, first: str) -> dict[str, str]:
        """Uses both names, in this order, twice; returns the answers of the second round."""
        self.brokers.store = GatedStore(self.brokers.bare)
        self.brokers.rules = CatalogRules(Catalog(self.brokers.store, BrokerSettings()))
        await self.brokers.start("b")
        self.brokers.lead("b")
        heir = Regular(self.brokers.store, self.regular.ledgers.crashed())
        uses: dict[str, Callable[[], Awaitable[object]]] = {
            "regular": lambda: heir.use(self.kind),
            "scalable": lambda: self.brokers.controllers["b"].activate(TOPIC),
        }
        answers: dict[str, str] = {}
        for name in sorted(uses, key=lambda name: name != first) * 2:
            answers[name] = await outcome(uses[name]())
        await heir.die()
        return answers

    def there(self) -> set[str]:
        keys = {"regular": KINDS[self.kind], "scalable": scalable_topic_key(TOPIC)}
        return {name for name, key in keys.items() if self.brokers.bare.data.get(key) is not None}


Plan = tuple[str, int | None, int | None, int | None, str]
"""Who begins; when it stands still, while the other one works; when it dies; when the other dies; who is used first"""


def play(kind: str, plan: Plan) -> tuple[frozenset[str], dict[str, int]]:
    begins, stands, ends, dies, used_first = plan
    other = "scalable" if begins == "regular" else "regular"
    found: list[tuple[frozenset[str], dict[str, int]]] = []

    async def story() -> None:
        scene = Scene(kind, {begins: frozenset({stands, ends}), other: frozenset({dies})})
        async with scene.brokers:
            await Catalog(scene.brokers.bare, BrokerSettings()).ensure_defaults()
            is_standing = await scene.start(begins)
            if await scene.start(other):
                await scene.kill(other)
            if is_standing and stands != ends:
                is_standing = await scene.wake(begins)
            if is_standing:
                await scene.kill(begins)
            made = {name for name in scene.tasks if scene.answer(name) == "made"}
            answers = await scene.recover(used_first)
            there = scene.there()
            what = f"{kind} {plan}: made {made}, there {there}, answers {answers}"
            assert len(there) <= 1, what
            assert made <= there, what
            for name, answer in answers.items():
                assert answer == "made" if name in there else answer in REFUSED, what
            found.append((frozenset(there), {name: store.moments for name, store in scene.stores.items()}))

    run_simulated(story())
    return found[0]


def plans(moments: dict[str, int]) -> Iterator[Plan]:
    for begins, other in (("regular", "scalable"), ("scalable", "regular")):
        for stands, dies in product(range(moments[begins]), [None, *range(moments[other])]):
            for ends in (None, *range(stands, moments[begins] + LOSING)):
                yield begins, stands, ends, dies, ("regular", "scalable")[(stands + (ends or 0)) % 2]


@pytest.mark.parametrize("kind", KINDS)
def test_exactly_one_topic_stays_after_a_crash_at_any_write(kind: str) -> None:
    alone = {
        "regular": play(kind, ("regular", None, None, 0, "regular"))[1]["regular"],
        "scalable": play(kind, ("scalable", None, None, 0, "scalable"))[1]["scalable"],
    }
    assert min(alone.values()) >= 2, "there are writes to die at"
    seen = {play(kind, plan)[0] for plan in plans(alone)}
    assert seen == {frozenset({"regular"}), frozenset({"scalable"}), frozenset()}


@pytest.mark.parametrize("used_first", ["regular", "scalable"])
def test_conflict_left_by_an_older_version_is_resolved(used_first: str) -> None:
    """A regular topic that was never looked at again, and was opened since; beside it a scalable one that is led."""

    async def story() -> None:
        scene = Scene("plain", {"regular": frozenset(), "scalable": frozenset()})
        bare = scene.brokers.bare
        async with scene.brokers:
            await Catalog(bare, BrokerSettings()).ensure_defaults()
            await scene.start("regular")
            await scene.kill("regular")
            left = bare.data.get(PLAIN)
            assert left is not None and scene.answer("regular") == "made"
            await bare.delete(PLAIN, expected=left.version)
            await scene.start("scalable")
            await bare.put(PLAIN, left.value.replace(b'"epoch": 1', b'"epoch": 2'), expected=ABSENT)
            await scene.kill("scalable")
            answers = await scene.recover(used_first)
            assert answers == {"regular": TopicNotFound.code, "scalable": "made"}

    run_simulated(story())
