"""Topics of a namespace consumer: one that fails is retried and stops no other, one that disappears is closed."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

from anabranch.client.config import Backoff
from anabranch.client.consumer.namespace_topics import NamespaceTopics, NamespaceTopicsSpec
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.context import ClientContext
from anabranch.client.errors import NotAuthorized, NotReady
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.runtime.tasks import TaskOwner
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated


class Broker:
    """A pool, a connection and the watches of a client: answers with the topics it has."""

    supports_scalable_topics = is_usable = True

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)
        self._listener: Any = None

    async def connection(self) -> Broker:
        return self

    def new_session_id(self) -> int:
        return 1

    def listen_session(self, session_id: int, listener: Any) -> None:
        self._listener = listener

    def unlisten_session(self, session_id: int) -> None:
        self._listener = None

    def write(self, data: bytes) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().call_soon(self.tell)

    def tell(self) -> None:
        snapshot = pb.ScalableTopicsSnapshot(topics=sorted(self.topics))
        self._listener.on_command(77, pb.CommandWatchScalableTopicsUpdate(watch_id=1, snapshot=snapshot), b"")


class Owner:
    def __init__(self) -> None:
        self.open: set[str] = set()
        self.opened: list[tuple[str, bool]] = []
        self.failing: dict[str, int] = {}
        self.changed = asyncio.Event()

    async def open_part(
        self, topic: TopicName, timeout_s: float, *, creates: bool = True, is_new: bool = False
    ) -> TopicPart:
        assert not creates, "watching must not bring back a deleted topic"
        name = topic.local
        if self.failing.get(name):
            self.failing[name] -= 1
            raise NotReady("not yet")
        self.open.add(name)
        self.opened.append((name, is_new))
        return cast(TopicPart, name)

    async def wait_attached(self, part: TopicPart, timeout_s: float) -> None:
        self.changed.set()

    async def close_part(self, part: TopicPart) -> None:
        self.open.discard(str(part))
        self.changed.set()

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(600.0):  # simulated
            while self.open != set(names):
                self.changed.clear()
                await self.changed.wait()


def topic(local: str) -> str:
    return f"topic://t/n/{local}"


async def opened(broker: Broker, owner: Owner) -> tuple[NamespaceTopics, TaskOwner]:
    tasks = TaskOwner("test")
    backoff = Backoff(initial=0.1, maximum=5.0)
    context = ClientContext(cast(Any, broker), backoff, LoopClock(), random.Random(1), cast(Any, broker))
    topics = NamespaceTopics(NamespaceTopicsSpec("t/n"), owner, context, tasks, 30.0)
    await topics.open()
    return topics, tasks


def test_topic_that_fails_is_opened_again_and_stops_no_other() -> None:
    async def story() -> None:
        owner = Owner()
        owner.failing["b"] = 4
        broker = Broker(topic("a"), topic("b"), topic("c"))
        topics, tasks = await opened(broker, owner)
        assert owner.open == {"a", "c"}, "each was tried once"
        await owner.until("a", "b", "c")
        topics.failed(topic("a"), NotAuthorized("revoked"))
        await owner.until("b", "c")
        await owner.until("a", "b", "c")
        assert ("b", False) in owner.opened, "it existed when the consumer was opened"
        await tasks.close()
        assert owner.open == set()

    run_simulated(story())


def test_topics_that_come_are_new_and_those_that_are_gone_are_not_opened_again() -> None:
    async def story() -> None:
        owner = Owner()
        owner.failing["b"] = 1000
        broker = Broker(topic("a"), topic("b"))
        _, tasks = await opened(broker, owner)
        broker.topics = {topic("c")}
        broker.tell()
        await owner.until("c")
        left = owner.failing["b"]
        await asyncio.sleep(3600.0)
        assert owner.failing["b"] == left, "a pending retry ends with the topic"
        assert owner.opened == [("a", False), ("c", True)]
        await tasks.close()

    run_simulated(story())
