"""WATCH_SCALABLE_TOPICS on one broker: the snapshot, diffs, hashes, property filters, errors, closing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from anabranch.protocol.topics_hash import topics_hash
from tests.integration.broker.test_schemas import connected
from tests.integration.broker.test_security_complete import guarded, hello, status
from tests.support.in_memory.credentials import token_of
from tests.support.traffic.raw_client import RawClient

NAMESPACE = "public/default"


def named(local: str) -> str:
    return f"topic://{NAMESPACE}/{local}"


async def create(node: Node, local: str, **properties: str) -> None:
    assert node.services.scalable is not None
    await node.services.scalable.create(TopicName.parse(named(local)), 1, properties)


def watch(client: RawClient, watch_id: int = 7, *, known: str | None = None, **wanted: str) -> None:
    filters = [{"key": key, "value": value} for key, value in wanted.items()]
    client.tell(
        BaseCommand.WATCH_SCALABLE_TOPICS,
        watch_id=watch_id,
        namespace=NAMESPACE,
        property_filters=filters,
        current_hash=known,
    )


async def update(client: RawClient) -> Any:
    return (await client.expect(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)).body


async def diff(client: RawClient) -> tuple[list[str], list[str]]:
    body = await update(client)
    assert body.watch_id == 7 and body.HasField("diff"), body
    return list(body.diff.added), list(body.diff.removed)


async def test_snapshot_and_diffs_have_the_topics_with_the_properties(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, client):
        watch(client, team="red")
        first = await update(client)
        assert first.HasField("snapshot") and list(first.snapshot.topics) == []
        await create(node, "a", team="blue")
        await create(node, "b", team="red", size="large")
        assert await diff(client) == ([named("b")], [])
        assert node.services.scalable is not None
        await node.services.scalable.delete(TopicName.parse(named("b")))
        assert await diff(client) == ([], [named("b")])
        await create(node, "a-of-another-kind", team="red")
        assert await diff(client) == ([named("a-of-another-kind")], [])


async def test_known_list_is_not_sent_again(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, client):
        await create(node, "a")
        watch(client, known=topics_hash([named("a")]))
        await create(node, "b")
        assert await diff(client) == ([named("b")], []), "nothing came before"
        watch(client, known="00000000")
        assert list((await update(client)).snapshot.topics) == [named("a"), named("b")]
        client.tell(BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE, watch_id=7)
        await client.barrier()
        assert node.services.scalable_lists is not None and len(node.services.scalable_lists) == 0


async def test_bad_namespace_and_missing_permission_are_answered(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        client.tell(BaseCommand.WATCH_SCALABLE_TOPICS, watch_id=3, namespace="no namespace")
        body = await update(client)
        assert (body.watch_id, body.HasField("error"), body.error) == (3, True, ServerError.InvalidTopicName)


async def test_revoked_permission_silences_the_watch_until_it_is_given_again(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        grant, root = f"/admin/v2/namespaces/{NAMESPACE}/permissions/app", token_of("root")
        client.write(hello("app"))
        await client.expect(BaseCommand.CONNECTED)
        watch(client)
        assert (await update(client)).error == ServerError.AuthorizationError
        assert await status(node, "POST", grant, b'["consume"]', root) == 204
        watch(client)
        assert list((await update(client)).snapshot.topics) == []
        assert await status(node, "DELETE", grant, b"", root) == 204
        async with RawClient(node.service_url) as other:  # its update shows that the change has been read
            other.write(hello("root"))
            await other.expect(BaseCommand.CONNECTED)
            watch(other)
            await update(other)
            await create(node, "a")
            assert await diff(other) == ([named("a")], [])
        await client.barrier()
        assert not client.has(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        assert await status(node, "POST", grant, b'["consume"]', root) == 204
        assert await diff(client) == ([named("a")], [])
