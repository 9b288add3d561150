"""Errors of a broker while a producer or consumer is opened: every error number at every request.

Temporary errors are retried within the operation timeout; the others are raised at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import anabranch
from anabranch import Backoff, Checkpoint, Client, ConnectionPolicy
from anabranch.client.errors import Refused, TimedOut, TopicNotFound, refusal
from anabranch.model.layout import Layout
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from tests.support.in_memory.fake_broker import RETRY_DELAYS, FakeBroker, send_layout
from tests.support.models.layout_histories import split

TOPIC = "persistent://public/default/x"
SCALABLE = "topic://public/default/x"
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.001, maximum=0.01))
Opened = Callable[[Client], Any]
KINDS: dict[str, tuple[int, Opened]] = {
    "producer": (BaseCommand.PRODUCER, lambda client: client.producer(TOPIC)),
    "queue": (BaseCommand.SUBSCRIBE, lambda client: client.queue_consumer(TOPIC, subscription="s")),
    "stream": (BaseCommand.SUBSCRIBE, lambda client: client.stream_consumer(TOPIC, subscription="s")),
    "reader": (BaseCommand.SUBSCRIBE, lambda client: client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest())),
}
PASSES = {
    ServerError.UnknownError,
    ServerError.MetadataError,
    ServerError.PersistenceError,
    ServerError.ServiceNotReady,
    ServerError.TooManyRequests,
    ServerError.ProducerBlockedQuotaExceededError,
    ServerError.ProducerBlockedQuotaExceededException,
}
LOOKING = (
    BaseCommand.SCALABLE_TOPIC_LOOKUP,
    BaseCommand.SCALABLE_TOPIC_CLOSE,
    BaseCommand.SUBSCRIBE,
    BaseCommand.FLOW,
)
BUSY = {
    ServerError.ProducerBusy,
    ServerError.ConsumerBusy,
}  # temporary, too, but raised when a producer or consumer is opened


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def sdk(broker: FakeBroker) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.url, connection=QUICK, operation_timeout=RETRY_DELAYS) as client:
        yield client
        broker.cut()


async def welcome(broker: FakeBroker) -> None:
    """Accepts every request."""
    while True:
        received = await broker.expect(
            BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE, BaseCommand.FLOW, BaseCommand.CLOSE_CONSUMER
        )
        if received.kind == BaseCommand.PRODUCER:
            received.answer(BaseCommand.PRODUCER_SUCCESS, producer_name="p", last_sequence_id=-1)
        elif received.kind != BaseCommand.FLOW:
            received.answer(BaseCommand.SUCCESS)


async def opened(broker: FakeBroker, opening: Any) -> None:
    welcoming = asyncio.ensure_future(welcome(broker))
    try:
        await opening
    finally:
        welcoming.cancel()
        await asyncio.wait([welcoming])


@pytest.mark.parametrize("number", ServerError.values(), ids=ServerError.Name)
@pytest.mark.parametrize("question", ["partitions", "lookup", "attach"])
@pytest.mark.parametrize("kind", KINDS)
async def test_temporary_refusals_are_retried_and_others_raised(
    broker: FakeBroker, sdk: Client, kind: str, question: str, number: pb.ServerError
) -> None:
    attach, opener = KINDS[kind]
    at = {"partitions": BaseCommand.PARTITIONED_METADATA, "lookup": BaseCommand.LOOKUP, "attach": attach}[question]
    broker.refusals[at] = 3 * [number]
    is_fenced = number == ServerError.ConsumerAssignError and at == BaseCommand.SUBSCRIBE  # ranges are given out anew
    if number in PASSES or is_fenced or (number in BUSY and question == "partitions"):
        await opened(broker, opener(sdk))
        assert broker.refusals[at] == []
    else:
        with pytest.raises(type(refusal(number, ""))) as caught:
            await opened(broker, opener(sdk))
        assert caught.value.server_error == number and len(broker.refusals[at]) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_refusal_past_the_deadline_is_raised_with_its_reason(broker: FakeBroker, kind: str) -> None:
    attach, opener = KINDS[kind]
    broker.refusals[attach] = 100_000 * [ServerError.UnknownError]
    async with anabranch.connect(broker.url, connection=QUICK, operation_timeout=0.1) as client:
        with pytest.raises(TimedOut, match="UnknownError") as caught:
            await opener(client)
        assert isinstance(caught.value.__cause__, Refused)
        broker.cut()


async def test_send_refused_without_reason_is_resent_in_order(broker: FakeBroker, sdk: Client) -> None:
    welcoming = asyncio.ensure_future(welcome(broker))
    producer = await sdk.producer(TOPIC, batching=None)
    welcoming.cancel()
    await asyncio.wait([welcoming])
    futures = [producer.send_nowait(b"%d" % n) for n in range(3)]
    sends = [await broker.expect(BaseCommand.SEND) for _ in range(3)]
    first = sends[0]
    first.connection.send_command(
        BaseCommand.SEND_ERROR,
        producer_id=first.body.producer_id,
        sequence_id=0,
        error=ServerError.UnknownError,
        message="",
    )
    (await broker.expect(BaseCommand.CLOSE_PRODUCER)).answer(BaseCommand.SUCCESS)
    again = await broker.expect(BaseCommand.PRODUCER)
    again.answer(BaseCommand.PRODUCER_SUCCESS, producer_name="p", last_sequence_id=-1)
    for n in range(3):
        received = await broker.expect(BaseCommand.SEND)
        assert (received.body.producer_id, received.body.sequence_id) == (again.body.producer_id, n)
        place = pb.MessageIdData(ledgerId=1, entryId=n)
        received.connection.send_command(
            BaseCommand.SEND_RECEIPT, producer_id=received.body.producer_id, sequence_id=n, message_id=place
        )
    assert [(await future).entry for future in futures] == [0, 1, 2]


@pytest.mark.parametrize("is_empty", [True, False])
async def test_reader_of_empty_sealed_segment_asks_for_its_end(is_empty: bool) -> None:
    """Pulsar 5.0.0-M1 refuses every reader of a segment that was sealed empty, once it was unloaded."""
    layout = split(Layout.initial(1, now_ms=0), 0)
    async with (
        FakeBroker(supports_scalable_topics=True) as broker,
        anabranch.connect(broker.url, connection=QUICK, operation_timeout=RETRY_DELAYS) as client,
    ):
        opening = asyncio.ensure_future(_reader(client))
        send_layout(await broker.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP), layout, SCALABLE)
        refused = await broker.expect(BaseCommand.SUBSCRIBE)
        assert refused.body.topic.endswith("0000-ffff-0")
        refused.answer(BaseCommand.ERROR, error=ServerError.UnknownError, message="")
        probe = await broker.expect(BaseCommand.SUBSCRIBE)
        assert probe.body.start_message_id.ledgerId == 2**63 - 1
        probe.answer(BaseCommand.SUCCESS)
        asked = await broker.expect(BaseCommand.GET_LAST_MESSAGE_ID)
        end = pb.MessageIdData(ledgerId=5, entryId=2**64 - 1 if is_empty else 3)
        asked.answer(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, last_message_id=end)
        topics: set[str] = set()
        while len(topics) < (2 if is_empty else 1):
            received = await broker.expect(
                BaseCommand.SUBSCRIBE,
                BaseCommand.FLOW,
                BaseCommand.CLOSE_CONSUMER,
                BaseCommand.GET_LAST_MESSAGE_ID,
            )
            if received.kind == BaseCommand.SUBSCRIBE:
                assert received.body.start_message_id.ledgerId == 2**64 - 1, "from its beginning"
                topics.add(received.body.topic)
                received.answer(BaseCommand.SUCCESS)
            elif received.kind == BaseCommand.GET_LAST_MESSAGE_ID:
                received.answer(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, last_message_id=end)
            elif received.kind == BaseCommand.CLOSE_CONSUMER:
                received.answer(BaseCommand.SUCCESS)
        await opening
        assert {topic.endswith("0000-ffff-0") for topic in topics} == {not is_empty}
        broker.cut()


async def _reader(client: Client) -> Any:
    return await client.checkpoint_consumer(SCALABLE, start=Checkpoint.earliest())


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "foreign"])
@pytest.mark.parametrize("is_there", [True, False])
async def test_not_found_is_final_at_once_only_for_anabranch_brokers(is_ours: bool, is_there: bool) -> None:
    """Pulsar 5.0.0-M1 says it of every topic that is being unloaded."""
    async with (
        FakeBroker(supports_scalable_topics=True, anabranch_extensions=is_ours) as broker,
        anabranch.connect(broker.url, connection=QUICK, operation_timeout=RETRY_DELAYS) as client,
    ):
        refused = 0

        async def played() -> None:
            nonlocal refused
            while True:
                received = await broker.expect(*LOOKING)
                if received.kind == BaseCommand.SUBSCRIBE:
                    received.answer(BaseCommand.SUCCESS)
                elif received.kind == BaseCommand.SCALABLE_TOPIC_LOOKUP and is_there and refused == 3:
                    send_layout(received, Layout.initial(1, now_ms=0), SCALABLE)
                elif received.kind == BaseCommand.SCALABLE_TOPIC_LOOKUP:
                    refused += 1
                    received.connection.send_command(
                        BaseCommand.SCALABLE_TOPIC_UPDATE,
                        session_id=received.body.session_id,
                        error=ServerError.TopicNotFound,
                        message="unloaded",
                    )

        playing = asyncio.ensure_future(played())
        if is_there and not is_ours:
            await _reader(client)
        else:
            with pytest.raises(TopicNotFound):
                await _reader(client)
            assert (refused == 1) == is_ours
        playing.cancel()
        await asyncio.wait([playing])
        broker.cut()
