"""Metrics of the SDK against a real broker."""

from __future__ import annotations

import anabranch
from anabranch import Batching
from tests.support.processes.broker_process import BrokerProcess

DEADLINE = 30.0


async def test_counters_follow_what_is_sent_received_and_acknowledged(broker: BrokerProcess, topic: str) -> None:
    async with anabranch.connect(broker.service_url) as client:
        async with (
            client.producer(topic, batching=Batching(max_delay=10, max_messages=10)) as producer,
            client.queue_consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            futures = [producer.send_nowait(b"x" * 100, key="k") for _ in range(25)]
            sending = producer.metrics()
            assert (sending.messages, sending.pending_messages) == (0, 25)
            assert sending.pending_bytes > 2500
            await producer.flush(DEADLINE)
            assert all(one.done() for one in futures)
            sent = producer.metrics()
            assert (sent.messages, sent.batches, sent.failed, sent.pending_messages) == (25, 3, 0, 0)
            assert sent.bytes > 2500
            assert sent.message_rate > 0
            assert sent.latency.count == 3
            assert sent.latency.p50 is not None
            assert sent.latency.p99 is not None
            assert sent.latency.maximum is not None
            assert 0 < sent.latency.p50 <= sent.latency.p99 <= sent.latency.maximum * 1.2

            messages = [await consumer.receive(DEADLINE) for _ in range(25)]
            assert all(messages)
            received = consumer.metrics()
            assert (received.messages, received.batches, received.redelivered) == (25, 3, 0)
            assert (received.prefetched, received.unacknowledged) == (0, 25)
            assert received.bytes > 2500
            assert received.age is not None
            assert received.age < DEADLINE
            assert received.lag is None, "nothing was asked yet"
            assert await consumer.lag(DEADLINE) == 25
            for message in messages[:20]:
                assert message is not None
                await consumer.ack(message)
            last = messages[-1]
            assert last is not None
            await consumer.nack(last, delay=0)
            again = await consumer.receive(DEADLINE)
            assert again is not None
            after = consumer.metrics()
            assert (after.unacknowledged, after.nacks, after.lag) == (5, 1, 25)
            assert after.redelivered == 1
            assert [one.name for one in client.metrics().producers] == [producer.name]
            assert [one.subscription for one in client.metrics().consumers] == ["s"]
            assert client.metrics().connections == 1
        page = client.metrics_text()
        assert client.metrics().producers == ()
        assert f'anabranch_client_send_messages_total{{topic="{producer.topic}"}} 25\n' in page
        assert f'anabranch_client_producers{{topic="{producer.topic}"}} 0\n' in page


async def test_lag_of_a_stream_is_what_its_segments_have_left(broker: BrokerProcess) -> None:
    topic = "topic://public/default/metrics-lag"
    async with (
        anabranch.connect(broker.service_url) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        for number in range(10):
            await producer.send(b"%d" % number, key=str(number), timeout=DEADLINE)
        assert await consumer.lag() == 10
        assert consumer.metrics().lag == 10


async def test_failed_messages_are_counted_by_code(broker: BrokerProcess, topic: str) -> None:
    async with anabranch.connect(broker.service_url) as client:
        producer = await client.producer(topic, batching=Batching(max_delay=10))
        future = producer.send_nowait(b"x")
        await producer.close(timeout=0)
        assert isinstance(future.exception(), anabranch.Error)
        counted = producer.metrics()
        assert (counted.failed, counted.pending_messages) == (1, 0)
        assert dict(counted.errors) == {"closed": 1}


def test_blocking_client_has_the_same_metrics(broker: BrokerProcess, topic: str) -> None:
    with anabranch.blocking.connect(broker.service_url) as client, client.producer(topic) as producer:
        producer.send(b"x")
        assert producer.metrics().messages == client.metrics().producers[0].messages == 1
        with client.queue_consumer(topic, subscription="s", start="earliest") as consumer:
            assert consumer.receive(DEADLINE) is not None
            assert consumer.metrics().unacknowledged == 1
            assert consumer.lag() == 1
        assert "anabranch_client_send_messages_total" in client.metrics_text()
