"""Invalid input raises an error for its caller only; other messages of the batch are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import anabranch
from anabranch import Batching, Client
from anabranch.client.errors import BadOption, BadServiceUrl, ClientError
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
