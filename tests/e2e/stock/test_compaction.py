"""Compaction as stock clients see it: readers and consumers of the compacted view, tombstones, batches, restarts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    SHARED,
    Rest,
    eventually,
    expect_silence,
    payloads,
    read_available,
    receive_all,
    receive_data,
    topic_path,
)
from tests.support.traffic.stock_client import new_client


def compact(rest: Rest, topic: str) -> None:
    path = f"{topic_path(topic)}/compaction"
    rest.expect("PUT", path)
    eventually(lambda: rest.expect("GET", path)["status"] != "RUNNING", what="compaction ends")
    assert rest.expect("GET", path) == {"status": "SUCCESS", "lastError": ""}


def is_compacted(rest: Rest, topic: str) -> bool:
    return bool(rest.expect("GET", f"{topic_path(topic)}/compaction")["status"] == "SUCCESS")


def reader(client: pulsar.Client, topic: str, start: Any = pulsar.MessageId.earliest) -> Any:
    return client.create_reader(topic, start, is_read_compacted=True)


def put(client: pulsar.Client, topic: str, *pairs: tuple[str | None, bytes], **options: Any) -> None:
    producer = client.create_producer(topic, batching_enabled=False, **options)
    for key, value in pairs:
        producer.send(value, partition_key=key)
    producer.close()


def put_batch(client: pulsar.Client, topic: str, *pairs: tuple[str, bytes], **options: Any) -> None:
    """All in one entry."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=len(pairs), batching_max_publish_delay_ms=5_000, **options
    )
    for key, value in pairs:
        producer.send_async(value, None, partition_key=key)
    producer.flush()
    producer.close()


def test_the_last_value_of_each_key_is_left(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b"2"))
    compact(rest, topic)
    assert read_available(reader(client, topic)) == [b"2", b"1", b"2"]
    plain = client.create_reader(topic, pulsar.MessageId.earliest)
    assert read_available(plain) == [b"1", b"1", b"2", b"1", b"2"]


def test_before_the_first_compaction_everything_is_read(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"), ("a", b"2"))
    assert rest.expect("GET", f"{topic_path(topic)}/compaction")["status"] == "NOT_RUN"
    assert read_available(reader(client, topic)) == [b"1", b"2"]


def test_tombstones_remove_their_key(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"), ("b", b"1"), ("a", b""))
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"1", partition_key="c")
    producer.send(None, partition_key="c")
    compact(rest, topic)
    found = reader(client, topic)
    assert read_available(found) == [b"1"]
    put(client, topic, ("a", b"back"))
    assert read_available(found) == [b"back"]


def test_only_tombstones_leave_nothing(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"), ("a", b""))
    compact(rest, topic)
    found = reader(client, topic)
    assert not found.has_message_available()
    put(client, topic, ("z", b"new"))
    assert read_available(found) == [b"new"]


def test_messages_without_a_key_are_left(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, (None, b"x"), ("a", b"1"), (None, b"y"), ("a", b"2"))
    compact(rest, topic)
    assert read_available(reader(client, topic)) == [b"x", b"y", b"2"]


def test_the_tail_follows_the_view(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"), ("a", b"2"))
    compact(rest, topic)
    put(client, topic, ("a", b"3"), ("b", b"1"))
    found = reader(client, topic)
    assert read_available(found) == [b"2", b"3", b"1"]
    put(client, topic, ("a", b"4"))
    assert read_available(found) == [b"4"]


def test_compaction_again_and_again(client: pulsar.Client, rest: Rest, topic: str) -> None:
    for round_ in range(4):
        put(client, topic, *((f"k{n}", b"%d-%d" % (round_, n)) for n in range(round_, round_ + 3)))
        compact(rest, topic)
    assert read_available(reader(client, topic)) == [b"0-0", b"1-1", b"2-2", b"3-3", b"3-4", b"3-5"]
    stats = rest.expect("GET", f"{topic_path(topic)}/internalStats")
    assert stats["compactedLedger"]["entries"] == 6


@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZLib])
def test_batches_lose_their_old_messages(client: pulsar.Client, rest: Rest, topic: str, compression: Any) -> None:
    put_batch(client, topic, ("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2"), compression_type=compression)
    put_batch(client, topic, ("b", b"2"), ("d", b"1"), ("d", b""), compression_type=compression)
    compact(rest, topic)
    assert read_available(reader(client, topic)) == [b"1", b"2", b"2"]
    compact(rest, topic)
    put(client, topic, ("c", b"2"))
    compact(rest, topic)
    assert read_available(reader(client, topic)) == [b"2", b"2", b"2"]


@pytest.mark.parametrize("compression", [pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD])
def test_batches_that_only_clients_open_stay_whole(
    client: pulsar.Client, rest: Rest, topic: str, compression: Any
) -> None:
    put_batch(client, topic, ("a", b"1"), ("a", b"2"), compression_type=compression)
    put(client, topic, ("b", b"1"), ("b", b"2"), compression_type=compression)
    compact(rest, topic)
    assert read_available(reader(client, topic)) == [b"1", b"2", b"2"]


def test_a_durable_consumer_reads_the_view_and_acknowledges(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"))
    compact(rest, topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, is_read_compacted=True)
    found = receive_all(consumer, 2, ack=False)
    assert [message.data() for message in found] == [b"1", b"2"]
    consumer.acknowledge_cumulative(found[-1])
    consumer.close()
    put(client, topic, ("c", b"1"))
    again = client.subscribe(topic, "s", is_read_compacted=True)
    assert receive_data(again, 1) == [b"1"]
    expect_silence(again)


def test_single_acknowledgements_pass_what_was_removed(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, *((f"k{n % 3}", b"%d" % n) for n in range(12)))
    compact(rest, topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, is_read_compacted=True)
    found = receive_all(consumer, 3, ack=False)
    for message in reversed(found):
        consumer.acknowledge(message)
    eventually(lambda: rest.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0, what="the backlog is gone")


def test_unacknowledged_messages_are_redelivered(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, *((f"k{n % 3}", b"%d" % n) for n in range(12)))
    compact(rest, topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, is_read_compacted=True)
    consumer.acknowledge(receive_all(consumer, 3, ack=False)[1])
    eventually(lambda: rest.stats(topic)["subscriptions"]["s"]["consumers"][0]["unackedMessages"] == 2)
    consumer.close()
    again = client.subscribe(topic, "s", is_read_compacted=True)
    assert receive_data(again, 2) == [b"9", b"11"]
    expect_silence(again)


def test_shared_consumers_cannot_read_the_view(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", consumer_type=SHARED, is_read_compacted=True)


def test_a_reader_starts_inside_the_view(client: pulsar.Client, rest: Rest, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % number, partition_key=f"k{number % 5}") for number in range(10)]
    compact(rest, topic)
    assert read_available(reader(client, topic, ids[6])) == [b"7", b"8", b"9"]
    assert read_available(reader(client, topic, ids[1])) == [b"5", b"6", b"7", b"8", b"9"]


def test_table_view(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b""))
    compact(rest, topic)
    put(client, topic, ("c", b"3"))
    view = client.create_table_view(topic)
    found: dict[str, bytes] = {}
    view.for_each(lambda key, value: found.__setitem__(key, bytes(value)))
    assert found == {"a": b"2", "c": b"3"}
    view.close()


def test_partitioned_topics(client: pulsar.Client, rest: Rest, partitioned_topic: str) -> None:
    producer = client.create_producer(partitioned_topic)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"k{number % 6}")
    rest.expect("PUT", f"{topic_path(partitioned_topic)}/compaction")
    found = []
    for index in range(3):
        part = f"{partitioned_topic}-partition-{index}"
        eventually(partial(is_compacted, rest, part))
        found += read_available(reader(client, part))
    assert sorted(found) == [b"%d" % number for number in range(24, 30)]


def test_what_was_trimmed_is_still_in_the_view(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"))
    compact(rest, topic)
    rest.expect("POST", f"{topic_path(topic)}/trim")
    assert rest.expect("GET", f"{topic_path(topic)}/internalStats")["numberOfEntries"] == 0
    assert read_available(reader(client, topic)) == [b"1", b"2"]
    put(client, topic, ("b", b"2"))
    compact(rest, topic)
    rest.expect("POST", f"{topic_path(topic)}/trim")
    assert read_available(reader(client, topic)) == [b"2", b"2"]


def test_nothing_is_trimmed_before_it_is_compacted(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put(client, topic, ("a", b"1"))
    compact(rest, topic)
    put(client, topic, ("b", b"1"))
    rest.expect("POST", f"{topic_path(topic)}/trim")
    assert read_available(reader(client, topic)) == [b"1", b"1"]


def test_the_view_outlives_kill_9(private_broker: BrokerProcess) -> None:
    topic, rest = "persistent://public/default/kept", Rest(private_broker.http_url)
    stock = new_client(private_broker.service_url)
    put(stock, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"))
    compact(rest, topic)
    rest.expect("POST", f"{topic_path(topic)}/trim")
    put(stock, topic, ("c", b"1"))
    rest.expect("PUT", f"{topic_path(topic)}/compaction")  # perhaps whole, perhaps not, when the broker dies
    private_broker.kill9()
    private_broker.start()
    assert read_available(reader(stock, topic)) == [b"1", b"2", b"1"]
    compact(rest, topic)
    assert read_available(reader(stock, topic)) == [b"1", b"2", b"1"]
    stock.close()


def test_compaction_by_threshold(start_broker: Any) -> None:
    broker = start_broker(arguments=["--set", "broker.sweep_seconds=0.1"])
    rest, topic = Rest(broker.http_url), "persistent://public/default/by-size"
    rest.expect("PUT", "/admin/v2/namespaces/public/default/compactionThreshold", 10_000)
    stock = new_client(broker.service_url)
    put(stock, topic, *(("k", value * 100) for value in payloads(40)))
    eventually(lambda: rest.expect("GET", f"{topic_path(topic)}/compaction")["status"] == "SUCCESS")
    assert len(read_available(reader(stock, topic))) < 40
    stock.close()


def test_running_twice_at_once_is_refused_or_done(client: pulsar.Client, rest: Rest, topic: str) -> None:
    put_batch(client, topic, *((f"k{n % 50}", b"x" * 10) for n in range(1_000)))
    path = f"{topic_path(topic)}/compaction"
    statuses = {rest.call("PUT", path)[0] for _ in range(3)}
    assert statuses <= {204, 409} and 204 in statuses
    eventually(lambda: rest.expect("GET", path)["status"] == "SUCCESS")
    assert len(read_available(reader(client, topic))) == 50
    missing = f"{topic_path(topic)}-none/compaction"
    assert rest.call("PUT", missing)[0] == 404 and rest.call("GET", missing)[0] == 404
