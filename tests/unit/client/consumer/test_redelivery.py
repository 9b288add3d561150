"""When messages of a queue consumer are redelivered, and where dead letters go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import DeadLetter, Message, MessageId, ProcessingTimeout
from anabranch.client.consumer.dead_letters import DeadLetters, dead_letter_topic, provenance
from anabranch.client.consumer.redelivery import Redelivery
from anabranch.client.errors import BadOption, Unreachable
from anabranch.client.messages.message import Origin


def one(n: int) -> MessageId:
    return MessageId("t", 0, n)


def test_nacked_messages_are_due_in_order_unless_acknowledged() -> None:
    redelivery: Redelivery[str] = Redelivery()
    redelivery.handed_out("a", one(0), 0.0)
    assert redelivery.next_due() is None, "without a timeout nothing is forgotten"
    assert redelivery.nacked("a", one(1), 5.0) and redelivery.nacked("b", one(2), 3.0)
    assert redelivery.nacked("a", one(3), 4.0)
    redelivery.done("a", one(3))
    assert redelivery.next_due() == 3.0
    assert redelivery.due(2.9) == {}
    assert redelivery.due(5.0) == {"b": [one(2)], "a": [one(1)]}
    assert redelivery.next_due() is None and not len(redelivery)


def test_processing_timeout_applies_unless_nacked_first() -> None:
    redelivery: Redelivery[str] = Redelivery(10.0)
    redelivery.handed_out("a", one(1), 0.0)
    redelivery.handed_out("a", one(2), 0.0)
    redelivery.nacked("a", one(2), 60.0)
    assert redelivery.due(10.0) == {"a": [one(1)]}
    redelivery.forget("a")
    assert redelivery.due(100.0) == {}


def test_close_takes_the_nacks_and_leaves_the_timeouts() -> None:
    redelivery: Redelivery[str] = Redelivery(10.0)
    for number in range(5):
        redelivery.handed_out("a", one(number), 0.0)
    for number in range(4):
        redelivery.nacked("a", one(number), 60.0)
    redelivery.done("a", one(0))
    redelivery.handed_out("a", one(1), 1.0)  # it came again
    assert {source: set(ones) for source, ones in redelivery.take_nacks().items()} == {"a": {one(2), one(3)}}
    assert redelivery.take_nacks() == {}
    assert redelivery.due(100.0) == {"a": [one(4), one(1)]}


def test_nacks_above_the_limit_are_redelivered_at_once() -> None:
    redelivery: Redelivery[str] = Redelivery(pending_max=2)
    assert [redelivery.nacked("a", one(n), 1.0) for n in (1, 2, 3, 2)] == [True, True, False, True]


@given(steps=st.lists(st.tuples(st.sampled_from(["hand", "nack", "ack", "tick"]), st.integers(0, 9)), max_size=100))
def test_every_unacknowledged_message_is_due_once(steps: list[tuple[str, int]]) -> None:
    redelivery: Redelivery[str] = Redelivery(5.0)
    model: dict[int, float] = {}
    now = 0.0
    for name, n in steps:
        if name == "hand":
            redelivery.handed_out("c", one(n), now)
            model[n] = now + 5.0
        elif name == "nack":
            redelivery.nacked("c", one(n), now + n)
            model[n] = now + n
        elif name == "ack":
            redelivery.done("c", one(n))
            model.pop(n, None)
        else:
            now += n / 2
            due = {message.entry for message in redelivery.due(now).get("c", [])}
            assert due == {n for n, at in model.items() if at <= now}
            model = {n: at for n, at in model.items() if at > now}
        assert redelivery.next_due() == min(model.values(), default=None)


@pytest.mark.parametrize(
    ("source", "named", "expected"),
    [
        ("topic://a/b/c", None, "topic://a/b/c-DLQ"),
        ("persistent://a/b/c", None, "persistent://a/b/c-s-DLQ"),
        ("topic://a/b/c", "persistent://x/y/z", "persistent://x/y/z"),
    ],
)
def test_dead_letter_topic_names(source: str, named: str | None, expected: str) -> None:
    assert dead_letter_topic(DeadLetter(max_redeliveries=1, topic=named), source, "s") == expected


def message(count: int, properties: dict[str, str] | None = None) -> Message:
    return Message(Origin("topic://a/b/c", 1, 2, redelivery_count=count), -1, b"x", "k", properties or {}, None, 0)


def test_dead_letter_names_its_first_origin() -> None:
    assert provenance(message(3, {"own": "1", "REAL_TOPIC": "first"}), "s") == {
        "own": "1",
        "REAL_TOPIC": "first",
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": "1:2",
    }


async def test_failed_dead_letter_producer_is_opened_again() -> None:
    opened: list[str] = []

    class Sent:
        async def send(self, value: object, **more: object) -> None:
            assert value == b"x"

        async def close(self, timeout: float | None = None) -> None:
            opened.append(f"closed within {timeout}")

    async def opener(topic: str) -> Sent:
        opened.append(topic)
        if len(opened) == 1:
            raise Unreachable("not now")
        return Sent()

    dead_letters = DeadLetters(DeadLetter(max_redeliveries=2), "s", opener)
    assert [dead_letters.takes(message(count)) for count in (0, 2, 3)] == [False, False, True]
    assert not await dead_letters.send(message(3))
    assert await dead_letters.send(message(3)) and await dead_letters.send(message(3))
    await dead_letters.close(0.5)
    assert opened == ["topic://a/b/c-DLQ", "topic://a/b/c-DLQ", "closed within 0.5"]


def test_invalid_policies_are_refused() -> None:
    with pytest.raises(BadOption):
        DeadLetter(max_redeliveries=-1)
    with pytest.raises(BadOption):
        ProcessingTimeout(timeout=0)
