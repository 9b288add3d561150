"""Seals by brokers without Anabranch's extensions: the producer is refused or closed, or the layout arrives first.

The test plays the broker, and checks the order in which messages reach the children.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import anabranch
from anabranch import Backoff, Batching, Client, ConnectionPolicy, MessageId, Producer
from anabranch.client.errors import Closed, TimedOut
from anabranch.model.layout import Layout
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import split_batch
from tests.support.in_memory.fake_broker import RETRY_DELAYS, FakeBroker, ReceivedCommand, send_layout
from tests.support.in_memory.segment_hosts import until
from tests.support.models.layout_histories import split

TOPIC = "topic://public/default/x"
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.001, maximum=0.01))
FIRST = Layout.initial(1, now_ms=0)
SECOND = split(FIRST, 0)
PARENT = "segment://public/default/x/0000-ffff-0"
KEYS = [f"key-{n}" for n in range(6)]


class Stage:
    """A broker with one producer on it; answers what a test does not care about."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._topics: dict[int, str] = {}
        self.watch: ReceivedCommand | None = None
        self.is_sealed = False
        self.stored: dict[str, list[str]] = {}
        self.layout = FIRST
        self.refusals: list[pb.ServerError] = []  # errors that children are refused with, last one first
        self.is_slow = False  # the test answers PRODUCER itself

    async def next(self, *wanted: int) -> ReceivedCommand:
        """The next command of these kinds; lookups of the layout and producers are answered on the way."""
        while True:
            received = await self._broker.expect(
                BaseCommand.SCALABLE_TOPIC_LOOKUP,
                BaseCommand.SCALABLE_TOPIC_CLOSE,
                BaseCommand.PRODUCER,
                BaseCommand.SEND,
                BaseCommand.CLOSE_PRODUCER,
            )
            if received.kind == BaseCommand.SCALABLE_TOPIC_LOOKUP:
                self.watch = received
                send_layout(received, self.layout, TOPIC)
            elif received.kind == BaseCommand.PRODUCER and not (self.is_slow and received.kind in wanted):
                self.open(received)
            if received.kind in wanted:
                return received

    def open(self, received: ReceivedCommand) -> None:
        topic = received.body.topic
        if topic != PARENT and self.refusals:
            received.answer(BaseCommand.ERROR, error=self.refusals.pop(), message="not now")
            return
        if topic == PARENT and self.is_sealed:
            received.answer(BaseCommand.ERROR, error=pb.TopicTerminatedError, message="sealed")
            return
        self._topics[received.body.producer_id] = topic
        received.answer(BaseCommand.PRODUCER_SUCCESS, producer_name="p", last_sequence_id=-1)

    def receipt(self, received: ReceivedCommand) -> None:
        topic = self._topics[received.body.producer_id]
        self.stored.setdefault(topic, []).extend(one.data.decode() for one in split_batch(received.payload))
        place = pb.MessageIdData(ledgerId=1, entryId=len(self.stored[topic]))
        self.send_command(received, BaseCommand.SEND_RECEIPT, sequence_id=received.body.sequence_id, message_id=place)

    def send_command(self, received: ReceivedCommand, kind: int, **fields: Any) -> None:
        received.connection.send_command(kind, producer_id=received.body.producer_id, **fields)

    def refuse(self, received: ReceivedCommand) -> None:
        sequence_id = received.body.sequence_id
        self.send_command(
            received, BaseCommand.SEND_ERROR, sequence_id=sequence_id, error=pb.TopicTerminatedError, message="sealed"
        )

    def is_in_order(self, rounds: int) -> None:
        """Along the lineage everything is stored once, and every key in its order."""
        lineage = sorted(self.stored, key=lambda name: int(name.rpartition("-")[2]))
        along = [text for topic in lineage for text in self.stored[topic]]
        for key in KEYS:
            assert [text for text in along if text.startswith(f"{key} ")] == [f"{key} {n}" for n in range(rounds)]

    def push(self) -> None:
        self.layout = SECOND
        assert self.watch is not None
        send_layout(self.watch, SECOND, TOPIC)

    async def serve_children(self, count: int) -> None:
        """Until so many messages are stored in all."""
        while sum(map(len, self.stored.values())) < count:
            received = await self.next(BaseCommand.SEND, BaseCommand.CLOSE_PRODUCER)
            if received.kind == BaseCommand.CLOSE_PRODUCER:
                received.answer(BaseCommand.SUCCESS)
            else:
                self.receipt(received)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(supports_scalable_topics=True) as broker:
        yield broker


@pytest.fixture
async def sdk(broker: FakeBroker) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.url, connection=QUICK, operation_timeout=RETRY_DELAYS) as client:
        yield client
        broker.cut()


def send_all(producer: Producer, rounds: range) -> list[asyncio.Future[MessageId]]:
    return [producer.send_nowait(f"{key} {n}".encode(), key=key) for n in rounds for key in KEYS]


@pytest.mark.parametrize("followed_by", ["refusal of the producer", "layout", "CLOSE_PRODUCER"])
@pytest.mark.parametrize("answered", range(1, 5))
async def test_receipts_after_close_producer_count(
    broker: FakeBroker, sdk: Client, followed_by: str, answered: int
) -> None:
    """Pulsar 5.0.0-M1 under load: it seals, closes the producer, refuses what came later - and only then says which of
    the earlier ones it has stored. A client that no longer listens stores them twice."""
    stage = Stage(broker)
    opening = asyncio.ensure_future(_opened(sdk))
    await stage.next(BaseCommand.PRODUCER)
    producer = await opening
    futures = send_all(producer, range(1))
    sends = [await stage.next(BaseCommand.SEND) for _ in range(6)]
    stage.is_sealed = stage.is_slow = True
    if followed_by == "CLOSE_PRODUCER":
        stage.push()
        close_producer = await stage.next(BaseCommand.CLOSE_PRODUCER)
    stage.send_command(sends[0], BaseCommand.CLOSE_PRODUCER, request_id=(1 << 64) - 1)
    attempt = None if followed_by == "CLOSE_PRODUCER" else await stage.next(BaseCommand.PRODUCER)  # it has understood
    stage.refuse(sends[5])
    for received in sends[:answered]:
        stage.receipt(received)
    stage.is_slow = False
    if attempt is None:
        close_producer.answer(BaseCommand.SUCCESS)
    elif followed_by == "layout":
        stage.push()
    else:
        stage.open(attempt)
        stage.push()
    futures += send_all(producer, range(1, 2))
    await stage.serve_children(12)
    await producer.flush(timeout=RETRY_DELAYS)
    assert [future.exception() for future in futures] == [None] * 12
    stage.is_in_order(2)


@pytest.mark.parametrize("is_too_late", [False, True])
@pytest.mark.parametrize("batching", [None, Batching(max_messages=3)])
@pytest.mark.parametrize("closed_by", ["closing", "CLOSE_PRODUCER"])
async def test_late_receipts_count_until_the_message_is_resent(
    broker: FakeBroker,
    sdk: Client,
    closed_by: str,
    batching: Batching | None,
    is_too_late: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The layout may arrive before the receipts. Messages whose receipts arrive after the children opened are stored
    twice; the log says which."""
    stage = Stage(broker)
    opening = asyncio.ensure_future(_opened(sdk, batching=batching))
    await stage.next(BaseCommand.PRODUCER)
    producer = await opening
    futures = send_all(producer, range(1))
    sends = [await stage.next(BaseCommand.SEND) for _ in range(6 if batching is None else 2)]
    stage.is_sealed = stage.is_slow = True
    if closed_by == "CLOSE_PRODUCER":
        stage.refuse(sends[-1])
        (await stage.next(BaseCommand.CLOSE_PRODUCER)).answer(BaseCommand.SUCCESS)
        stage.push()
    else:
        stage.push()
        close_producer = await stage.next(BaseCommand.CLOSE_PRODUCER)
        close_producer.answer(BaseCommand.SUCCESS)
    children = [await stage.next(BaseCommand.PRODUCER) for _ in range(2)]
    early = sends[: len(sends) // 2]
    if not is_too_late:
        for received in early:
            stage.receipt(received)
        async with asyncio.timeout(RETRY_DELAYS):
            await asyncio.wait(futures[:3])
    stage.is_slow = False
    for received in children:
        stage.open(received)
    await stage.serve_children(6)
    if is_too_late:
        for received in early:
            stage.receipt(received)
        await until(lambda: bool(caplog.records))
        assert [one.__dict__["sequence_ids"] for one in caplog.records] == [[0, 1, 2]]
        assert sum(map(len, stage.stored.values())) == 9
    else:
        assert not caplog.records
        stage.is_in_order(1)
    await producer.flush(timeout=RETRY_DELAYS)
    assert [future.exception() for future in futures] == [None] * 6


@pytest.mark.parametrize("answered", range(5))
async def test_receipts_while_a_topic_moves_count(broker: FakeBroker, sdk: Client, answered: int) -> None:
    """A topic that is unloaded: brokers close its producers first and finish what they were writing then."""
    stage = Stage(broker)
    opening = asyncio.ensure_future(_opened(sdk, "persistent://public/default/x"))
    await stage.next(BaseCommand.PRODUCER)
    producer = await opening
    futures = [producer.send_nowait(b"%d" % n) for n in range(4)]
    sends = [await stage.next(BaseCommand.SEND) for _ in range(4)]
    stage.is_slow = True
    stage.send_command(sends[0], BaseCommand.CLOSE_PRODUCER, request_id=(1 << 64) - 1)
    for trouble in (pb.ServiceNotReady, None):  # also when it takes more than one attempt
        attempt = await stage.next(BaseCommand.PRODUCER)
        if trouble is not None:
            attempt.answer(BaseCommand.ERROR, error=trouble, message="moving")
    for received in sends[:answered]:
        stage.receipt(received)
    stage.open(attempt)
    await stage.serve_children(4)
    await producer.flush(timeout=RETRY_DELAYS)
    assert [future.exception() for future in futures] == [None] * 4
    assert list(stage.stored.values()) == [["0", "1", "2", "3"]]


@pytest.mark.parametrize("closed_by", ["refusal", "closing", "layout"])
async def test_scenarios_26_30_seal_without_anabranch_extensions(
    broker: FakeBroker, sdk: Client, closed_by: str
) -> None:
    stage = Stage(broker)
    opening = asyncio.ensure_future(_opened(sdk))
    await stage.next(BaseCommand.PRODUCER)
    producer = await opening
    futures = send_all(producer, range(2))
    sends = [await stage.next(BaseCommand.SEND) for _ in range(12)]
    for received in sends[:4]:
        stage.receipt(received)
    stage.is_sealed = True
    if closed_by == "refusal":
        for received in sends[4:]:
            stage.refuse(received)
        (await stage.next(BaseCommand.CLOSE_PRODUCER)).answer(BaseCommand.SUCCESS)
        stage.push()
    elif closed_by == "closing":
        stage.send_command(sends[0], BaseCommand.CLOSE_PRODUCER, request_id=(1 << 64) - 1)
        await stage.next(BaseCommand.PRODUCER)  # refused
        stage.push()
    else:
        stage.push()
        close_producer = await stage.next(BaseCommand.CLOSE_PRODUCER)
        for received in sends[4:6]:  # were under way when it was sealed
            stage.receipt(received)
        close_producer.answer(BaseCommand.SUCCESS)
    futures += send_all(producer, range(2, 3))
    await stage.serve_children(18)
    await producer.flush(timeout=RETRY_DELAYS)
    assert [future.exception() for future in futures] == [None] * 18
    assert len(stage.stored) == 3
    stage.is_in_order(3)


async def test_scenarios_37_38_children_that_open_later(broker: FakeBroker, sdk: Client) -> None:
    stage = Stage(broker)
    opening = asyncio.ensure_future(_opened(sdk))
    await stage.next(BaseCommand.PRODUCER)
    producer = await opening
    stage.is_sealed = True
    stage.refusals = 2 * [pb.ServiceNotReady, pb.TopicNotFound, pb.ProducerBusy, pb.UnknownError, pb.MetadataError]
    stage.push()
    assert (await stage.next(BaseCommand.PRODUCER)).body.topic != PARENT
    futures = send_all(producer, range(2))
    await stage.serve_children(12)
    await producer.flush(timeout=RETRY_DELAYS)
    assert [future.exception() for future in futures] == [None] * 12
    assert not stage.refusals and PARENT not in stage.stored


async def _opened(sdk: Client, topic: str = TOPIC, *, batching: Batching | None = None) -> Producer:
    return await sdk.producer(topic, batching=batching)


async def test_deadlines_and_close_hold_while_the_layout_is_missing(broker: FakeBroker, sdk: Client) -> None:
    stage = Stage(broker)

    async def played() -> None:
        while True:
            await stage.next()

    opening = asyncio.ensure_future(_opened(sdk))
    await stage.next(BaseCommand.PRODUCER)
    producer = await opening
    stage.is_sealed = True
    first = producer.send_nowait(b"a", key="k")
    received = await stage.next(BaseCommand.SEND)
    playing = asyncio.ensure_future(played())
    stage.send_command(received, BaseCommand.CLOSE_PRODUCER, request_id=(1 << 64) - 1)
    with pytest.raises(TimedOut):
        await producer.send(b"b", key="k", timeout=0.1)
    await producer.close(timeout=0.05)
    assert isinstance(first.exception(), Closed)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
