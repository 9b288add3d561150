"""Clients that send sound commands in no sensible order: the broker never stumbles (no fault in its log), answers
others meanwhile, and holds nothing once they are gone."""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.topic.topic import Topic
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.node.node import Node
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, message_id, position_of
from tests.support.in_memory.node import client_of, serving
from tests.support.traffic.raw_client import RawClient

SEEDS = [int(text) for text in os.environ.get("ANABRANCH_CHAOS_SEEDS", "1 2 3 4").split()]
STEPS = 1_500
TOPICS = [f"persistent://public/default/{name}" for name in "ab"] + ["non-persistent://public/default/n"]
TYPES = [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover,
         pb.CommandSubscribe.Key_Shared]  # fmt: skip


class Chaos:
    """One client of the mad kind."""

    def __init__(self, client: RawClient, dice: random.Random, delivered: Counter[int]) -> None:
        self.client, self.dice, self.delivered = client, dice, delivered
        self.request = 10_000
        self.weights = {
            self.producer: 2, self.send: 10, self.subscribe: 3, self.flow: 6, self.ack: 6, self.redeliver: 2,
            self.seek: 0.3, self.question: 1, self.close: 0.5, self.unsubscribe: 0.2,
        }  # fmt: skip
        self.seen: list[Position] = [EARLIEST, LATEST, Position(1, 0), Position(10**9, 5), Position(-5, -5)]

    def __call__(self) -> None:
        (step,) = self.dice.choices(list(self.weights), list(self.weights.values()))
        step()
        for one in self.client.take_all():
            self.delivered[one.kind] += 1
            if one.kind == BaseCommand.MESSAGE:
                self.seen.append(position_of(one.body.message_id))

    def _id(self) -> int:
        return self.dice.randrange(4)

    def _ask(self, kind: int, **fields: Any) -> None:
        self.request += 1
        self.client.tell(kind, request_id=self.request, **fields)

    def producer(self) -> None:
        dice = self.dice
        self._ask(
            BaseCommand.PRODUCER,
            topic=dice.choice(TOPICS),
            producer_id=self._id(),
            producer_name=dice.choice(["", "", "p", "q"]) or None,
            epoch=dice.randrange(3),
            producer_access_mode=dice.choice([pb.Shared] * 20 + [ pb.Exclusive, pb.WaitForExclusive,
                                              pb.ExclusiveWithFencing]),
            topic_epoch=dice.choice([None, 0, 1, 2**63]),
            initial_subscription_name=dice.choice([None, None, "initial"]),
        )  # fmt: skip

    def send(self) -> None:
        for producer_id in filter(self.client.knows_producer, range(4)):
            self.client.send(self.dice.randrange(20), b"x" * self.dice.choice([0, 10, 5_000]), producer_id)

    def subscribe(self) -> None:
        dice = self.dice
        durable = dice.random() < 0.8
        self._ask(
            BaseCommand.SUBSCRIBE,
            topic=dice.choice(TOPICS),
            subscription=dice.choice(["s", "t"]),
            subType=dice.choice(TYPES),
            consumer_id=self._id(),
            priority_level=dice.randrange(2),
            durable=durable,
            start_message_id=None if durable else message_id(dice.choice(self.seen)),
            initialPosition=dice.choice([pb.CommandSubscribe.Latest, pb.CommandSubscribe.Earliest]),
            consumer_epoch=dice.choice([None, 0, 3]),
            start_message_rollback_duration_sec=dice.choice([0, 0, 0, 1, 2**63]),
        )

    def flow(self) -> None:
        self.client.flow(self.dice.choice([0, 1, 10, 1_000]), self._id())

    def ack(self) -> None:
        dice = self.dice
        cumulative = dice.random() < 0.3
        some = dice.choices(self.seen, k=1 if cumulative else dice.randrange(4))
        self.client.ack(
            *some,
            consumer_id=self._id(),
            ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
            request_id=dice.choice([None, self.request]),
        )

    def redeliver(self) -> None:
        some = [message_id(p) for p in self.dice.choices(self.seen, k=self.dice.randrange(3))]
        epoch = self.dice.choice([None, 1, 5])
        self.client.tell(
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            consumer_id=self._id(),
            message_ids=some,
            consumer_epoch=epoch,
        )

    def seek(self) -> None:
        where: dict[str, Any] = self.dice.choice(
            [{"message_id": message_id(self.dice.choice(self.seen))}, {"message_publish_time": 5}, {}]
        )
        self._ask(BaseCommand.SEEK, consumer_id=self._id(), **where)

    def question(self) -> None:
        kind = self.dice.choice([BaseCommand.GET_LAST_MESSAGE_ID, BaseCommand.CONSUMER_STATS])
        self._ask(kind, consumer_id=self._id())

    def close(self) -> None:
        if self.dice.random() < 0.5:
            self._ask(BaseCommand.CLOSE_PRODUCER, producer_id=(producer_id := self._id()))
            self.client.forget_producer(producer_id)
        else:
            self._ask(BaseCommand.CLOSE_CONSUMER, consumer_id=self._id())

    def unsubscribe(self) -> None:
        self._ask(BaseCommand.UNSUBSCRIBE, consumer_id=self._id(), force=self.dice.random() < 0.5)


async def administrator(node: Node, dice: random.Random) -> None:
    """From time to time a topic is deleted, unloaded or terminated while clients use it."""
    services = node.services
    topic = dice.choice(list(services.topics) or [None])
    if topic is None:
        return
    with contextlib.suppress(Exception):  # refusals are fine; faults are found in the log
        match dice.randrange(4):
            case 0:
                await services.topics.close(topic.name)
            case 1:
                await services.topics.delete(topic.name, force=True)
            case 2:
                assert isinstance(topic, Topic)
                await topic.deduplication.switch(dice.random() < 0.5)
            case 3:
                await topic.unsubscribe("s", force=True)


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_order_of_commands_makes_the_broker_stumble(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    dice, delivered = random.Random(seed), Counter[int]()
    limits: dict[str, Any] = {"unacked_per_consumer_max": 20, "probe_seconds": 0.05, "key_shared_lookahead_max": 5}
    async with serving(tmp_path, **limits) as node, client_of(node) as judge:
        async with contextlib.AsyncExitStack() as stack:
            clients = [Chaos(await stack.enter_async_context(client_of(node)), dice, delivered) for _ in range(3)]
            for step in range(STEPS):
                number = dice.randrange(len(clients))
                if clients[number].client.is_closed or dice.random() < 0.01:
                    await clients[number].client.__aexit__(None, None, None)
                    clients[number] = Chaos(await stack.enter_async_context(client_of(node)), dice, delivered)
                clients[number]()
                if dice.random() < 0.3:
                    await judge.barrier()
                if step % 50 == 49:
                    await administrator(node, dice)
                    await judge.barrier()
        await judge.barrier()
        for _ in range(200):
            if not any(topic.producers or not topic.is_idle for topic in node.services.topics):
                break
            await judge.barrier()
        for topic in node.services.topics:
            assert not topic.producers, "a producer without its client"
            assert topic.is_idle, "a consumer without its client"
    assert delivered[BaseCommand.SEND_RECEIPT], "this was no test"
    faults = [one for one in caplog.records if one.exc_info or one.name == "asyncio"]
    assert not [one for one in faults if one.levelno >= logging.ERROR], f"seed {seed}"
