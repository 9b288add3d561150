"""The list of a namespace's topics: snapshots, diffs, and a new session that names the hash of the known list."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from anabranch.client.config import Backoff
from anabranch.client.context import ClientContext
from anabranch.client.errors import NotAuthorized, Unreachable
from anabranch.client.topic.namespace_watch import NamespaceWatch
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from anabranch.protocol.topics_hash import topics_hash
from anabranch.runtime.tasks import TaskOwner
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated


class Connection:
    """A connection, its pool and the client's watches."""

    supports_scalable_topics = is_usable = True

    def __init__(self) -> None:
        self.asked: asyncio.Queue[pb.CommandWatchScalableTopics] = asyncio.Queue()
        self.listener: Any = None

    async def connection(self) -> Connection:
        return self

    def new_session_id(self) -> int:
        return 5

    def listen_session(self, session_id: int, listener: Any) -> None:
        self.listener = listener

    def unlisten_session(self, session_id: int) -> None:
        self.listener = None

    def write(self, data: bytes) -> None:
        said = BaseCommand.FromString(data[8:])
        if said.type == BaseCommand.WATCH_SCALABLE_TOPICS:
            self.asked.put_nowait(said.watch_scalable_topics)

    def tell(self, **event: Any) -> None:
        self.listener.on_command(77, pb.CommandWatchScalableTopicsUpdate(watch_id=5, **event), b"")


Changes = list[tuple[list[str], list[str]]]


async def watched(connection: Connection, changes: Changes) -> tuple[NamespaceWatch, TaskOwner]:
    context = ClientContext(
        cast(Any, connection), Backoff(initial=0.1), LoopClock(), random.Random(1), cast(Any, connection)
    )
    tasks = TaskOwner("test")
    watch = NamespaceWatch("t/n", {"k": "v"}, lambda come, gone: changes.append((sorted(come), sorted(gone))), context)
    tasks.spawn(watch.run(), "watch")
    return watch, tasks


def test_list_is_followed_through_a_reconnect() -> None:
    async def story() -> None:
        connection, changes = Connection(), Changes()
        watch, tasks = await watched(connection, changes)
        first = await connection.asked.get()
        assert (first.watch_id, first.namespace, first.HasField("current_hash")) == (5, "t/n", False)
        assert [(one.key, one.value) for one in first.property_filters] == [("k", "v")]
        connection.tell(snapshot=pb.ScalableTopicsSnapshot(topics=["a", "b"]))
        await watch.wait_first(1.0)
        connection.tell(diff=pb.ScalableTopicsDiff(added=["c", "a"], removed=["a", "b"]))
        connection.listener.on_detached(Unreachable("gone"))
        again = await connection.asked.get()
        assert again.current_hash == topics_hash(["a", "c"]), "removed comes before added"
        connection.tell(snapshot=pb.ScalableTopicsSnapshot(topics=["c", "d"]))
        assert changes == [(["a", "b"], []), (["c"], ["b"]), (["d"], ["a"])]
        await tasks.close()

    run_simulated(story())


def test_final_refusal_before_the_first_list_is_raised_and_later_ones_are_retried() -> None:
    async def story() -> None:
        connection = Connection()
        watch, tasks = await watched(connection, [])
        await connection.asked.get()
        connection.tell(error=ServerError.AuthorizationError, message="no")
        with pytest.raises(NotAuthorized):
            await watch.wait_first(1.0)
        watch, tasks = await watched(connection, [])
        await connection.asked.get()
        connection.tell(snapshot=pb.ScalableTopicsSnapshot())
        await watch.wait_first(1.0)
        for _ in range(3):
            connection.tell(error=ServerError.AuthorizationError, message="revoked")
            assert (await connection.asked.get()).current_hash == topics_hash([])
        await tasks.close()

    run_simulated(story())
