"""Segments as clients see them on the wire: who may attach, what a seal says to whom, ancestors, keys, guards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import Refused
from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.broker.segment_host.tombstone_sweeper import TombstoneSweeper
from anabranch.broker.topic.topic import Topic
from anabranch.controller.segment_host import (
    CloseReader,
    Create,
    CreateCursor,
    CursorSpec,
    Delete,
    DeleteCursor,
    Drained,
    Fence,
    FencingToken,
    GrantReader,
    HostEvent,
    Refilled,
    Seal,
    SealFacts,
    SegmentHost,
    Start,
    Status,
    SubscriptionSeen,
)
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.routing import RANGE_HIGH16, key_hash
from anabranch.model.segment import backing_topic
from anabranch.node.node import Node
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_with_payload, position_of
from anabranch.protocol.entry import build_entry, seal_entry
from anabranch.protocol.pulsar_pb2 import ServerError
from tests.support.in_memory.node import client_of, serving
from tests.support.in_memory.segment_hosts import TOPIC, ref_of, save_record, split_record, until
from tests.support.processes.in_process_cluster import nodes, place_of
from tests.support.processes.scalable_nodes import admin_of, layout_client
from tests.support.traffic.raw_client import RawClient, Received

RECORD = split_record()
PARENT = ref_of(TOPIC, RECORD.layout[0])
LOW, HIGH = (ref_of(TOPIC, one) for one in RECORD.planned_children)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as node:
        await save_record(node, TOPIC, RECORD)
        host = host_of(node)
        for number, ref in enumerate((PARENT, LOW, HIGH)):
            await host.ask(FencingToken(1, number), Create("op", ref, (CursorSpec("s", Start.EARLIEST),)))
        yield node


def host_of(node: Node) -> SegmentHost:
    assert node.services.segments is not None
    return node.services.segments


def loaded(node: Node, name: TopicName = PARENT.name) -> Topic:
    return owned(node, name).topic


def owned(node: Node, name: TopicName = PARENT.name) -> OwnedSegment:
    segment = segment_of(node.services.topics.loaded(name))
    assert segment is not None
    return segment


class EventsOf:
    """Takes the events of a segment, so that the node's own controller does not see them."""

    def __init__(self, segment: OwnedSegment, on_event: Callable[[HostEvent], None]) -> None:
        self.on_event = on_event
        self.notify_sealed = segment.listener.notify_sealed
        segment.listener = self


async def seal(node: Node, number: int = 9) -> SealFacts:
    facts = await host_of(node).ask(FencingToken(1, number), Seal("op", PARENT, (LOW, HIGH)))
    assert isinstance(facts, SealFacts)
    return facts


def send(client: RawClient, sequence: int, key: str | None, **fields: Any) -> None:
    body = pb.CommandSend(producer_id=1, sequence_id=sequence, num_messages=1)
    entry = build_entry(b"x", sequence_id=sequence, key=key, **fields)
    client.write(frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=body), entry))


class HeldSeal:
    """A seal that waits, decided but not durable, until it may go on."""

    def __init__(self, topic: Topic) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self._terminate = topic.log.terminate
        topic.log.terminate = self._held  # type: ignore[method-assign]  # the outcome is held back

    async def _held(self, properties: Callable[[], Mapping[str, str]] | None = None) -> Position:
        self.begun.set()
        await self.may_end.wait()
        return await self._terminate(properties)


# -- attaching


async def test_only_segments_of_layout_or_operation_can_be_attached(node: Node) -> None:
    stranger = f"segment://{TOPIC.namespace_path}/orders/0000-ffff-7"
    other_range = f"segment://{TOPIC.namespace_path}/orders/0000-7fff-0"
    other_topic = f"segment://{TOPIC.namespace_path}/nothing/0000-ffff-0"
    async with client_of(node) as client:
        for name in (stranger, other_range, other_topic):
            assert (await client.producer(name)).body.error == ServerError.TopicNotFound
            assert (await client.subscribe(name)).body.error == ServerError.TopicNotFound
            answer = await client.ask(BaseCommand.PARTITIONED_METADATA, topic=name)
            assert answer.body.error == ServerError.TopicNotFound
        for name in map(str, (PARENT.name, LOW.name)):
            answer = await client.ask(BaseCommand.PARTITIONED_METADATA, topic=name)
            assert (answer.body.response, answer.body.partitions) == (answer.body.Success, 0)
            answer = await client.ask(BaseCommand.LOOKUP, topic=name)
            assert answer.body.brokerServiceUrl == node.service_url
        assert (await client.producer(str(LOW.name))).kind == BaseCommand.PRODUCER_SUCCESS
    listed = await node.services.catalog.topics(TOPIC.namespace_path)
    assert listed == []  # segments are no regular topics


async def test_a_planned_segment_is_waited_for(node: Node) -> None:
    host = host_of(node)
    await host.ask(FencingToken(1, 9), Delete("op", HIGH))
    async with client_of(node) as client:
        opening = asyncio.ensure_future(client.producer(str(HIGH.name)))
        await client.barrier()
        assert not opening.done()
        await host.ask(FencingToken(1, 10), Create("op", HIGH, (CursorSpec("s", Start.EARLIEST),)))
        assert (await opening).kind == BaseCommand.PRODUCER_SUCCESS


async def test_an_unknown_subscription_waits_for_the_registry(node: Node) -> None:
    host, seen = host_of(node), list[HostEvent]()
    EventsOf(owned(node), seen.append)  # the test takes the part of the registry
    async with client_of(node) as client:
        subscribing = asyncio.ensure_future(client.subscribe(str(PARENT.name), "new", permits=10))
        expected = SubscriptionSeen(PARENT, "new", True, Start.EARLIEST)
        await until(lambda: expected in seen)
        assert not subscribing.done()
        await host.ask(FencingToken(1, 9), CreateCursor("op", PARENT, CursorSpec("new", Start.EARLIEST)))
        assert (await subscribing).kind == BaseCommand.SUCCESS
        seen.clear()
        assert (await client.subscribe(str(PARENT.name), "s", 2)).kind == BaseCommand.SUCCESS
        reader = await client.subscribe(str(PARENT.name), "reader", 3, durable=False, subType=0)
        assert (reader.kind, seen) == (BaseCommand.SUCCESS, [])  # known, or not durable


# -- who is let in


async def attached(client: RawClient, who: str, generation: int | None = None, incarnation: int = 1) -> Received:
    """As a stream consumer's reader of the parent; without a generation it is a client of Pulsar's."""
    grant = {} if generation is None else {"generation": generation, "incarnation": incarnation}
    exclusive = pb.CommandSubscribe.Exclusive
    return await client.subscribe(str(PARENT.name), "s", consumer_name=f"{who}-seg-0", subType=exclusive, **grant)


async def test_closed_client_without_generation_returns_when_named(node: Node) -> None:
    ask = host_of(node).ask
    async with client_of(node) as old, client_of(node) as new:
        assert (await attached(old, "old")).kind == BaseCommand.SUCCESS
        await ask(FencingToken(1, 9), CloseReader("op", PARENT, "s", "old", 5))
        await old.expect(BaseCommand.CLOSE_CONSUMER)
        for client, who in ((old, "old"), (new, "new")):
            assert (await attached(client, who)).body.error == ServerError.ConsumerBusy
        await ask(FencingToken(1, 10), GrantReader("op", PARENT, "s", "new", 6))
        assert (await attached(new, "new")).kind == BaseCommand.SUCCESS
        new.tell(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=77)
        await new.until(lambda one: getattr(one.body, "request_id", None) == 77)
        assert (await attached(old, "old")).body.error == ServerError.ConsumerBusy  # free, and not its own
        await ask(FencingToken(1, 11), GrantReader("op", PARENT, "s", "old", 8))
        assert (await attached(old, "old")).kind == BaseCommand.SUCCESS


async def test_consumer_of_an_ended_assignment_is_refused(node: Node) -> None:
    async with client_of(node, extensions=True) as old, client_of(node, extensions=True) as new:
        assert (await attached(old, "old", 4)).kind == BaseCommand.SUCCESS
        await host_of(node).ask(FencingToken(1, 9), CloseReader("op", PARENT, "s", "old", 5))
        await old.expect(BaseCommand.CLOSE_CONSUMER)
        assert (await attached(old, "old", 4)).body.error == ServerError.ConsumerAssignError
        assert (await attached(old, "old", 9, incarnation=2)).body.error == ServerError.ConsumerAssignError
        assert (await attached(new, "new", 6)).kind == BaseCommand.SUCCESS
        new.tell(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=77)
        await new.until(lambda one: getattr(one.body, "request_id", None) == 77)
        assert (await attached(old, "old", 5)).body.error == ServerError.ConsumerAssignError
        assert (await attached(old, "old", 7)).kind == BaseCommand.SUCCESS  # given to it again


async def test_newer_assignment_closes_the_older_and_ignores_its_acks(node: Node) -> None:
    cursor = loaded(node).subscriptions["s"].cursor
    async with client_of(node, extensions=True) as old, client_of(node, extensions=True) as new:
        await new.producer(str(PARENT.name), producer_id=9)
        for number in range(3):
            new.send(number, producer_id=9)
            await new.receipt()
        assert (await attached(old, "old", 4)).kind == BaseCommand.SUCCESS
        old.flow(10)
        first, second, third = await old.messages(3)
        old.ack(first, ack_type=pb.CommandAck.Cumulative)
        await old.barrier()
        assert cursor.mark_delete == first
        assert (
            await attached(new, "new", 6)
        ).kind == BaseCommand.SUCCESS  # no close request: a higher generation attached
        old.ack(third, ack_type=pb.CommandAck.Cumulative)
        await old.barrier()
        assert cursor.mark_delete == first
        new.flow(10)
        assert await new.messages(2) == [second, third]
        await old.expect(BaseCommand.CLOSE_CONSUMER)


async def test_reader_fences_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        await save_record(node, TOPIC, split_record())
        ask = host_of(node).ask
        await ask(
            FencingToken(1, 1), Create("op", PARENT, (CursorSpec("s", Start.EARLIEST), CursorSpec("t", Start.EARLIEST)))
        )
        await ask(FencingToken(1, 2), CloseReader("op", PARENT, "s", "old", 5))
        async with client_of(node, extensions=True) as client:
            assert (
                await client.subscribe(str(PARENT.name), "t", generation=8, incarnation=1)
            ).kind == BaseCommand.SUCCESS
    async with serving(tmp_path) as node, client_of(node, extensions=True) as client:
        assert (await attached(client, "old", 4)).body.error == ServerError.ConsumerAssignError
        told_by_a_consumer = await client.subscribe(str(PARENT.name), "t", generation=7, incarnation=1)
        assert told_by_a_consumer.body.error == ServerError.ConsumerAssignError
        assert (await attached(client, "new", 5)).kind == BaseCommand.SUCCESS


async def test_recreated_subscription_has_no_fence(node: Node) -> None:
    ask = host_of(node).ask
    await ask(FencingToken(1, 9), CloseReader("op", PARENT, "s", "old", 5))
    await ask(FencingToken(1, 10), DeleteCursor("op", PARENT, "s"))
    await ask(FencingToken(1, 11), CreateCursor("op", PARENT, CursorSpec("s", Start.EARLIEST)))
    async with client_of(node, extensions=True) as client:
        assert (await attached(client, "new", 1)).kind == BaseCommand.SUCCESS


@pytest.mark.parametrize("start", ["Earliest", "Latest"])
async def test_initial_position_from_subscribe_is_resolved_at_registration_time(node: Node, start: str) -> None:
    async with client_of(node) as client:
        await client.producer(str(PARENT.name))
        client.send(1)
        before = position_of((await client.receipt()).message_id)
        await host_of(node).ask(FencingToken(1, 9), CreateCursor("op", PARENT, CursorSpec("new", Start.FIRST)))
        client.send(2)
        after = position_of((await client.receipt()).message_id)
        where = pb.CommandSubscribe.InitialPosition.Value(start)
        answer = await client.subscribe(str(PARENT.name), "new", permits=10, initialPosition=where)
        assert answer.kind == BaseCommand.SUCCESS
        expected = [before, after] if start == "Earliest" else [after]
        assert await client.messages(len(expected)) == expected


async def test_unregistered_subscription_is_not_found(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.broker.segment.pending_cursors.REGISTRY_SECONDS", 0.05)
    monkeypatch.setattr("anabranch.broker.segment.pending_cursors.ASK_SECONDS", 0.01)
    EventsOf(owned(node), lambda _: None)
    async with client_of(node) as client:
        answer = await client.subscribe(str(PARENT.name), "new")
        assert answer.body.error == ServerError.SubscriptionNotFound
    assert "new" not in loaded(node).subscriptions


async def test_refusal_of_the_registry_is_answered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a checkpoint group, which has no cursors: the request fails at once instead of waiting."""
    monkeypatch.setattr("anabranch.broker.segment.pending_cursors.REGISTRY_SECONDS", 3_600.0)
    topic = "topic://public/default/groups"
    async with serving(tmp_path) as node, client_of(node) as client, layout_client(node) as member:
        await admin_of(node).create(topic, 1, {})
        registered = await member.register(topic, "g", "a", consumer_type=pb.CHECKPOINT)
        segment = registered.assignment.segments[0].segment_topic
        answer = await client.subscribe(segment, "g")
        assert answer.body.error == ServerError.NotAllowedError
        assert "CHECKPOINT" in answer.body.message
        assert (await client.subscribe(segment, "queue", 2)).kind == BaseCommand.SUCCESS


async def test_a_subscription_is_not_deleted_on_one_segment(node: Node) -> None:
    """Its cursor would be missing here, and what comes would be lost to it. (V5 clients have no such call.)"""
    async with client_of(node) as client:
        assert (await client.subscribe(str(PARENT.name), "s", permits=10)).kind == BaseCommand.SUCCESS
        for force in (False, True):
            answer = await client.ask(BaseCommand.UNSUBSCRIBE, consumer_id=1, force=force)
            assert answer.body.error == ServerError.NotAllowedError
        await client.producer(str(PARENT.name))
        client.send(1)
        await client.message()  # it is still attached
        reader = await client.subscribe(str(PARENT.name), "reader", 3, durable=False, subType=0)
        assert reader.kind == BaseCommand.SUCCESS
        assert (await client.ask(BaseCommand.UNSUBSCRIBE, consumer_id=3)).kind == BaseCommand.SUCCESS
    status = await host_of(node).ask(FencingToken(1, 9), Fence("op", PARENT))
    assert isinstance(status, Status)
    assert "s" in status.cursors


# -- sealing


async def test_producers_with_extensions_get_the_children_at_once(node: Node) -> None:
    async with client_of(node, extensions=True) as client:
        await client.producer(str(PARENT.name), producer_name="p")
        client.send(7)
        await client.receipt()
        held = HeldSeal(loaded(node))
        sealing = asyncio.ensure_future(seal(node))
        await held.begun.wait()
        client.send(8)
        await client.barrier()
        held.may_end.set()
        facts = await sealing
        notice = (await client.expect(BaseCommand.SEGMENT_SEALED)).body
        assert (notice.producer_id, notice.operation_id, notice.last_sequence_id) == (1, "op", 7)
        assert [(one.segment_id, one.hash_start, one.hash_end) for one in notice.children] == [
            (1, 0, 0x7FFF),
            (2, 0x8000, 0xFFFF),
        ]
        assert [one.created_at_epoch for one in notice.children] == [1, 1]
        assert {one.segment_id: one.broker_url for one in notice.child_brokers} == dict.fromkeys(
            (1, 2), node.service_url
        )
        assert facts.sequence_ids == (("p", 7),)
        client.send(9)  # sent before it has read the notice
        await client.barrier()
        assert not client.has(BaseCommand.SEND_RECEIPT) and not client.has(BaseCommand.SEND_ERROR)
        assert not client.has(BaseCommand.CLOSE_PRODUCER)
        answer = await client.producer(str(PARENT.name), producer_name="p")
        assert answer.body.error == ServerError.TopicTerminatedError
    assert loaded(node).log.last_position == facts.last_position


async def test_other_producers_get_the_errors_of_pulsar(node: Node) -> None:
    async with client_of(node) as client:
        await client.producer(str(PARENT.name), producer_name="p")
        held = HeldSeal(loaded(node))
        sealing = asyncio.ensure_future(seal(node))
        await held.begun.wait()
        for sequence in (1, 2):
            client.send(sequence)
        await client.barrier()
        held.may_end.set()
        await sealing
        for sequence in (1, 2):
            refused = (await client.expect(BaseCommand.SEND_ERROR)).body
            assert (refused.sequence_id, refused.error) == (sequence, ServerError.TopicTerminatedError)
        await client.expect(BaseCommand.CLOSE_PRODUCER)
        assert not client.has(BaseCommand.SEND_RECEIPT)
        assert (await client.producer(str(PARENT.name))).body.error == ServerError.TopicTerminatedError


async def test_failed_seal_stores_waiting_publishes_in_order(node: Node) -> None:
    topic = loaded(node)
    async with client_of(node, extensions=True) as client:
        await client.producer(str(PARENT.name), producer_name="p")
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def fails(properties: object = None) -> Position:
            begun.set()
            await may_end.wait()
            raise RuntimeError("the store is away")

        terminate, topic.log.terminate = topic.log.terminate, fails  # type: ignore[method-assign]  # the outcome is held back
        sealing = asyncio.ensure_future(seal(node))
        await begun.wait()
        for sequence in range(3):
            client.send(sequence)
        await client.barrier()
        may_end.set()
        with pytest.raises(RuntimeError):
            await sealing
        assert [(await client.receipt()).sequence_id for _ in range(3)] == [0, 1, 2]
        topic.log.terminate = terminate  # type: ignore[method-assign]  # the outcome is held back
        assert (await seal(node, 10)).sequence_ids == (("p", 2),)


async def test_consumers_are_notified_at_the_end_of_the_segment(node: Node) -> None:
    host, events = host_of(node), list[HostEvent]()
    host.listen(events.append)
    async with client_of(node, version="Pulsar-Java-v5") as client:
        await client.producer(str(PARENT.name), producer_name="p")
        client.send(0)
        await client.receipt()
        await client.subscribe(str(PARENT.name), "s", permits=10)
        at = position_of((await client.message()).message_id)
        await seal(node)
        await client.barrier()
        assert not client.has(BaseCommand.REACHED_END_OF_TOPIC)
        client.ack(at)
        await client.expect(BaseCommand.REACHED_END_OF_TOPIC)
    await until(lambda: events == [Drained(PARENT, "s", 0)])


async def test_sealed_segment_delivers_delayed_messages_before_drain(node: Node) -> None:
    host, events = host_of(node), list[HostEvent]()
    host.listen(events.append)
    now_ms = node.services.clock.now_ms()
    of = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=now_ms, deliver_at_time=now_ms + 400)
    async with client_of(node) as client:
        await client.producer(str(PARENT.name), producer_name="p")
        body = pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1)
        client.write(frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=body), seal_entry(of, b"late")))
        await client.receipt()
        await client.subscribe(str(PARENT.name), "s", permits=10)
        await seal(node)
        status = await host.ask(FencingToken(1, 10), Fence("op", PARENT))
        assert isinstance(status, Status)
        assert (status.drained, events) == (frozenset(), [])
        at = position_of((await client.message()).message_id)
        assert node.services.clock.now_ms() >= now_ms + 400
        assert events == []
        client.ack(at)
        await until(lambda: events == [Drained(PARENT, "s", 0)])


# -- ancestors and duplicates


async def test_producer_on_a_child_gets_sequences_of_its_ancestors(node: Node) -> None:
    async with client_of(node, extensions=True) as client:
        await client.producer(str(PARENT.name), producer_name="p")
        client.send(5)
        await client.receipt()
        opened = await client.producer(str(LOW.name), 2, producer_name="p")  # in advance: the parent goes on
        assert [one.last_sequence_id for one in opened.body.ancestors] == [5]
        client.send(6)
        await client.receipt()
        await seal(node)
        for number, name, last in ((3, "p", 6), (4, "q", -1)):
            opened = await client.producer(str(HIGH.name), number, producer_name=name)
            (one,) = opened.body.ancestors
            assert (one.segment_id, one.hash_start, one.hash_end) == (0, 0, 0xFFFF)
            assert (one.last_sequence_id, one.ring_hash) == (last, "murmur3-low16")
            assert opened.body.last_sequence_id == -1
    async with client_of(node) as foreign:
        assert not (await foreign.producer(str(HIGH.name), producer_name="r")).body.ancestors


async def test_ancestors_on_other_brokers_are_asked(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as brokers:
        a, b = brokers
        topic = next(
            name
            for name in (TopicName.parse(f"{TOPIC}-{number}") for number in range(1000))
            if place_of(b).is_here(backing_topic(name, RECORD.layout[0]))
            and any(place_of(a).is_here(backing_topic(name, one)) for one in RECORD.planned_children)
        )
        await save_record(a, topic, RECORD)
        parent = ref_of(topic, RECORD.layout[0])
        children = [ref_of(topic, one) for one in RECORD.planned_children]
        for ref in (parent, *children):
            await host_of(a).ask(FencingToken(1, 1), Create("op", ref, ()))
        async with client_of(b) as producing:
            await producing.producer(str(parent.name), producer_name="p")
            producing.send(11)
            await producing.receipt()
        assert isinstance(await host_of(a).ask(FencingToken(1, 2), Seal("op", parent, tuple(children))), SealFacts)
        child = next(one for one in children if place_of(a).is_here(one.name))
        async with client_of(a, extensions=True) as client:
            opened = await client.producer(str(child.name), producer_name="p")
            assert [(one.segment_id, one.last_sequence_id) for one in opened.body.ancestors] == [(0, 11)]


# -- keys


def key_at(low: int, high: int) -> str:
    return next(key for key in (f"k{n}" for n in range(10_000)) if low <= key_hash(key) & 0xFFFF <= high)


async def test_producer_with_another_key_routing_is_refused(node: Node) -> None:
    inside, outside = key_at(0, 0x7FFF), key_at(0x8000, 0xFFFF)
    async with client_of(node) as client:
        await client.producer(str(LOW.name), producer_name="p")
        send(client, 0, inside)
        await client.receipt()
        send(client, 1, None)
        await client.receipt()
        for sequence in (2, 3):
            send(client, sequence, outside if sequence == 2 else inside)  # and everything after it
            refused = (await client.expect(BaseCommand.SEND_ERROR)).body
            assert (refused.sequence_id, refused.error) == (sequence, ServerError.NotAllowedError)
            assert "murmur3-low16" in refused.message
    assert loaded(node, LOW.name).log.chain.entries == 2


async def test_the_ring_hash_is_the_topics(node: Node) -> None:
    await save_record(node, TOPIC, replace(RECORD, layout=replace(RECORD.layout, routing=RANGE_HIGH16)))
    high = next(
        key for key in (f"k{n}" for n in range(10_000)) if key_hash(key) >> 16 > 0x8000 > key_hash(key) & 0xFFFF
    )
    async with client_of(node) as client:
        await client.producer(str(LOW.name), producer_name="p")
        send(client, 0, high)
        assert "murmur3-high16" in (await client.expect(BaseCommand.SEND_ERROR)).body.message


# -- regular names


@pytest.mark.parametrize(
    "spelling", ["persistent://public/default/orders", "orders", "non-persistent://public/default/orders"]
)
async def test_regular_name_of_a_scalable_topic_is_not_found(node: Node, spelling: str) -> None:
    async with client_of(node) as client:
        answers: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.ask(BaseCommand.LOOKUP, topic=spelling),
            lambda: client.ask(BaseCommand.PARTITIONED_METADATA, topic=spelling),
            lambda: client.producer(spelling),
            lambda: client.subscribe(spelling),
            lambda: client.producer(f"{spelling}-partition-0"),
        ]
        for ask in answers:
            assert (await ask()).body.error == ServerError.TopicNotFound
    assert await node.services.catalog.topics("public/default") == []


async def test_no_regular_topic_is_made_beside_a_scalable_one(node: Node) -> None:
    def attempt(path: str, body: object) -> int:
        with AdminClient(node.http_url) as admin, pytest.raises(Refused) as refused:
            admin.put(path, body)
        return refused.value.status

    name = "persistent://public/default/orders"
    assert await asyncio.to_thread(attempt, "/admin/v2/persistent/public/default/orders", {}) == 409
    assert await asyncio.to_thread(attempt, "/admin/v2/persistent/public/default/orders/partitions", 3) == 409
    assert not await node.services.catalog.exists(TopicName.parse(name))


async def test_expired_tombstones_are_deleted(node: Node) -> None:
    services, host = node.services, host_of(node)
    await host.ask(FencingToken(1, 20), Delete("op", HIGH))
    await host.ask(FencingToken(1, 20), Fence("op", replace(HIGH, name=TopicName.parse(f"{HIGH.name}9"))))
    store = services.catalog._store
    assert services.topics._factory.segments is not None
    logs = services.topics._factory.segments.logs
    owner = services.segments._owner  # type: ignore[union-attr]  # host_of has looked
    tombstones = TombstoneSweeper(services.catalog, logs, owner, services.clock)
    assert await tombstones.sweep(services.clock.now_ms() - 60_000) == 0
    assert await tombstones.sweep(services.clock.now_ms() + 60_000) == 2
    left = await logs.names(TOPIC.namespace_path)
    assert left == [LOW.name, PARENT.name]  # what is there stays
    assert await store.get(services.catalog.topic_key(HIGH.name)) is None


async def test_seek_of_a_consumer_reverts_a_drain(node: Node) -> None:
    host, events = host_of(node), list[HostEvent]()
    host.listen(events.append)
    async with client_of(node) as client:
        await client.producer(str(PARENT.name), producer_name="p")
        client.send(0)
        await client.receipt()
        await client.subscribe(str(PARENT.name), "s", permits=10)
        await seal(node)
        client.ack(position_of((await client.message()).message_id))
        await until(lambda: events == [Drained(PARENT, "s", 0)])
        answer = await client.ask(BaseCommand.SEEK, consumer_id=1, message_publish_time=0)
        assert answer.kind == BaseCommand.SUCCESS
        await until(lambda: events[1:] == [Refilled(PARENT, "s", 1)])


async def test_namespace_ttl_applies_to_unloaded_segments(node: Node) -> None:
    services = node.services
    await host_of(node).ask(FencingToken(1, 20), Delete("op", HIGH))
    for name in (PARENT.name, LOW.name):
        await services.topics.close(name)
    await services.topics._unloaded_scan.round()
    assert services.topics.loaded(PARENT.name) is None  # nothing to do for it
    await services.catalog.change_policies(
        TOPIC.namespace_path, lambda known: replace(known, other={**known.other, "message_ttl_in_seconds": 7})
    )
    await services.topics._unloaded_scan.round()
    assert loaded(node).policies.ttl_seconds == 7
    assert loaded(node, LOW.name).policies.retention == services.topics._factory.segments.logs.retention  # type: ignore[union-attr]  # it serves them
    assert services.topics.loaded(HIGH.name) is None  # a tombstone


def test_names_are_what_backing_topic_says() -> None:
    assert backing_topic(TOPIC, RECORD.layout[0]) == PARENT.name
