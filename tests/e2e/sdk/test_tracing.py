"""Spans of the SDK against a real broker: every implementation of the port sees the same ones."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind

import anabranch
from anabranch import Batching, Message, Retry
from anabranch.client.errors import HandlerFailed
from anabranch.client.producer.producer import Producer
from anabranch.client.tracing.opentelemetry_tracing import OpenTelemetryTracing
from tests.support.in_memory.recorded_tracing import RecordedSpan, RecordingProvider, recorded
from tests.support.processes.broker_process import BrokerProcess

DEADLINE = 30.0
PORTS = pytest.mark.parametrize("kind", ["own", "opentelemetry"])


@PORTS
async def test_context_travels_from_send_to_receive(kind: str, broker: BrokerProcess, topic: str) -> None:
    tracing, spans = recorded(kind)
    async with (
        anabranch.connect(broker.service_url, tracing=tracing) as client,
        client.producer(topic, batching=Batching(max_messages=3)) as producer,
        client.queue_consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(b"1", properties={"mine": "1"}, timeout=DEADLINE)
        await producer.send_nowait(b"2")
        await producer.send_batch([b"3", b"4"], properties=[None, {"mine": "4"}], timeout=DEADLINE)
        await producer.send_batch_nowait([b"5"])
        await asyncio.sleep(0)  # callbacks of the futures have run
        assert [(one.operation, one.topic, one.count) for one in spans] == [
            ("send", producer.topic, count) for count in (1, 1, 2, 1)
        ]
        assert all(one.is_ended and one.error is None for one in spans)
        found: list[Message] = []
        while len(found) < 5:
            message = await consumer.receive(DEADLINE)
            assert message is not None
            found.append(message)
        received = spans[4:]
        assert [(one.operation, one.subscription, one.count, one.origins) for one in received] == [
            ("receive", "s", 1, [spans[sender].number]) for sender in (0, 1, 2, 2, 3)
        ]
        assert all(one.is_ended for one in received)
        assert [one.properties.get("mine") for one in found] == ["1", None, None, "4", None]


@PORTS
async def test_received_batch_is_one_span_per_entry(kind: str, broker: BrokerProcess, topic: str) -> None:
    tracing, spans = recorded(kind)
    async with (
        anabranch.connect(broker.service_url, tracing=tracing) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send_batch([b"1", b"2", b"3"], timeout=DEADLINE)
        batch = await consumer.receive_batch(3, DEADLINE)
        assert len(batch) == 3
        assert [(one.operation, one.count, one.origins) for one in spans] == [
            ("send", 3, []),
            ("receive", 3, [spans[0].number] * 3),
        ]


@PORTS
async def test_handler_runs_inside_a_span_that_continues_the_trace(
    kind: str, broker: BrokerProcess, topic: str
) -> None:
    tracing, spans = recorded(kind)
    current: list[object] = []

    async def handle(message: Message) -> None:
        current.append(trace.get_current_span())
        if message.value == b"2":
            raise ValueError("2")

    async with (
        anabranch.connect(broker.service_url, tracing=tracing) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        for value in (b"1", b"2"):
            await producer.send(value, key="k", timeout=DEADLINE)
        with pytest.raises(HandlerFailed):
            await consumer.run(handle, retry=Retry(attempts=1))
        processed = [one for one in spans if one.operation == "process"]
        assert [(one.subscription, one.origins, one.error) for one in processed] == [
            ("s", [spans[0].number], None),
            ("s", [spans[1].number], "ValueError"),
        ]
        assert all(one.is_ended for one in processed)
        if kind == "opentelemetry":
            assert [one.record for one in current if isinstance(one, RecordedSpan)] == processed


@PORTS
async def test_failed_send_ends_its_span_with_the_error(kind: str, broker: BrokerProcess, topic: str) -> None:
    tracing, spans = recorded(kind)
    async with anabranch.connect(broker.service_url, tracing=tracing) as client:
        producer = await client.producer(topic, batching=Batching(max_delay=10))
        with pytest.raises(anabranch.Error):
            producer.send_nowait(b"x", key=5)  # type: ignore[arg-type]  # wrong on purpose
        future = producer.send_nowait(b"x")
        await producer.close(timeout=0)
        assert future.exception() is not None
        await asyncio.sleep(0)
        with pytest.raises(anabranch.Error):
            await producer.send(b"x")
        assert [(one.is_ended, one.error) for one in spans] == [
            (True, "BadOption"),
            (True, "Closed"),
            (True, "Closed"),
        ]


def test_blocking_handler_sees_the_span_on_its_thread(broker: BrokerProcess, topic: str) -> None:
    provider = RecordingProvider()
    current: list[object] = []

    def handle(message: Message) -> None:
        current.append(trace.get_current_span())
        raise ValueError("the run ends")

    with anabranch.blocking.connect(broker.service_url, tracing=OpenTelemetryTracing(provider)) as client:
        with client.producer(topic) as producer:
            producer.send(b"x")
        with (
            client.stream_consumer(topic, subscription="s", start="earliest") as consumer,
            pytest.raises(HandlerFailed),
        ):
            consumer.run(handle, retry=Retry(attempts=1))
    (span,) = current
    assert isinstance(span, RecordedSpan)
    assert span.record.operation == "process"
    assert provider.kinds == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER]
    assert provider.attributes[0]["messaging.system"] == "pulsar"


async def test_without_tracing_nothing_is_added(broker: BrokerProcess, topic: str) -> None:
    async with (
        anabranch.connect(broker.service_url) as client,
        client.producer(topic) as producer,
        client.queue_consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        assert type(producer) is Producer
        assert not consumer._sees_each_message
        await producer.send(b"x", timeout=DEADLINE)
        message = await consumer.receive(DEADLINE)
        assert message is not None
        assert dict(message.properties) == {}


async def test_true_means_opentelemetry_and_works_without_a_configured_sdk(broker: BrokerProcess, topic: str) -> None:
    async with (
        anabranch.connect(broker.service_url, tracing=True) as client,
        client.producer(topic) as producer,
        client.queue_consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(b"x", timeout=DEADLINE)
        message = await consumer.receive(DEADLINE)
        assert message is not None
        assert dict(message.properties) == {}, "there is no span, so there is no context"
