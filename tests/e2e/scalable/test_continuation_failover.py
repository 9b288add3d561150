"""The owner of a segment, or the leader of the topic, is killed around a split while one consumer reads on into the
children and has not acknowledged the parent: every key stays in order, and nothing is lost.

Two brokers as processes on SQLite. Segments and the topic have owners of their own, so a test chooses a topic whose
leader does not own its segment 0, and kills one of them only.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence

import pytest

from anabranch import Backoff, ConnectionPolicy, Message
from anabranch.blocking import BlockingProducer, connect
from anabranch.client.blocking import BlockingStreamConsumer
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.scalable_cluster import NAMESPACE, Brokers, ask_aside, scalable_brokers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("scalable-failover")]

SECONDS = 60.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
KEYS = 16
BLOCK = 64
TOPICS_MAX = 200


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with scalable_brokers(tmp_path_factory.mktemp("continuation"), "sqlite") as found:
        yield found


@pytest.fixture
def brokers(started: Brokers) -> Brokers:
    """Both serve, whatever the test before did to them."""
    started.die_at.unlink(missing_ok=True)
    started.processes.revive()
    return started


def owner_of(brokers: Brokers, name: str, segment_id: int) -> BrokerProcess:
    url = brokers.ask("GET", f"{name}/stats")["segments"][str(segment_id)]["broker"]
    return next(broker for broker in brokers.processes.brokers.values() if broker.service_url == url)


def divided_topic(brokers: Brokers) -> tuple[str, BrokerProcess, BrokerProcess]:
    """A topic of one segment, its leader, and the owner of the segment, another broker."""
    for _ in range(TOPICS_MAX):
        name = f"c-{uuid.uuid4().hex[:10]}"
        brokers.insist("PUT", f"{name}?numInitialSegments=1")
        leader, owner = brokers.leader_of(name), owner_of(brokers, name, 0)
        if leader is not owner:
            return name, leader, owner
    raise AssertionError("no topic with a leader that does not own its segment")


def publish(producer: BlockingProducer, sent: list[str], count: int) -> None:
    """Through a failover; a message may be stored twice then, never out of order."""
    for number in range(len(sent), len(sent) + count):
        producer.send(b"%d" % number, key=f"key-{number % KEYS}", timeout=SECONDS)
        sent.append(str(number))


def take(consumer: BlockingStreamConsumer, wanted: Sequence[str]) -> list[Message]:
    """Receive until all of these came; others may come in between, again."""
    missing, found = set(wanted), []
    while missing:
        message = consumer.receive(timeout=SECONDS)
        assert message is not None, f"{sorted(missing, key=int)} did not come"
        missing.discard(message.data.decode())
        found.append(message)
    return found


def check_order(messages: Sequence[Message], texts: Sequence[str]) -> None:
    """First deliveries are complete, and those of every key in order; redeliveries repeat them."""
    first: dict[str, None] = dict.fromkeys(message.data.decode() for message in messages)
    assert sorted(first, key=int) == list(texts)
    for key in range(KEYS):
        mine = [int(text) for text in first if int(text) % KEYS == key]
        assert mine == sorted(mine), f"key {key} out of order"


def check_remainder(messages: Sequence[Message], parent: Sequence[str], texts: Sequence[str]) -> None:
    """What a restarted consumer gets: the rest of the parent before its children, and every key in order."""
    check_order(messages, texts)
    lanes = [message.id.lane for message in messages]
    assert lanes[: len(parent)] == [0] * len(parent) and 0 not in lanes[len(parent) :]
    assert [message.data.decode() for message in messages[: len(parent)]] == list(parent)


@pytest.mark.parametrize("victim", ["owner", "leader"])
@pytest.mark.parametrize("moment", ["before the split", "children being read", "partly acknowledged"])
def test_kill_around_a_split_keeps_order(brokers: Brokers, victim: str, moment: str) -> None:
    name, leader, owner = divided_topic(brokers)
    killed = owner if victim == "owner" else leader
    topic, sent = f"topic://{NAMESPACE}/{name}", list[str]()
    with connect(brokers.processes.service_url, connection=QUICK) as client:
        with (
            client.stream_consumer(topic, subscription="s", name="c", start="earliest") as consumer,
            client.producer(topic) as producer,
        ):
            publish(producer, sent, BLOCK)
            messages = take(consumer, sent)
            acked = BLOCK // 2
            consumer.ack_cumulative(messages[acked - 1])
            if moment == "before the split":
                asking = ask_aside(brokers, "POST", f"{name}/split/0?operationId=op")
                killed.kill9()
                asking.join(SECONDS)
            brokers.insist("POST", f"{name}/split/0?operationId=op")
            publish(producer, sent, BLOCK)
            if moment == "children being read":
                messages += take(consumer, sent[BLOCK : BLOCK + BLOCK // 2])
                killed.kill9()
            publish(producer, sent, BLOCK)
            seen = {message.data.decode() for message in messages}
            messages += take(consumer, [text for text in sent if text not in seen])
            check_order(messages, sent)
            if moment == "partly acknowledged":
                parent_end = next(one for one in messages if one.data.decode() == sent[BLOCK - 4])
                acked = BLOCK - 3
                consumer.ack_cumulative(parent_end.id)
                killed.kill9()
                publish(producer, sent, BLOCK)
                seen = {message.data.decode() for message in messages}
                messages += take(consumer, [text for text in sent if text not in seen])
                check_order(messages, sent)
        with client.stream_consumer(topic, subscription="s", name="c") as consumer:
            again = take(consumer, sent[acked:])
            check_remainder(again, sent[acked:BLOCK], sent[acked:])
            consumer.ack_cumulative(again[-1])
        with client.stream_consumer(topic, subscription="s", name="c") as consumer:
            assert consumer.receive(timeout=0.3) is None


def test_leader_killed_in_the_operation_keeps_order(brokers: Brokers) -> None:
    """Between the seal of the parent and the commit, while the consumer holds the parent's rest."""
    name, leader, _ = divided_topic(brokers)
    topic, sent = f"topic://{NAMESPACE}/{name}", list[str]()
    with connect(brokers.processes.service_url, connection=QUICK) as client:
        with (
            client.stream_consumer(topic, subscription="s", name="c", start="earliest") as consumer,
            client.producer(topic) as producer,
        ):
            publish(producer, sent, BLOCK)
            messages = take(consumer, sent)
            brokers.die_at.write_text("before-commit")
            asking = ask_aside(brokers, "POST", f"{name}/split/0?operationId=op")
            publishing = threading.Thread(target=publish, args=(producer, sent, BLOCK))
            publishing.start()
            brokers.processes.until(lambda: not leader.is_alive, "the leader did not die", SECONDS)
            asking.join(SECONDS)
            brokers.insist("POST", f"{name}/split/0?operationId=op")
            publishing.join(SECONDS)
            assert not publishing.is_alive()
            publish(producer, sent, BLOCK)
            messages += take(consumer, sent[BLOCK:])
            check_order(messages, sent)
            assert {1, 2} <= {message.id.lane for message in messages}
        with client.stream_consumer(topic, subscription="s", name="c") as consumer:
            again = take(consumer, sent)
            check_order(again, sent)
            lanes = [message.id.lane for message in again]
            assert lanes == sorted(lanes, key=bool), "children before the rest of their parent"
