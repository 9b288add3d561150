"""Key_Shared: one key, one consumer; order per key also while consumers join and leave."""

from __future__ import annotations

from typing import Any

import mmh3
import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    KEY_SHARED,
    Rest,
    by_key,
    collect,
    data,
    eventually,
    expect_silence,
    receive_all,
    receive_data,
    receive_rest,
)
from tests.support.traffic.stock_client import new_client

KEYS = [f"key-{index}" for index in range(20)]
Policy = pulsar.ConsumerKeySharedPolicy


def slot_of(key: str) -> int:
    """Place of a key in Key_Shared's 65536 slots; 0 is kept free."""
    return (mmh3.hash(key.encode(), 0, signed=False) & 0x7FFFFFFF) % 65536 or 1


def publish_keyed(client: Any, topic: str, rounds: int, first: int = 0, **options: Any) -> dict[str, list[bytes]]:
    """`rounds` numbered messages per key, keys taking turns; returns what each key must show."""
    producer = client.create_producer(topic, **options)
    for turn in range(first, first + rounds):
        for key in KEYS:
            producer.send_async(f"{key}#{turn:04d}".encode(), lambda result, message_id: None, partition_key=key)
    producer.flush()
    producer.close()
    return {key: [f"{key}#{turn:04d}".encode() for turn in range(first, first + rounds)] for key in KEYS}


@pytest.mark.parametrize("batching", [False, True])
def test_each_key_stays_with_one_consumer(client: pulsar.Client, topic: str, batching: bool) -> None:
    consumers = [client.subscribe(topic, "s", KEY_SHARED) for _ in range(3)]
    options = {"batching_enabled": True, "batching_type": pulsar.BatchingType.KeyBased} if batching else {}
    expected = publish_keyed(client, topic, 10, **options)
    received = [by_key(each) for each in collect(consumers, 10 * len(KEYS))]
    assert sum(len(each) for each in received) == len(KEYS), "a key went to two consumers"
    assert {key: values for each in received for key, values in each.items()} == expected
    assert all(received), "a consumer got no key at all"


def test_ordering_key_wins_over_the_key(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", KEY_SHARED) for _ in range(3)]
    producer = client.create_producer(topic)
    for index in range(30):
        producer.send(str(index).encode(), partition_key=f"k{index}", ordering_key="all-together")
    received = [data(each) for each in collect(consumers, 30)]
    assert sorted(len(each) for each in received) == [0, 0, 30]
    assert max(received, key=len) == [str(index).encode() for index in range(30)]


def test_messages_without_key_are_delivered(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", KEY_SHARED) for _ in range(2)]
    producer = client.create_producer(topic)
    values = [str(index).encode() for index in range(40)]
    for value in values:
        producer.send(value)
    received = [value for each in collect(consumers, 40) for value in data(each)]
    assert sorted(received) == sorted(values)


def test_sticky_ranges_decide(client: pulsar.Client, topic: str) -> None:
    halves = [(0, 32_767), (32_768, 65_535)]
    consumers = [
        client.subscribe(
            topic, "s", KEY_SHARED, key_shared_policy=Policy(pulsar.KeySharedMode.Sticky, sticky_ranges=[half])
        )
        for half in halves
    ]
    expected = publish_keyed(client, topic, 3)
    for received, (low, high) in zip(collect(consumers, 3 * len(KEYS)), halves, strict=True):
        mine = {key: values for key, values in expected.items() if low <= slot_of(key) <= high}
        assert mine
        assert by_key(received) == mine


def test_sticky_consumer_may_have_several_ranges(client: pulsar.Client, topic: str) -> None:
    ranges = [[(0, 9_999), (30_000, 65_535)], [(10_000, 29_999)]]
    consumers = [
        client.subscribe(
            topic, "s", KEY_SHARED, key_shared_policy=Policy(pulsar.KeySharedMode.Sticky, sticky_ranges=each)
        )
        for each in ranges
    ]
    expected = publish_keyed(client, topic, 2)
    inner = {key: values for key, values in expected.items() if 10_000 <= slot_of(key) <= 29_999}
    got_outer, got_inner = map(by_key, collect(consumers, 2 * len(KEYS)))
    assert got_inner == inner
    assert len(got_outer) == len(KEYS) - len(inner)


def test_overlapping_sticky_ranges_are_refused(client: pulsar.Client, topic: str) -> None:
    client.subscribe(
        topic, "s", KEY_SHARED, key_shared_policy=Policy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 40_000)])
    )
    with pytest.raises(pulsar.ConsumerAssignError):
        client.subscribe(
            topic,
            "s",
            KEY_SHARED,
            key_shared_policy=Policy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(40_000, 65_535)]),
        )


def test_uncovered_sticky_range_holds_messages_until_covered(client: pulsar.Client, topic: str) -> None:
    low = client.subscribe(
        topic,
        "s",
        KEY_SHARED,
        initial_position=EARLIEST,
        key_shared_policy=Policy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 32_767)]),
    )
    expected = publish_keyed(client, topic, 2)
    missing = {key: values for key, values in expected.items() if slot_of(key) > 32_767}
    received = by_key(receive_rest(low))
    assert set(received) <= set(expected) - set(missing)
    high = client.subscribe(
        topic,
        "s",
        KEY_SHARED,
        key_shared_policy=Policy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(32_768, 65_535)]),
    )
    assert by_key(receive_all(high, sum(map(len, missing.values())))) == missing
    for key, values in by_key(receive_rest(low)).items():
        received.setdefault(key, []).extend(values)
    assert received == {key: values for key, values in expected.items() if key not in missing}


def test_auto_split_and_sticky_do_not_mix(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s", KEY_SHARED)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(
            topic, "s", KEY_SHARED, key_shared_policy=Policy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 65_535)])
        )


@pytest.mark.conformance("Key_Shared", client="Python")
def test_join_keeps_order_per_key(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    """The newcomer gets a key's next message only after the old holder acknowledged the earlier ones."""
    old = client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST)
    first = publish_keyed(client, topic, 5)
    held = receive_all(old, 100, ack=False)
    new = other_client.subscribe(topic, "s", KEY_SHARED)
    second = publish_keyed(client, topic, 5, first=5)
    expect_silence(new)
    for message in held:
        old.acknowledge(message)
    got_new, got_old = map(by_key, collect([new, old], 100))
    assert got_new, "the newcomer never got a key"
    assert {**got_old, **got_new} == second
    assert not set(got_old) & set(got_new)
    assert by_key(held) == first


def test_leave_keeps_order_per_key(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    stayer = client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST)
    leaver = other_client.subscribe(topic, "s", KEY_SHARED)
    expected = publish_keyed(client, topic, 10)
    receive_all(leaver, 1, ack=False)  # at least this one has to be handed over
    seen = receive_rest(stayer)
    leaver.close()
    seen += receive_all(stayer, 200 - len(seen))
    assert by_key(seen) == expected


def test_crash_of_a_holder_keeps_order_per_key(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    leaver = new_client(broker.service_url)
    holder = leaver.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST)
    stayer = client.subscribe(topic, "s", KEY_SHARED)
    expected = publish_keyed(client, topic, 10)
    receive_all(holder, 1, ack=False)
    seen = receive_rest(stayer)
    leaver.shutdown()
    seen += receive_all(stayer, 200 - len(seen))
    assert by_key(seen) == expected


def test_out_of_order_option_does_not_block_a_new_consumer(client: pulsar.Client, topic: str) -> None:
    policy = Policy(allow_out_of_order_delivery=True)
    old = client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST, key_shared_policy=policy)
    publish_keyed(client, topic, 5)
    receive_all(old, 100, ack=False)
    new = client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=policy)
    publish_keyed(client, topic, 5, first=5)
    receive_all(new, 1)  # it need not wait for the acks of others


def test_redelivery_keeps_order_per_key(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST)
    expected = publish_keyed(client, topic, 5)
    receive_all(consumer, 100, ack=False)
    consumer.redeliver_unacknowledged_messages()
    assert by_key(receive_all(consumer, 100)) == expected


def test_slow_holder_blocks_only_its_own_keys(client: pulsar.Client, topic: str) -> None:
    slow = client.subscribe(topic, "s", KEY_SHARED, receiver_queue_size=1, initial_position=EARLIEST)
    fast = client.subscribe(topic, "s", KEY_SHARED)
    expected = publish_keyed(client, topic, 30)
    got_fast = by_key(receive_rest(fast, quiet_ms=1_000))
    assert got_fast
    assert got_fast == {key: expected[key] for key in got_fast}
    left = sum(len(values) for key, values in expected.items() if key not in got_fast)
    assert by_key(receive_all(slow, left)) == {key: expected[key] for key in expected if key not in got_fast}


def test_cumulative_ack_is_refused(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST)
    client.create_producer(topic).send(b"x", partition_key="k")
    message = consumer.receive(10_000)
    with pytest.raises(pulsar.PulsarException):
        consumer.acknowledge_cumulative(message)
    consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", KEY_SHARED)
    client.create_producer(topic).send(b"y", partition_key="k")
    assert receive_data(again, 1) == [b"y"]


def test_stats_show_ranges_and_slots_that_drain(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    """As Pulsar shows them: hash ranges per consumer, and hashes that wait for the acks of their former owner."""
    rest = Rest(broker.http_url)
    first = client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST)
    publish_keyed(client, topic, 1)
    held = receive_all(first, len(KEYS), ack=False)
    second = client.subscribe(topic, "s", KEY_SHARED)
    publish_keyed(client, topic, 1, first=1)
    found = rest.stats(topic)["subscriptions"]["s"]
    old, new = sorted(found["consumers"], key=lambda one: -one["unackedMessages"])
    spans = sorted(span for one in (old, new) for span in one["keyHashRangeArrays"])
    assert (spans[0][0], spans[-1][1]) == (0, 65_535)
    moved = {
        slot_of(key) for key in KEYS if any(low <= slot_of(key) <= high for low, high in new["keyHashRangeArrays"])
    }
    assert {one["hash"] for one in old["drainingHashes"]} == moved
    assert found["drainingHashesCount"] == old["drainingHashesCount"] == len(moved) and new["drainingHashesCount"] == 0
    for message in held:
        first.acknowledge(message)
    eventually(lambda: rest.stats(topic)["subscriptions"]["s"]["drainingHashesCount"] == 0, what="all are acknowledged")
    del second
