"""Brokers with scalable topics for tests: nodes in this process, and a raw client that speaks commands 70-75."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.controller.service import ScalableTopicService
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.clock import SystemClock
from tests.support.models.memory_segment_host import MemoryHost, Shelf
from tests.support.traffic.raw_client import RawClient, Received


def plain_settings(directory: Path, **more: object) -> NodeSettings:
    plain = NodeSettings()
    chosen = replace(
        plain,
        network=replace(plain.network, port=0),
        http=replace(plain.http, port=0),
        storage=replace(plain.storage, dir=directory),
    )
    return replace(chosen, **more)  # type: ignore[arg-type]  # groups of settings by name


@asynccontextmanager
async def one_node(directory: Path, **more: object) -> AsyncIterator[Node]:
    clock = SystemClock()
    async with Node(plain_settings(directory, **more), segments=MemoryHost(Shelf(), clock.now_ms)) as node:
        yield node


def admin_of(node: Node) -> ScalableAdmin:
    return ScalableAdmin(lambda: node.services)


def service_of(node: Node) -> ScalableTopicService:
    found = node.services.scalable
    assert isinstance(found, ScalableTopicService)
    return found


def name(local: str) -> TopicName:
    return TopicName.parse(f"topic://public/default/{local}")


class LayoutClient:
    """One connection with layout sessions and consumers on it."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw

    def lookup(self, topic: str, session_id: int = 1, **fields: Any) -> None:
        self.raw.tell(BaseCommand.SCALABLE_TOPIC_LOOKUP, session_id=session_id, topic=topic, **fields)

    async def update(self, session_id: int = 1) -> pb.CommandScalableTopicUpdate:
        found: Received = await self.raw.until(
            lambda one: one.kind == BaseCommand.SCALABLE_TOPIC_UPDATE and one.body.session_id == session_id
        )
        body: pb.CommandScalableTopicUpdate = found.body
        return body

    async def until_layout(self, fits: Callable[[Any], bool], session_id: int = 1) -> Any:
        """The first push whose DAG fits; epochs never go back on the way."""
        last = (-1, -1)
        while True:
            update = await self.update(session_id)
            assert not update.HasField("error"), update
            dag = update.dag
            if dag.incarnation == last[0]:
                assert dag.epoch >= last[1], f"epoch {dag.epoch} after {last[1]}"
            last = (dag.incarnation, dag.epoch)
            if fits(dag):
                return dag

    async def register(self, topic: str, subscription: str, consumer: str, consumer_id: int = 1, **fields: Any) -> Any:
        fields.setdefault("consumer_type", pb.STREAM)
        answer = await self.raw.ask(
            BaseCommand.SCALABLE_TOPIC_SUBSCRIBE,
            topic=topic,
            subscription=subscription,
            consumer_name=consumer,
            consumer_id=consumer_id,
            **fields,
        )
        return answer.body

    async def assignment(self, consumer_id: int = 1) -> pb.ScalableConsumerAssignment:
        found = await self.raw.until(
            lambda one: one.kind == BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE and one.body.consumer_id == consumer_id
        )
        body: pb.ScalableConsumerAssignment = found.body.assignment
        return body


@asynccontextmanager
async def layout_client(node: Node, *, extensions: bool = True) -> AsyncIterator[LayoutClient]:
    async with RawClient(node.service_url) as raw:
        await raw.hello(extensions=extensions)
        yield LayoutClient(raw)


def ids(assignment: Any) -> list[int]:
    return sorted(one.segment_id for one in assignment.segments)
