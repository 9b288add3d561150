"""The ZooKeeper client on a real server, used as `anabranch.zookeeper` documents it and without the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from anabranch.runtime.clock import SystemClock
from anabranch.zookeeper import jute
from anabranch.zookeeper.address import parse_servers
from anabranch.zookeeper.channel import Channel
from anabranch.zookeeper.connection import Connection, Phase, no_preparation
from anabranch.zookeeper.errors import Code, RequestTooLarge, ServerError, ZooKeeperUnavailable
from anabranch.zookeeper.jute import Event, EventType, Op
from tests.support.in_memory.metadata_stores import PATIENCE_S, fresh_url

pytestmark = pytest.mark.xdist_group("zk")
CLOCK = SystemClock()


@pytest.fixture
def servers_and_root(tmp_path: Path) -> tuple[str, str]:
    """A server list and an unused path."""
    servers, _, name = fresh_url("zk", tmp_path).removeprefix("zk://").partition("/")
    return servers, f"/{name}"


def connection(
    servers: str,
    on_phase: Callable[[Phase], None] = lambda phase: None,
    on_event: Callable[[Event], None] = lambda event: None,
    prepare: Callable[[Channel], Awaitable[None]] = no_preparation,
) -> Connection:
    return Connection(
        parse_servers(servers),
        CLOCK,
        timeout_ms=12_000,
        request_s=10.0,
        renew_expired=False,
        on_phase=on_phase,
        on_event=on_event,
        prepare=prepare,
    )


async def test_closing_a_connection_deletes_its_ephemeral_nodes(servers_and_root: tuple[str, str]) -> None:
    servers, root = servers_and_root
    phases: list[Phase] = []
    one, two = connection(servers, phases.append), connection(servers)
    for each in (one, two):
        await each.open(each.deadline())
    await one.call(jute.create(root, b"", ephemeral=False), one.deadline())
    await one.call(jute.create(f"{root}/a", b"1", ephemeral=True), one.deadline())
    node = jute.node_of((await one.call(jute.get_data(f"{root}/a"), one.deadline())).body)
    assert (node.data, node.stat.owner) == (b"1", one.session_id)
    await one.close()
    two.require_zxid(one.zxid)
    with pytest.raises(ServerError) as caught:
        await two.call(jute.get_data(f"{root}/a"), two.deadline())
    assert caught.value.number == Code.NO_NODE
    await two.close()
    assert phases == [Phase.CONNECTED, Phase.CLOSED]
    with pytest.raises(ZooKeeperUnavailable):
        await two.call(jute.get_data(root), two.deadline())


async def test_a_barrier_is_a_transaction_of_the_quorum_and_changes_no_node(servers_and_root: tuple[str, str]) -> None:
    servers, root = servers_and_root
    one = connection(servers)
    await one.open(one.deadline())
    try:
        await one.call(jute.create(root, b"0", ephemeral=False), one.deadline())
        before = jute.node_of((await one.call(jute.get_data(root), one.deadline())).body)
        for _ in range(3):
            known = one.zxid
            answer = await one.call(jute.barrier(), one.deadline())
            assert answer.zxid > known
        assert jute.node_of((await one.call(jute.get_data(root), one.deadline())).body) == before
    finally:
        await one.close()


async def test_recursive_watch_reports_changes_of_other_clients(servers_and_root: tuple[str, str]) -> None:
    servers, root = servers_and_root
    events: asyncio.Queue[Event] = asyncio.Queue()

    async def watch(channel: Channel) -> None:
        await channel.send(jute.watch_tree(root), CLOCK.monotonic() + 10)

    one, two = connection(servers, on_event=events.put_nowait, prepare=watch), connection(servers)
    for each in (one, two):
        await each.open(each.deadline())
    await two.call_all(
        [jute.create(root, b"", ephemeral=False), jute.set_data(root, b"2", 0), jute.delete(root, 1)], two.deadline()
    )
    async with asyncio.timeout(PATIENCE_S):
        seen = [await events.get() for _ in range(3)]
    assert [(one.type, one.path) for one in seen] == [
        (EventType.CREATED, root),
        (EventType.CHANGED, root),
        (EventType.DELETED, root),
    ]
    await one.close()
    await two.close()


async def test_failed_multi_changes_nothing_and_names_the_failed_part(servers_and_root: tuple[str, str]) -> None:
    servers, root = servers_and_root
    one = connection(servers)
    await one.open(one.deadline())
    parts = [
        jute.part(Op.CREATE, jute.create_body(root, b"", ephemeral=False)),
        jute.part(Op.DELETE, jute.version_body(f"{root}/missing", -1)),
    ]
    results = jute.multi_of((await one.call(jute.multi(parts), one.deadline())).body)
    assert jute.failed_part(results) == (1, Code.NO_NODE)
    (answer,) = await one.call_all([jute.exists(root)], one.deadline())
    assert isinstance(answer, ServerError) and answer.number == Code.NO_NODE
    with pytest.raises(RequestTooLarge):
        await one.call(jute.create(root, b"x" * jute.REQUEST_BYTES_MAX, ephemeral=False), one.deadline())
    await one.close()
