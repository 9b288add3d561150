"""Consumers that come and go at random while messages flow: nothing is lost, order holds where it is promised."""

from __future__ import annotations

import random
import time
from typing import Any

import pulsar
import pytest

from tests.support.traffic.stock_calls import EARLIEST, FAILOVER, KEY_SHARED, SHARED, receive_rest

KEYS = 12
MESSAGES = 1_200


class Crowd:
    """Up to five consumers of one subscription; each step one joins, one leaves, some receive, a few are refused."""

    def __init__(self, client: Any, topic: str, kind: Any, dice: random.Random) -> None:
        self._client, self._topic, self._kind, self._dice = client, topic, kind, dice
        self._members: list[Any] = []
        self.leavers = 0  # closed while there was still work
        self.done: list[Any] = []  # acknowledged, in order of acknowledgement

    def join(self) -> None:
        self._members.append(
            self._client.subscribe(
                self._topic,
                "s",
                self._kind,
                initial_position=EARLIEST,
                receiver_queue_size=self._dice.choice([1, 10, 100]),
                negative_ack_redelivery_delay_ms=100,
            )
        )

    def leave(self) -> None:
        """Close one consumer; its unacknowledged messages are redelivered."""
        self._members.pop(self._dice.randrange(len(self._members))).close()
        self.leavers += 1

    def work(self, *, refusals: bool) -> None:
        for member in list(self._members):
            for message in receive_rest(member, ack=False, quiet_ms=5, limit=self._dice.randint(1, 8)):
                if refusals and self._dice.random() < 0.05:
                    member.negative_acknowledge(message)
                else:
                    member.acknowledge(message)
                    self.done.append(message)

    def step(self, *, refusals: bool) -> None:
        if len(self._members) < 5 and self._dice.random() < 0.3:
            self.join()
        if len(self._members) > 1 and self._dice.random() < 0.3:
            self.leave()
        self.work(refusals=refusals)


def publish(client: Any, topic: str) -> dict[str, list[int]]:
    producer = client.create_producer(topic, block_if_queue_full=True)
    expected: dict[str, list[int]] = {}
    for number in range(MESSAGES):
        key = f"k{number % KEYS}"
        producer.send_async(str(number).encode(), lambda result, message_id: None, partition_key=key)
        expected.setdefault(key, []).append(number)
    producer.flush()
    return expected


def run(crowd: Crowd, *, refusals: bool, within_s: float = 40.0) -> list[int]:
    deadline = time.monotonic() + within_s
    crowd.join()
    while len({message.data() for message in crowd.done}) < MESSAGES:
        crowd.step(refusals=refusals)
        assert time.monotonic() < deadline, f"{len(crowd.done)} of {MESSAGES} within {within_s} s"
    assert crowd.leavers >= 10, "too calm a run to prove anything"
    return [int(message.data()) for message in crowd.done]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_key_shared_keeps_order_per_key(client: pulsar.Client, topic: str, seed: int) -> None:
    expected = publish(client, topic)
    crowd = Crowd(client, topic, KEY_SHARED, random.Random(seed))
    run(crowd, refusals=False)
    for key, numbers in expected.items():
        mine = [int(message.data()) for message in crowd.done if message.partition_key() == key]
        assert mine == numbers, f"seed {seed}, {key}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_failover_keeps_order(client: pulsar.Client, topic: str, seed: int) -> None:
    publish(client, topic)
    assert run(Crowd(client, topic, FAILOVER, random.Random(seed)), refusals=False) == list(range(MESSAGES))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)
def test_nothing_is_lost_or_doubled_with_refusals(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType, seed: int
) -> None:
    publish(client, topic)
    done = run(Crowd(client, topic, kind, random.Random(seed)), refusals=True)
    assert sorted(done) == list(range(MESSAGES))
