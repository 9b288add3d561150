"""A scalable topic on every metadata store: create, split, watch, change of leader, delete."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch.controller.events import TopicGone
from anabranch.controller.interface import LayoutView, Registration, Start, SubscriptionKind
from anabranch.controller.regular_topics import RegularTopic
from anabranch.controller.service import ScalableTopicService
from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.open import open_store
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.runtime.clock import SystemClock
from tests import services
from tests.support.in_memory.controllers import Link, NoRules, Placing
from tests.support.models.memory_segment_host import MemoryHost, Shelf

pytestmark = pytest.mark.slow

STORES = ["memory", "sqlite", "zk", "etcd", "oxia"]
TOPIC = TopicName.parse("topic://public/default/a b/100%#ü")


class Rules(NoRules):
    """A namespace without policies; topics are not created by their use."""

    async def create_by_use(self, topic: TopicName) -> None:
        raise TopicGone(f"{topic} does not exist")

    async def activate(self, topic: TopicName) -> None:
        return

    async def regular(self, topic: TopicName, *, create: bool = False) -> RegularTopic | None:
        return None


class Listener:
    def __init__(self) -> None:
        self.views: list[LayoutView] = []
        self.error: Error | None = None
        self.news = asyncio.Event()

    def layout_changed(self, view: LayoutView) -> None:
        self.views.append(view)
        self.news.set()

    def layout_failed(self, error: Error) -> None:
        self.error = error
        self.news.set()

    async def until_epoch(self, epoch: int) -> None:
        async with asyncio.timeout(60):
            while not self.views or self.views[-1].layout.epoch < epoch:
                self.news.clear()
                await self.news.wait()

    async def until_failed(self) -> None:
        async with asyncio.timeout(60):
            while self.error is None:
                self.news.clear()
                await self.news.wait()


def url_of(kind: str, folder: Path) -> str:
    if kind == "memory":
        return "memory:"
    if kind == "sqlite":
        return f"sqlite://{folder / 'metadata'}"
    server, place = services.shared(kind), f"t{uuid.uuid4().hex[:12]}"
    path = f"default/{place}" if kind == "oxia" else place
    return f"{kind}://127.0.0.1:{server.nodes[0].port}/{path}"


@asynccontextmanager
async def two(store: MetadataStore) -> AsyncIterator[tuple[Placing, ScalableTopicService, ScalableTopicService]]:
    clock, shelf, placing = SystemClock(), Shelf(), Placing()

    def made(name: str) -> ScalableTopicService:
        return ScalableTopicService(
            store,
            placing.at(name),
            MemoryHost(shelf, clock.now_ms),
            Rules(),
            Rules(),
            broker=name,
            settings=ScalableTopicsSettings(),
            clock=clock,
            chance=random.Random(name),
        )

    placing.owner = "a"
    async with made("a") as a, made("b") as b:
        yield placing, a, b


@pytest.mark.parametrize("kind", STORES)
async def test_topic_survives_a_change_of_leader(kind: str, tmp_path: Path) -> None:
    async with open_store(url_of(kind, tmp_path), SystemClock()) as store, two(store) as (placing, a, b):
        await a.create(TOPIC, 2, {"team": "x"})
        listener = Listener()
        b.watch(TOPIC, listener, create=False)
        await listener.until_epoch(0)
        await a.subscribe(TOPIC, "q/%#ü", SubscriptionKind.QUEUE, Start.LATEST)
        assert await a.split(TOPIC, 0, ways=3) == 1
        await listener.until_epoch(1)
        wish = Registration("s/%#ü", SubscriptionKind.STREAM, "c/%#ü", Start.EARLIEST)
        link = Link()
        await a.register(TOPIC, wish, link)
        async with asyncio.timeout(60):  # the sealed parent is empty, which its owner says when it is asked
            while not link.received or len(link.received[-1].segments) != 1 + 3:
                await SystemClock().sleep(0.01)
        given = link.received[-1]
        placing.owner, placing.ownership_epoch = "b", 1
        a.placement_changed(has_gained=False)
        b.placement_changed(has_gained=True)  # it has a session: b finds it by itself
        async with asyncio.timeout(60):
            while b.controllers.leading(TOPIC) is None:
                await SystemClock().sleep(0.01)
        again, _ = await b.register(TOPIC, wish, Link())
        assert again.segments == given.segments
        assert again.generation > given.generation  # of its new leader; nothing was taken
        assert await b.merge(TOPIC, (2, 3)) == 2
        await listener.until_epoch(2)
        assert await a.names("public/default", {"team": "x"}) == [str(TOPIC)]
        await b.delete(TOPIC)
        await listener.until_failed()
        assert isinstance(listener.error, TopicGone)
        assert await a.names("public/default", {}) == []
        assert [view.layout.epoch for view in listener.views] == sorted(view.layout.epoch for view in listener.views)
        assert await store.children("/topics/public/default") == []
