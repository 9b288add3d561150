"""Data directories that earlier versions have written open and serve: nothing is lost, nothing comes twice.

`write_fixture` made the archives, with a broker that was stopped and with one that was killed. Every topic gets new
messages before anything is consumed. They come behind everything that is left, so a subscription that has delivered
them has nothing more to deliver, and no test needs to wait for silence.
"""

from __future__ import annotations

import json
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest

import anabranch
from anabranch.admin.blocking import BlockingAdmin
from anabranch.blocking import BlockingClient
from anabranch.schema import Auto
from tests.compatibility.scenario import (
    CLOSED,
    COMPACTED,
    DEDUPLICATED,
    DEDUPLICATED_PRODUCER,
    KEYS,
    NAMESPACE,
    PATIENCE,
    REMOVED,
    SCALABLE,
    SCALABLE_REMOVED,
    SCHEMAS,
    Connections,
    answers,
    key_of,
    read,
    receive,
    send_each,
    subscribe,
    text_of,
)
from tests.support.processes.broker_process import BrokerProcess

FOLDER = Path(__file__).parent / "data"
STATES = ("clean", "killed")
FIXTURES = [(archive, state) for archive in sorted(FOLDER.glob("*.tar.gz")) for state in STATES]
POLL = 0.1
NEW = "new-000"
NEW_KEYED = [f"new-{number:03d} key-{number}" for number in range(KEYS)]
SCALABLE_KINDS = {"STREAM", "QUEUE", "CHECKPOINT"}


@dataclass
class Stored:
    """A broker of today on a directory of then."""

    manifest: dict[str, Any]
    answers: dict[str, Any]  # before anything was changed
    broker: BrokerProcess
    stock: Any
    sdk: BlockingClient
    admin: BlockingAdmin

    def left(self, kinds: set[str]) -> list[dict[str, Any]]:
        return [one for one in self.manifest["left"] if one["kind"] in kinds]


@pytest.fixture(
    scope="module", params=FIXTURES, ids=lambda given: f"{given[0].name.removesuffix('.tar.gz')}-{given[1]}"
)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    archive, state = request.param
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, [one for one in opened if one.name.split("/")[0] == state], filter="data")
    manifest = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())[state]
    with BrokerProcess(folder / state) as broker, Connections(broker) as (stock, sdk, admin):
        found = Stored(manifest, answers(admin), broker, stock, sdk, admin)
        _publish(found)
        yield found


def _publish(stored: Stored) -> None:
    """New messages for all."""
    for topic in sorted({one["topic"] for one in stored.manifest["left"]} - {SCALABLE}):
        send_each(stored.stock, topic, [NEW])
    with stored.sdk.producer(SCALABLE) as producer:
        for text in NEW_KEYED:
            producer.send(text.encode(), key=key_of(text))


def test_administration_says_what_it_said(stored: Stored) -> None:
    expected = stored.manifest["answers"]
    assert stored.answers.keys() == expected.keys()
    for name in expected:
        assert stored.answers[name] == expected[name], name


def test_subscriptions_of_regular_topics_deliver_what_was_left(stored: Stored) -> None:
    """Of every type; after cumulative, individual and batch-index acknowledgements."""
    for left in stored.left({"Exclusive", "Shared", "Failover", "Key_Shared"}):
        expected = [*left["messages"], NEW]
        consumer = subscribe(stored.stock, left["topic"], left["subscription"], left["kind"])
        messages = receive(consumer, len(expected))
        assert [text_of(one) for one in messages] == expected, left["subscription"]
        for message in messages:
            consumer.acknowledge(message)
        consumer.close()


def test_messages_keep_keys_properties_and_times(stored: Stored) -> None:
    reader = stored.stock.create_reader(f"persistent://{NAMESPACE}/plain", pulsar.MessageId.earliest)
    message = reader.read_next(30_000)
    assert (text_of(message), message.partition_key(), message.properties()) == ("single-000", "key-0", {"n": "0"})
    assert message.event_timestamp() == 7
    reader.close()


@pytest.mark.parametrize("kind", sorted(SCALABLE_KINDS))
def test_subscriptions_of_a_scalable_topic_deliver_what_was_left(stored: Stored, kind: str) -> None:
    for left in stored.left({kind}):
        expected = [*left["messages"], *NEW_KEYED]
        consumer = _scalable_consumer(stored.sdk, kind, left["subscription"])
        with consumer:
            found = _consume(consumer, kind, len(expected))
        assert Counter(found) == Counter(expected), left["subscription"]
        if kind != "QUEUE":
            assert _by_key(found) == _by_key(expected), left["subscription"]


def _scalable_consumer(sdk: BlockingClient, kind: str, subscription: str) -> Any:
    if kind == "STREAM":
        return sdk.stream_consumer(SCALABLE, subscription=subscription)
    if kind == "QUEUE":
        return sdk.queue_consumer(SCALABLE, subscription=subscription)
    return sdk.checkpoint_consumer(SCALABLE, group=subscription, start=anabranch.Checkpoint.earliest())


def _consume(consumer: Any, kind: str, count: int) -> list[str]:
    """Everything, acknowledged on the way, because segments open when their parents are done."""
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages: {found}"
        message = consumer.receive(timeout=POLL)
        if message is not None:
            found.append(message.data.decode())
        if kind == "CHECKPOINT":
            if message is None:  # all open segments are read
                consumer.saved(consumer.checkpoint())
        elif message is not None:
            (consumer.ack if kind == "QUEUE" else consumer.ack_cumulative)(message)
    return found


def _by_key(texts: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(key_of(text), []).append(text)
    return found


def test_a_checkpoint_that_an_application_has_stored_is_continued(stored: Stored) -> None:
    checkpoint = anabranch.Checkpoint.from_bytes(bytes.fromhex(stored.manifest["facts"]["checkpoint"]))
    expected = [*stored.manifest["facts"]["after the checkpoint"], *NEW_KEYED]
    with stored.sdk.checkpoint_consumer(SCALABLE, start=checkpoint) as reader:
        found = [one.data.decode() for one in read(reader, len(expected))]
    assert _by_key(found) == _by_key(expected)


def test_a_scalable_topic_splits_and_merges_and_serves(stored: Stored) -> None:
    topics = stored.admin.scalable_topics
    topics.create_subscription(SCALABLE, "later", kind="STREAM", start="latest")
    before = topics.metadata(SCALABLE)["segments"]
    segment = max(one["segmentId"] for one in before.values() if one["state"] == "ACTIVE")
    topics.split(SCALABLE, segment)
    after = topics.metadata(SCALABLE)["segments"]
    topics.merge(SCALABLE, sorted(int(one) for one in after.keys() - before.keys()))
    values = [f"later-{number:03d} key-{number % KEYS}" for number in range(2 * KEYS)]
    with stored.sdk.producer(SCALABLE) as producer:
        for text in values:
            producer.send(text.encode(), key=key_of(text))
    with stored.sdk.stream_consumer(SCALABLE, subscription="later") as consumer:
        found = [one.data.decode() for one in read(consumer, len(values))]
    assert _by_key(found) == _by_key(values)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_values_are_decoded_with_the_schemas_that_wrote_them(stored: Stored, kind: str) -> None:
    with stored.sdk.queue_consumer(SCHEMAS[kind], subscription="all", schema=Auto()) as consumer:
        values = [one.value for one in read(consumer, 2)]
    assert [[one["customer"], one.get("city")] for one in values] == stored.manifest["facts"]["schema values"]


def test_deduplication_remembers_what_a_producer_has_sent(stored: Stored) -> None:
    last = stored.manifest["facts"]["last sequence id"]
    consumer = stored.stock.subscribe(DEDUPLICATED, "later", initial_position=pulsar.InitialPosition.Latest)
    producer = stored.stock.create_producer(DEDUPLICATED, DEDUPLICATED_PRODUCER, batching_enabled=False)
    assert producer.last_sequence_id() == last
    producer.send(b"sent before", sequence_id=last)
    producer.send(b"not sent before", sequence_id=last + 1)
    assert [text_of(one) for one in receive(consumer, 1)] == ["not sent before"]
    producer.close()
    consumer.close()


def test_the_compacted_view_has_the_last_value_of_each_key(stored: Stored) -> None:
    expected = [*stored.manifest["facts"]["compacted"], NEW]
    reader = stored.stock.create_reader(COMPACTED, pulsar.MessageId.earliest, is_read_compacted=True)
    assert [text_of(reader.read_next(30_000)) for _ in expected] == expected
    reader.close()


def test_a_terminated_topic_is_still_terminated_and_readable(stored: Stored) -> None:
    expected = stored.manifest["facts"]["terminated"]
    consumer = subscribe(stored.stock, CLOSED, "all", "Exclusive")
    assert [text_of(one) for one in receive(consumer, len(expected))] == expected
    consumer.close()
    with pytest.raises(pulsar.TopicTerminated):
        send_each(stored.stock, CLOSED, [NEW])


def test_deleted_topics_are_gone_and_can_be_created_again(stored: Stored) -> None:
    assert REMOVED not in stored.answers["topics"][NAMESPACE]
    assert SCALABLE_REMOVED not in stored.answers["scalable topics"][NAMESPACE]
    stored.admin.topics.create(REMOVED)
    consumer = subscribe(stored.stock, REMOVED, "all", "Exclusive")
    send_each(stored.stock, REMOVED, [NEW])
    assert [text_of(one) for one in receive(consumer, 1)] == [NEW]
    consumer.close()
    stored.admin.scalable_topics.create(SCALABLE_REMOVED, segments=2)
    with (
        stored.sdk.stream_consumer(SCALABLE_REMOVED, subscription="s", start="earliest") as scalable,
        stored.sdk.producer(SCALABLE_REMOVED) as producer,
    ):
        producer.send(b"again", key="k")
        assert [one.data for one in read(scalable, 1)] == [b"again"]


def test_the_broker_starts_again_on_what_it_has_written(stored: Stored) -> None:
    """The last test: it stops the broker that all others use."""
    topic = f"persistent://{NAMESPACE}/plain"
    stored.admin.subscriptions.create(topic, "today", at="latest")
    send_each(stored.stock, topic, ["written today"])
    stored.broker.restart()
    consumer = subscribe(stored.stock, topic, "today", "Exclusive")
    assert [text_of(one) for one in receive(consumer, 1)] == ["written today"]
    consumer.close()
    assert stored.broker.log_complaints() == []
