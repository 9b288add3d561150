"""WATCH_TOPIC_LIST on one broker: the list, its updates, bad patterns, closing."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from anabranch.protocol.topics_hash import topics_hash
from tests.integration.broker.test_schemas import connected
from tests.integration.broker.test_security_complete import guarded, hello, status
from tests.support.in_memory.credentials import token_of
from tests.support.traffic.raw_client import RawClient, Received

NAMESPACE = "public/default"
PATTERN = f"persistent://{NAMESPACE}/a.*"


def named(local: str) -> str:
    return f"persistent://{NAMESPACE}/{local}"


async def create(node: Node, local: str) -> None:
    await node.services.topics.create(TopicName.parse(named(local)))


async def watched(client: RawClient, pattern: str = PATTERN, watcher_id: int = 7, **fields: str) -> Received:
    return await client.ask(
        BaseCommand.WATCH_TOPIC_LIST,
        watcher_id=watcher_id,
        namespace=NAMESPACE,
        topics_pattern=pattern,
        **fields,
    )


async def update(client: RawClient) -> tuple[list[str], list[str], str]:
    body = (await client.expect(BaseCommand.WATCH_TOPIC_UPDATE)).body
    assert body.watcher_id == 7
    return list(body.new_topics), list(body.deleted_topics), body.topics_hash


async def test_topics_that_come_and_go_are_told(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, client):
        for local in ("a1", "b1", "__change_events"):
            await create(node, local)
        answer = await watched(client)
        assert answer.kind == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
        assert (answer.body.watcher_id, list(answer.body.topic)) == (7, [named("a1")])
        assert answer.body.topics_hash == topics_hash([named("a1")])
        await create(node, "b2")
        await create(node, "a2")
        assert await update(client) == ([named("a2")], [], topics_hash([named("a1"), named("a2")]))
        await node.services.topics.delete(TopicName.parse(named("a1")), force=False)
        assert await update(client) == ([], [named("a1")], topics_hash([named("a2")]))


async def test_partitions_are_told_one_by_one_also_added_ones(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, client):
        assert list((await watched(client)).body.topic) == []
        parent = TopicName.parse(named("a"))
        await node.services.catalog.create_partitioned(parent, 2)
        assert (await update(client))[0] == [named("a-partition-0"), named("a-partition-1")]

        async def nothing(_: range) -> None: ...

        await node.services.catalog.grow_partitions(parent, 3, nothing)
        assert (await update(client))[0] == [named("a-partition-2")]
        await node.services.topics.create(parent.partition(0))
        await node.services.catalog.delete_partitioned(parent)
        assert (await update(client))[1] == [named("a-partition-1"), named("a-partition-2")], "0 has a record"


async def test_known_list_is_not_sent_again(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, client):
        await create(node, "a1")
        digest = topics_hash([named("a1")])
        answer = await watched(client, topics_hash=digest)
        assert (list(answer.body.topic), answer.body.topics_hash) == ([], digest)
        assert list((await watched(client, topics_hash="00000000")).body.topic) == [named("a1")], "the same watcher"
        await create(node, "a2")
        assert (await update(client))[0] == [named("a2")]
        await client.barrier()
        assert not client.has(BaseCommand.WATCH_TOPIC_UPDATE), "the earlier watch with this id is over"


@pytest.mark.parametrize("pattern", ["a(", "a*{", "[b", "(?=a)", "a\\1", "a" * 300, "((a{200}){200}){200}", "\\p{L}"])
async def test_pattern_that_cannot_be_watched_is_refused(tmp_path: Path, pattern: str) -> None:
    async with connected(tmp_path) as (node, client):
        answer = await watched(client, f"persistent://{NAMESPACE}/{pattern}")
        assert (answer.kind, answer.body.error) == (BaseCommand.ERROR, ServerError.NotAllowedError)
        assert node.services.topic_lists is not None and len(node.services.topic_lists) == 0


async def test_namespace_is_followed_while_it_has_watchers(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, client):
        lists = node.services.topic_lists
        assert lists is not None
        await watched(client)
        await watched(client, watcher_id=8)
        assert len(lists) == 1
        for watcher_id in (7, 7, 8, 9):
            answer = await client.ask(BaseCommand.WATCH_TOPIC_LIST_CLOSE, watcher_id=watcher_id)
            assert answer.kind == BaseCommand.SUCCESS
        assert len(lists) == 0
        await create(node, "a1")
        async with RawClient(node.service_url) as other:
            await other.hello()
            assert list((await watched(other)).body.topic) == [named("a1")]
            assert len(lists) == 1
        await client.barrier()
        assert not client.has(BaseCommand.WATCH_TOPIC_UPDATE)


async def test_revoked_permission_silences_the_watch_until_it_is_given_again(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        grant, root = f"/admin/v2/namespaces/{NAMESPACE}/permissions/app", token_of("root")
        client.write(hello("app"))
        connected_body = (await client.expect(BaseCommand.CONNECTED)).body
        assert connected_body.feature_flags.supports_topic_watchers
        refused = await watched(client)
        assert (refused.kind, refused.body.error) == (BaseCommand.ERROR, ServerError.AuthorizationError)
        assert await status(node, "POST", grant, b'["consume"]', root) == 204
        assert (await watched(client)).kind == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
        await create(node, "a1")
        assert (await update(client))[0] == [named("a1")]
        assert await status(node, "DELETE", grant, b"", root) == 204
        async with RawClient(node.service_url) as other:  # its update shows that the change has been read
            other.write(hello("root"))
            await other.expect(BaseCommand.CONNECTED)
            await watched(other)
            await create(node, "a2")
            assert (await update(other))[0] == [named("a2")]
        await client.barrier()
        assert not client.has(BaseCommand.WATCH_TOPIC_UPDATE)
        assert await status(node, "POST", grant, b'["consume"]', root) == 204
        assert (await update(client))[0] == [named("a2")]
