"""The four subscription types: distribution of messages, refused consumers, and the backlog without a consumer."""

from __future__ import annotations

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    LATEST,
    SHARED,
    Rest,
    collect,
    data,
    eventually,
    expect_silence,
    payloads,
    receive_all,
    receive_data,
    receive_rest,
    send_all,
    send_pipelined,
    within,
)
from tests.support.traffic.stock_client import new_client

ALL_TYPES = [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED]


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_one_consumer_gets_everything_in_order(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    values = payloads(200)
    send_pipelined(client.create_producer(topic), values, partition_key="k")
    assert receive_data(consumer, 200) == values
    expect_silence(consumer)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_acked_messages_do_not_come_back(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    values = payloads(20)
    send_all(client.create_producer(topic), values)
    receive_all(consumer, 12)
    consumer.close()
    again = client.subscribe(topic, "s", kind)
    assert receive_data(again, 8) == values[12:]
    expect_silence(again)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_unacked_messages_come_back(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    values = payloads(10)
    send_all(client.create_producer(topic), values)
    receive_all(consumer, 10, ack=False)
    consumer.close()
    assert receive_data(client.subscribe(topic, "s", kind), 10) == values


def test_subscription_keeps_backlog_without_consumers(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    values = payloads(50)
    send_pipelined(client.create_producer(topic), values)
    assert receive_data(client.subscribe(topic, "s"), 50) == values


def test_latest_starts_after_what_is_there(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer = client.subscribe(topic, "s", initial_position=LATEST)
    producer.send(b"after")
    assert receive_data(consumer, 1) == [b"after"]


def test_earliest_starts_at_the_first(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer.send(b"after")
    assert receive_data(consumer, 2) == [b"before", b"after"]


def test_initial_position_matters_only_once(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"old")
    client.subscribe(topic, "s", initial_position=LATEST).close()
    producer.send(b"new")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert receive_data(consumer, 1) == [b"new"]
    expect_silence(consumer)


def test_subscriptions_are_independent(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, f"s{index}", initial_position=EARLIEST) for index in range(5)]
    values = payloads(30)
    send_pipelined(client.create_producer(topic), values)
    for consumer in consumers:
        assert receive_data(consumer, 30) == values


@pytest.mark.conformance("Exclusive", client="Python")
def test_exclusive_refuses_a_second_consumer(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", EXCLUSIVE)
    with pytest.raises(pulsar.ConsumerBusy):
        other_client.subscribe(topic, "s", EXCLUSIVE)
    client.create_producer(topic).send(b"x")
    assert receive_data(first, 1) == [b"x"]


def test_exclusive_is_free_after_close(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s", EXCLUSIVE).close()
    consumer = other_client.subscribe(topic, "s", EXCLUSIVE)
    client.create_producer(topic).send(b"x")
    assert receive_data(consumer, 1) == [b"x"]


def test_exclusive_is_free_when_its_client_is_gone(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    leaver = new_client(broker.service_url)
    first = leaver.subscribe(topic, "s", EXCLUSIVE, initial_position=EARLIEST)
    client.create_producer(topic).send(b"x")
    receive_all(first, 1, ack=False)
    leaver.shutdown()
    assert receive_data(client.subscribe(topic, "s", EXCLUSIVE), 1) == [b"x"]


@pytest.mark.parametrize(
    ("first", "second"),
    [(SHARED, EXCLUSIVE), (SHARED, FAILOVER), (SHARED, KEY_SHARED), (KEY_SHARED, SHARED), (FAILOVER, SHARED)],
    ids=lambda kind: kind.name,
)
def test_mixed_types_are_refused(
    client: pulsar.Client, topic: str, first: pulsar.ConsumerType, second: pulsar.ConsumerType
) -> None:
    client.subscribe(topic, "s", first)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", second)


def test_type_may_change_without_connected_consumers(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s", SHARED, initial_position=EARLIEST).close()
    client.create_producer(topic).send(b"x")
    assert receive_data(client.subscribe(topic, "s", FAILOVER), 1) == [b"x"]


def test_shared_consumers_split_the_work(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    consumers = [each.subscribe(topic, "s", SHARED, receiver_queue_size=10) for each in (client, other_client, client)]
    values = payloads(300)
    send_pipelined(client.create_producer(topic), values)
    received = collect(consumers, 300)
    assert sorted(value for each in received for value in data(each)) == values
    assert min(map(len, received)) >= 30, [len(each) for each in received]


def test_shared_redelivers_unacked_messages_of_a_closed_consumer(
    client: pulsar.Client, other_client: pulsar.Client, topic: str
) -> None:
    holder = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    values = payloads(40)
    send_pipelined(client.create_producer(topic), values)
    receive_all(holder, 40, ack=False)
    taker = other_client.subscribe(topic, "s", SHARED)
    expect_silence(taker, quiet_ms=200)
    holder.close()
    assert sorted(receive_data(taker, 40)) == values


def test_failover_only_one_is_active(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", FAILOVER, consumer_name="a", initial_position=EARLIEST)
    second = other_client.subscribe(topic, "s", FAILOVER, consumer_name="b")
    values = payloads(20)
    send_all(client.create_producer(topic), values)
    got_first, got_second = map(data, collect([first, second], 20))
    assert sorted([len(got_first), len(got_second)]) == [0, 20]
    assert got_first + got_second == values


@pytest.mark.conformance("Failover", client="Python")
def test_failover_takes_over_without_a_gap(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", FAILOVER, consumer_name="a", initial_position=EARLIEST)
    values = payloads(30)
    send_all(client.create_producer(topic), values)
    assert receive_data(first, 10) == values[:10]
    second = other_client.subscribe(topic, "s", FAILOVER, consumer_name="b")
    first.close()
    assert receive_data(second, 20) == values[10:]


def test_failover_when_the_active_client_dies(broker: BrokerProcess, topic: str) -> None:
    clients = [new_client(broker.service_url) for _ in range(2)]
    consumers = [
        each.subscribe(topic, "s", FAILOVER, consumer_name=name, initial_position=EARLIEST)
        for each, name in zip(clients, "ab", strict=True)
    ]
    values = payloads(10)
    producing = new_client(broker.service_url)
    send_all(producing.create_producer(topic), values)
    received = collect(consumers, 10, ack=False)
    active = max(range(2), key=lambda index: len(received[index]))
    clients[active].shutdown()
    assert receive_data(consumers[1 - active], 10) == values
    clients[1 - active].close()
    producing.close()


def test_failover_spreads_partitions(
    client: pulsar.Client, other_client: pulsar.Client, rest: Rest, topic: str
) -> None:
    rest.create_partitioned(topic, 4)
    consumers = [
        each.subscribe(topic, "s", FAILOVER, consumer_name=name, initial_position=EARLIEST)
        for each, name in ((client, "a"), (other_client, "b"))
    ]
    values = payloads(80)
    send_all(client.create_producer(topic), values)
    received = collect(consumers, 80)
    partitions = [{each.message_id().partition() for each in messages} for messages in received]
    assert [len(each) for each in partitions] == [2, 2]
    assert partitions[0] | partitions[1] == {0, 1, 2, 3}
    assert sorted(data(received[0]) + data(received[1])) == values


def test_unsubscribe_forgets_the_subscription(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    producer.send(b"one")
    receive_all(consumer, 1)
    consumer.unsubscribe()
    again = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert receive_data(again, 1) == [b"one"], "the cursor was kept"


def test_unsubscribe_is_refused_while_others_are_attached(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", SHARED)
    second = client.subscribe(topic, "s", SHARED)
    with pytest.raises(pulsar.PulsarException):
        first.unsubscribe()
    client.create_producer(topic).send(b"x")
    eventually(lambda: len(receive_rest(first, quiet_ms=50) + receive_rest(second, quiet_ms=50)) == 1)


def test_consumer_names_and_properties_show_in_stats(client: pulsar.Client, topic: str, rest: Rest) -> None:
    consumer = client.subscribe(topic, "s", SHARED, consumer_name="worker-1", properties={"zone": "eu"})
    assert consumer.consumer_name() == "worker-1"
    assert consumer.subscription_name() == "s"
    subscription = rest.stats(topic)["subscriptions"]["s"]
    assert subscription["type"] == "Shared"
    assert [(each["consumerName"], each["metadata"]) for each in subscription["consumers"]] == [
        ("worker-1", {"zone": "eu"})
    ]


def test_backlog_in_stats_follows_the_acks(client: pulsar.Client, topic: str, rest: Rest) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    send_all(client.create_producer(topic), payloads(10))

    def backlog() -> int:
        return int(rest.stats(topic)["subscriptions"]["s"]["msgBacklog"])

    assert backlog() == 10
    receive_all(consumer, 7)
    eventually(lambda: backlog() == 3, what="backlog of 3")


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED], ids=lambda kind: kind.name)
def test_receiver_queue_size_one(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, receiver_queue_size=1, initial_position=EARLIEST)
    values = payloads(50)
    send_pipelined(client.create_producer(topic), values)
    assert receive_data(consumer, 50) == values


def test_receiver_queue_size_zero(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, receiver_queue_size=0, initial_position=EARLIEST)
    values = payloads(20)
    send_pipelined(client.create_producer(topic), values)
    received = []
    for _ in values:
        message = within(10, consumer.receive)  # without a queue the wheel allows no timeout
        received.append(message.data())
        consumer.acknowledge(message)
    assert received == values


def test_queue_size_zero_leaves_the_rest_to_others(client: pulsar.Client, topic: str) -> None:
    idle = client.subscribe(topic, "s", SHARED, receiver_queue_size=0, initial_position=EARLIEST)
    busy = client.subscribe(topic, "s", SHARED)
    values = payloads(20)
    send_pipelined(client.create_producer(topic), values)
    assert receive_data(busy, 20) == values
    assert idle.is_connected()


def test_permits_are_not_exceeded(client: pulsar.Client, topic: str, rest: Rest) -> None:
    """A consumer that asked for 10 messages holds 10, however many wait."""
    consumer = client.subscribe(topic, "s", SHARED, receiver_queue_size=10, initial_position=EARLIEST)
    send_pipelined(client.create_producer(topic), payloads(200))

    def unacked() -> int:
        return int(rest.stats(topic)["subscriptions"]["s"]["unackedMessages"])

    eventually(lambda: unacked() == 10, what="10 delivered")
    assert len(receive_all(consumer, 200)) == 200


def test_slow_consumer_does_not_disturb_another(client: pulsar.Client, topic: str) -> None:
    slow = client.subscribe(topic, "slow", receiver_queue_size=1, initial_position=EARLIEST)
    fast = client.subscribe(topic, "fast", initial_position=EARLIEST)
    values = payloads(3_000)
    send_pipelined(client.create_producer(topic, batching_enabled=True, block_if_queue_full=True), values)
    assert receive_data(fast, 3_000) == values
    assert receive_data(slow, 20) == values[:20]


def test_batch_receive_by_count(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, 5_000)
    consumer = client.subscribe(topic, "s", batch_receive_policy=policy, initial_position=EARLIEST)
    values = payloads(30)
    send_pipelined(client.create_producer(topic), values)
    received = [data(within(10, consumer.batch_receive)) for _ in range(3)]
    assert received == [values[:10], values[10:20], values[20:]]


def test_batch_receive_by_timeout(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(1_000, -1, 500)
    consumer = client.subscribe(topic, "s", batch_receive_policy=policy, initial_position=EARLIEST)
    values = payloads(5)
    send_pipelined(client.create_producer(topic), values)
    assert data(within(10, consumer.batch_receive)) == values


def test_receive_times_out_on_an_empty_topic(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.Timeout):
        client.subscribe(topic, "s").receive(100)
