"""Invalid input raises an error for its caller only; other messages of the batch are sent."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import anabranch
from anabranch import Batching, Client
from anabranch.client.errors import BadOption, BadServiceUrl, ClientError, NotAwaited
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec import BadColumn
from anabranch.protocol.commands import BaseCommand
from tests.support.in_memory.fake_broker import RETRY_DELAYS, FakeBroker

TOPIC = "persistent://public/default/x"
HALF = "\ud800"  # of a character
BAD: list[dict[str, Any]] = [
    {"properties": {"a": 1}},
    {"properties": {"a": None}},
    {"properties": {"a": b"x"}},
    {"properties": {1: "x"}},
    {"properties": {"a": HALF}},
    {"properties": {HALF: "a"}},
    {"properties": [("a", "b")]},
    {"key": HALF},
    {"key": 1},
    {"sequence_id": -1},
    {"sequence_id": "1"},
    {"sequence_id": 1 << 63},
    {"event_time": -1},
    {"event_time": 1 << 63},
    {"event_time": 1.5},
    {"sequence_id": True},
    {"deliver_after": "5s"},
    {"deliver_after": -1},
    {"deliver_after": float("nan")},
    {"deliver_after": float("inf")},
    {"deliver_at": 1 << 63},
]


async def obliging(broker: FakeBroker) -> None:
    while True:
        received = await broker.expect(BaseCommand.PRODUCER, BaseCommand.SEND, BaseCommand.CLOSE_PRODUCER)
        if received.kind == BaseCommand.PRODUCER:
            received.answer(BaseCommand.PRODUCER_SUCCESS, producer_name="p", last_sequence_id=-1)
        elif received.kind == BaseCommand.CLOSE_PRODUCER:
            received.answer(BaseCommand.SUCCESS)
        else:
            producer_id, sequence_id = received.body.producer_id, received.body.sequence_id
            place = pb.MessageIdData(ledgerId=1, entryId=sequence_id)
            received.connection.send_command(
                BaseCommand.SEND_RECEIPT, producer_id=producer_id, sequence_id=sequence_id, message_id=place
            )


@pytest.fixture
async def sdk() -> AsyncIterator[Client]:
    async with FakeBroker() as broker:
        playing = asyncio.ensure_future(obliging(broker))
        async with anabranch.connect(broker.url, operation_timeout=RETRY_DELAYS) as client:
            yield client
        playing.cancel()
        await asyncio.wait([playing])


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: ascii(bad))
@pytest.mark.parametrize("batching", [None, Batching(max_messages=3)], ids=["alone", "batched"])
async def test_message_that_cannot_be_encoded_fails_alone(
    sdk: Client, bad: dict[str, Any], batching: Batching | None
) -> None:
    """Found only when its batch is written, it would fail the others, and the producer with them."""
    async with sdk.producer(TOPIC, batching=batching) as producer:
        before = producer.send_nowait(b"before", key="k")
        with pytest.raises(BadOption):
            producer.send_nowait(b"bad", **bad)
        with pytest.raises(BadOption):
            await producer.send(b"bad", **bad)
        after = producer.send_nowait(b"after", properties={"ä/%": "ö/%"}, key="ü/%")
        await producer.flush(timeout=RETRY_DELAYS)
        assert [one.exception() for one in (before, after)] == [None, None]
        assert producer.pending_bytes == 0


@pytest.mark.parametrize("keys", [["k", 1], ["k", HALF]])
async def test_bulk_that_cannot_be_encoded_sends_nothing(sdk: Client, keys: list[Any]) -> None:
    async with sdk.producer(TOPIC) as producer:
        with pytest.raises((BadColumn, ClientError)):
            await producer.send_batch([b"a", b"b"], keys, timeout=RETRY_DELAYS)
        assert producer.pending_bytes == 0
        assert len(await producer.send_batch([b"a", b"b"], ["k", "ü"], timeout=RETRY_DELAYS)) == 2


@pytest.mark.parametrize(
    "url",
    [
        f"pulsar://{'a' * 70}:6650",
        "pulsar://a..b:6650",
        f"pulsar://{HALF}:6650",
        "pulsar://a\x00b:6650",
        "pulsar://[::1",
    ],
    ids=ascii,
)
def test_invalid_host_is_refused_at_once(url: str) -> None:
    with pytest.raises(BadServiceUrl):
        anabranch.connect(url)


async def test_timed_out_flushes_leave_nothing_behind(sdk: Client) -> None:
    async with sdk.producer(TOPIC, batching=Batching(max_delay=60.0)) as producer:
        for _ in range(3):
            producer.send_nowait(b"x")
            with pytest.raises(ClientError):
                await producer.flush(timeout=0)
        assert producer._flushes == []
        await producer.flush(timeout=RETRY_DELAYS)


CONNECT: Any = anabranch.connect
BATCHING: Any = Batching
WRONG_CALLS: list[tuple[str, Callable[[Any], object]]] = [
    ("topic", lambda client: client.producer(5)),
    ("topic", lambda client: client.producer(None)),
    ("topic", lambda client: client.queue_consumer(5, subscription="s")),
    ("topic", lambda client: client.queue_consumer([TOPIC, 5], subscription="s")),
    ("subscription", lambda client: client.stream_consumer(TOPIC, subscription=5)),
    ("prefetch", lambda client: client.queue_consumer(TOPIC, subscription="s", prefetch="x")),
    ("nack_delay", lambda client: client.queue_consumer(TOPIC, subscription="s", nack_delay="5s")),
    ("dead_letter", lambda client: client.queue_consumer(TOPIC, subscription="s", dead_letter=5)),
    ("name", lambda client: client.producer(TOPIC, name=5)),
    ("batching", lambda client: client.producer(TOPIC, batching=5)),
    ("send_timeout", lambda client: client.producer(TOPIC, send_timeout="x")),
    ("initial_sequence_id", lambda client: client.producer(TOPIC, initial_sequence_id=1 << 63)),
    ("pending_bytes_max", lambda client: client.producer(TOPIC, pending_bytes_max="x")),
    ("schema", lambda client: client.producer(TOPIC, schema=5)),
    ("properties", lambda client: client.producer(TOPIC, properties={"a": 5})),
    ("timeout", lambda client: client.producer(TOPIC, timeout="x")),
    ("start", lambda client: client.checkpoint_consumer(TOPIC, start="earliest")),
    ("url", lambda client: CONNECT(5)),
    ("token", lambda client: CONNECT("pulsar://x", token=5)),
    ("tls", lambda client: CONNECT("pulsar://x", tls="x")),
    ("connection", lambda client: CONNECT("pulsar://x", connection=5)),
    ("operation_timeout", lambda client: CONNECT("pulsar://x", operation_timeout="5")),
    ("auth", lambda client: CONNECT("pulsar://x", auth="x")),
    ("tracing", lambda client: CONNECT("pulsar://x", tracing="x")),
    ("priority", lambda client: client.queue_consumer(TOPIC, subscription="s", priority="x")),
    ("restore", lambda client: client.checkpoint_consumer(TOPIC, restore=b"x")),
    ("Batching.max_delay", lambda client: BATCHING(max_delay="5ms")),
]


@pytest.mark.parametrize(("name", "call"), WRONG_CALLS, ids=lambda one: one if isinstance(one, str) else "")
async def test_argument_of_a_wrong_type_is_named_at_the_call(
    sdk: Client, name: str, call: Callable[[Any], object]
) -> None:
    with pytest.raises(BadOption, match=name):
        call(sdk)


async def test_values_of_a_bulk_must_have_a_length(sdk: Client) -> None:
    values: Any = (5, iter([b"x"]))
    async with sdk.producer(TOPIC) as producer:
        for wrong in values:
            with pytest.raises(BadOption, match="values must be a list"):
                await producer.send_batch(wrong)


async def test_sequence_id_beyond_the_limit_says_what_the_limit_is(sdk: Client) -> None:
    wrong: Any = "5s"
    async with sdk.producer(TOPIC) as producer:
        with pytest.raises(BadOption, match="from 0 to 9223372036854775807"):
            await producer.send(b"x", sequence_id=1 << 63)
        with pytest.raises(BadOption, match="timeout must be a number of seconds"):
            await producer.send(b"x", timeout=wrong)


async def test_forgotten_await_says_what_to_write(sdk: Client) -> None:
    opening: Any = anabranch.connect("pulsar://localhost:6650")
    with pytest.raises(NotAwaited, match=r"`client = await anabranch.connect\(…\)`"):
        opening.producer(TOPIC)
    producer: Any = sdk.producer(TOPIC)
    with pytest.raises(NotAwaited, match=r"`async with client.producer\(…\) as producer:`"):
        producer.send_nowait(b"x")
    with pytest.raises(NotAwaited, match="instead of `async with`"), producer:
        pass
    consumer: Any = sdk.stream_consumer(TOPIC, subscription="s")
    with pytest.raises(NotAwaited, match="async for"):
        async for _ in consumer:
            pass
    assert not hasattr(consumer, "receive") and "not open" in repr(consumer)
    assert copy.copy(consumer) is not consumer
