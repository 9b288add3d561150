"""A scalable topic is deleted and created again while brokers are killed: every open producer and consumer goes on.

Two brokers as processes on SQLite, and the SDK in this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from anabranch import Checkpoint
from anabranch.blocking import BlockingClient, BlockingProducer, connect
from anabranch.client.blocking import BlockingCheckpointConsumer, BlockingQueueConsumer, BlockingStreamConsumer
from anabranch.client.errors import TopicNotFound
from tests.support.processes.cluster import RestRefused
from tests.support.processes.scalable_cluster import NAMESPACE, Brokers, kill_at, new_topic, scalable_brokers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("scalable-failover")]

RECEIVE_SECONDS = 60.0
KINDS = ("stream", "queue", "checkpoint", "group")
Consumer = BlockingStreamConsumer | BlockingQueueConsumer | BlockingCheckpointConsumer


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with scalable_brokers(tmp_path_factory.mktemp("recreated"), "sqlite") as found:
        yield found


@pytest.fixture
def brokers(started: Brokers) -> Brokers:
    """Both serve, whatever the test before did to them."""
    started.die_at.unlink(missing_ok=True)
    started.processes.revive()
    return started


def opened(client: BlockingClient, topic: str) -> Mapping[str, Consumer]:
    return {
        "stream": client.stream_consumer(topic, subscription="streaming"),
        "queue": client.queue_consumer(topic, subscription="queueing"),
        "checkpoint": client.checkpoint_consumer(topic, start=Checkpoint.latest()),
        "group": client.checkpoint_consumer(topic, start=Checkpoint.latest(), group="grouping"),
    }


def received(consumer: Consumer, *wanted: str) -> bool:
    """All of them, among duplicates: a broker was killed."""
    missing = set(wanted)
    while missing:
        message = consumer.receive(timeout=RECEIVE_SECONDS)
        if message is None:
            return False
        missing.discard(message.data.decode())
    return True


def sent(producer: BlockingProducer, *values: str) -> None:
    for value in values:
        while True:
            try:
                producer.send(value.encode(), key=value, timeout=RECEIVE_SECONDS)
            except TopicNotFound:  # deleted, and the producer does not know yet that it was created again
                continue
            break


def delete(brokers: Brokers, name: str) -> None:
    """Also if another broker has to finish it, or if the leader died before it stored the intent."""

    def done() -> bool:
        try:
            brokers.ask("DELETE", f"{name}?force=true")
        except RestRefused as error:
            return error.status == 404
        return True

    brokers.until(done, "the deletion was not finished")


def recreate(brokers: Brokers, topic: str, segments: int) -> None:
    def made() -> bool:
        try:
            brokers.ask("PUT", f"{topic}?numInitialSegments={segments}")
        except RestRefused as error:
            if error.status == 409:  # the deletion is not finished
                return False
            raise
        return True

    brokers.until(made, "the topic was not created again")


@pytest.mark.parametrize(("step", "segments"), [("before-delete", 2), ("before-delete:2", 1), ("after-delete", 3)])
def test_leader_killed_during_the_deletion(brokers: Brokers, step: str, segments: int) -> None:
    name = new_topic(brokers, 2)
    topic = f"topic://{NAMESPACE}/{name}"
    with connect(brokers.processes.service_url) as client:
        consumers, producer = opened(client, topic), client.producer(topic)
        sent(producer, "old")
        assert [kind for kind in KINDS if not received(consumers[kind], "old")] == []
        kill_at(brokers, step, "DELETE", f"{name}?force=true")
        delete(brokers, name)
        recreate(brokers, name, segments)
        sent(producer, "a", "b", "c")
        assert [kind for kind in KINDS if not received(consumers[kind], "a", "b", "c")] == []


def test_leader_killed_after_the_topic_was_created_again(brokers: Brokers) -> None:
    name = new_topic(brokers, 2)
    topic = f"topic://{NAMESPACE}/{name}"
    with connect(brokers.processes.service_url) as client:
        consumers, producer = opened(client, topic), client.producer(topic)
        sent(producer, "old")
        assert [kind for kind in KINDS if not received(consumers[kind], "old")] == []
        delete(brokers, name)
        recreate(brokers, name, 2)
        brokers.leader_of(name).kill9()
        sent(producer, "a", "b", "c")
        assert [kind for kind in KINDS if not received(consumers[kind], "a", "b", "c")] == []
