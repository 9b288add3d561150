"""A consumer's process stands still past its grace, its segment becomes another's, and it wakes up where it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.broker.errors import ConsumerFenced
from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.broker.subscription.consumer import SubscribeRequest
from anabranch.controller.interface import AssignmentListener, Registration
from anabranch.controller.service import ScalableTopicService
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from tests.support.in_memory.node import client_of
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, layout_client, plain_settings, service_of

pytestmark = pytest.mark.slow

TOPIC = "topic://public/default/orders"
RETRY_DELAYS = 30.0
COUNT = 10


@asynccontextmanager
async def child(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = [
        sys.executable,
        "-m",
        "tests.support.processes.stream_consumer_child",
        url,
        TOPIC,
        "s",
        "old",
        str(COUNT),
    ]
    process = await asyncio.create_subprocess_exec(
        *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), RETRY_DELAYS)).decode().strip()


async def test_frozen_replaced_consumer_moves_no_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    check = OwnedSegment._check_admitted

    def noted(self: OwnedSegment, request: SubscribeRequest) -> None:
        try:
            check(self, request)
        except ConsumerFenced:
            refused.append(request.spec.name)
            raise

    may_register, register = asyncio.Event(), ScalableTopicService.register
    may_register.set()

    async def registered(
        self: ScalableTopicService, topic: TopicName, request: Registration, listener: AssignmentListener
    ) -> Any:
        if request.consumer == "old":  # the news that its segment is another's come late
            await may_register.wait()
        return await register(self, topic, request, listener)

    monkeypatch.setattr(OwnedSegment, "_check_admitted", noted)
    monkeypatch.setattr(ScalableTopicService, "register", registered)
    settings = replace(plain_settings(tmp_path), scalable_topics=ScalableTopicSettings(session_grace_seconds=0.3))
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node(settings))
        await admin_of(node).create(TOPIC, 1, {})
        old = await stack.enter_async_context(child(node.service_url))
        async with anabranch.connect(node.service_url) as client, client.producer(TOPIC) as producer:
            for number in range(COUNT):
                await producer.send(str(number).encode(), key="k")
        assert [await line(old) for _ in range(COUNT)] == [f"received {number}" for number in range(COUNT)]

        leader = service_of(node).controllers.leading(TopicName.parse(TOPIC))
        assert leader is not None
        members = leader.members["s"]
        (segment,) = [one.topic for topic in node.services.topics if (one := segment_of(topic)) is not None]
        os.kill(old.pid, signal.SIGSTOP)
        may_register.clear()
        (reader,) = segment.subscriptions["s"].consumers
        reader.peer.abort()  # type: ignore[attr-defined]  # as after an unanswered PING
        for link in list(members._links.values()):
            link.listener._connection.abort()  # type: ignore[attr-defined]  # the session's, likewise
        await until(lambda: not members.group.assignment.members)

        async with layout_client(node) as session, client_of(node, extensions=True) as new:
            given = (await session.register(TOPIC, "s", "new")).assignment
            grant = {"generation": given.generation, "incarnation": given.incarnation}
            answer = await new.subscribe(
                given.segments[0].segment_topic,
                consumer_name="new-seg-0",
                subType=pb.CommandSubscribe.Exclusive,
                permits=COUNT,
                **grant,
            )
            assert answer.kind == BaseCommand.SUCCESS
            places = [await new.messages(1) for _ in range(COUNT)]
            new.ack(places[2][0], ack_type=pb.CommandAck.Cumulative)
            new.tell(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=77)
            await new.until(lambda one: getattr(one.body, "request_id", None) == 77)
            cursor = segment.subscriptions["s"].cursor
            assert cursor.mark_delete == places[2][0]

            # No consumer is attached at this moment. The segment is still assigned to `new`.
            os.kill(old.pid, signal.SIGCONT)
            assert old.stdin is not None
            old.stdin.write(b"go on\n")
            assert await line(old) == "acknowledged"
            await until(lambda: "old-seg-0" in refused)
            may_register.set()
            await until(lambda: "old" in members.group.sessions.names)  # it is a member again, without segments
            assert cursor.mark_delete == places[2][0]
            assert not segment.subscriptions["s"].consumers
            assert refused == ["old-seg-0"]  # once: it does not retry

            answer = await session.raw.ask(BaseCommand.SCALABLE_TOPIC_LEAVE, consumer_id=1)
            assert answer.kind == BaseCommand.SUCCESS
            assert await line(old) == "received 3"  # its turn again, from where `new` was
            assert refused == ["old-seg-0"]
