"""Scalable topics on two brokers of one cluster: led where the name is, asked and watched anywhere, handed over."""

from __future__ import annotations

from pathlib import Path

from anabranch.cluster.slots import slot_of
from anabranch.model.names import TopicName
from anabranch.model.segment import backing_topic
from anabranch.node.node import Node
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from tests.support.processes.in_process_cluster import nodes, place_of, topic_at, until
from tests.support.processes.scalable_nodes import LayoutClient, admin_of, ids, layout_client, service_of


def led_at(node: Node, stem: str = "t") -> str:
    return str(topic_at(node, f"topic://public/default/{stem}"))


async def move(topic: str, giver: Node, taker: Node) -> None:
    cluster = place_of(giver).cluster
    assert await cluster.move([slot_of(topic)], place_of(taker).cluster.info.broker, 20.0)
    await until(lambda: place_of(taker).is_here(TopicName.parse(topic)))


async def controller(client: LayoutClient, url: str, session_id: int = 1) -> None:
    await client.until_layout(lambda dag: dag.controller_broker_url == url, session_id)


async def test_any_broker_answers_requests_and_watches(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b), layout_client(a) as at_a, layout_client(b) as at_b:
        topic = led_at(a)
        await admin_of(b).create(topic, 4, {"team": "x"})  # a peer call: a leads it
        assert service_of(a).controllers.leading(TopicName.parse(topic)) is not None
        assert service_of(b).controllers.leading(TopicName.parse(topic)) is None
        for client in (at_a, at_b):
            client.lookup(topic)
            dag = await client.until_layout(lambda it: it.epoch == 0)
            assert dag.controller_broker_url == a.service_url
            assert {one.broker_url for one in dag.segment_brokers} <= {a.service_url, b.service_url}
        done = await admin_of(b).split(topic, 1, 2, None, "op-b")
        assert done == {"operation": "op-b", "epoch": 1, "segments": [4, 5]}
        assert await admin_of(b).split(topic, 1, 2, None, "op-b") == done  # asked again: not done twice
        for client in (at_a, at_b):
            await client.until_layout(lambda it: it.epoch == 1)
        assert await admin_of(b).names("public/default", {"team": "x"}) == [topic]
        assert await admin_of(a).names("public/default", {"team": "y"}) == []
        assert (await admin_of(b).stats(topic))["controller"] == a.service_url
        refused = await at_b.register(topic, "s", "c")
        assert refused.error == ServerError.ServiceNotReady
        assert a.service_url in refused.message
        await admin_of(b).delete(topic, False)
        for client in (at_a, at_b):
            update = await client.update()
            while not update.HasField("error"):
                update = await client.update()
            assert update.error == ServerError.TopicNotFound


async def test_non_leader_answers_other_clients_with_unknown_error(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b), layout_client(b, extensions=False) as at_b:
        await admin_of(a).create(led_at(a), 1, {})
        assert (await at_b.register(led_at(a), "s", "c")).error == ServerError.UnknownError


async def test_leadership_moves_with_the_name_without_losing_members(tmp_path: Path) -> None:
    async with (
        nodes(tmp_path, "a", "b") as (a, b),
        layout_client(a) as at_a,
        layout_client(b) as at_b,
    ):
        topic = led_at(a)
        await admin_of(a).create(topic, 2, {})
        at_b.lookup(topic)
        await controller(at_b, a.service_url)
        before = (await at_a.register(topic, "s", "c")).assignment
        await move(topic, a, b)
        await controller(at_b, b.service_url)  # the watch follows
        # b leads it without being asked: it has a session
        await until(lambda: service_of(b).controllers.leading(TopicName.parse(topic)) is not None)
        after = (
            await at_b.register(topic, "s", "c", held_segments=ids(before), generation=before.generation)
        ).assignment
        assert (ids(after), after.generation) == (ids(before), before.generation + 1)  # of its new leader
        assert (await admin_of(a).split(topic, 0, 2, None, None))["epoch"] == 1
        record = await service_of(a).record(TopicName.parse(topic))
        assert record.leader_term > 1


async def test_connection_of_pulsars_consumer_is_closed_when_its_leader_moves(tmp_path: Path) -> None:
    """Pulsar's V5 client registers again when its connection ends, and has no other way to learn of it."""
    async with (
        nodes(tmp_path, "a", "b") as (a, b),
        layout_client(a, extensions=False) as pulsars,
        layout_client(a, extensions=False) as watching,
        layout_client(a) as ours,
    ):
        topic = led_at(a)
        await admin_of(a).create(topic, 2, {})
        watching.lookup(topic)
        await controller(watching, a.service_url)
        await pulsars.register(topic, "s", "c")
        await ours.register(topic, "s", "d")
        await move(topic, a, b)
        await pulsars.raw.wait_closed()
        await ours.raw.expect(BaseCommand.CLOSE_CONSUMER)
        await controller(watching, b.service_url)
        assert not watching.raw.is_closed and not ours.raw.is_closed
        async with layout_client(b, extensions=False) as again:
            assert ids((await again.register(topic, "s", "c")).assignment)


async def test_segments_are_spread_over_the_brokers(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b):
        topic = led_at(a)
        await admin_of(a).create(topic, 16, {})
        record = await service_of(b).record(TopicName.parse(topic))
        names = [backing_topic(TopicName.parse(topic), one) for one in record.layout.active]
        assert {place_of(a).is_here(name) for name in names} == {True, False}
        for name in names:
            owner = a if place_of(a).is_here(name) else b
            assert owner.services.topics.loaded(name) is not None
