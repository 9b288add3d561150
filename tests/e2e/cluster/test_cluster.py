"""Three brokers on one data directory with the stock client: who serves what, planned moves, what comes along.

All tests share one cluster; a broker that a test ended is started again before the next one.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, rest
from tests.support.traffic.audited_topic import AuditedTopic
from tests.support.traffic.delivery_audit import by_stream, judge
from tests.support.traffic.stock_client import new_client
from tests.support.traffic.stock_traffic import EARLIEST, OnceSender, Subscription

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

NAMESPACE = "public/default"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3, session_ms=3_000) as started:
        yield started


@pytest.fixture
def cluster(processes: ClusterProcesses) -> ClusterProcesses:
    """All of them serve, whatever the test before did to them."""
    processes.revive()
    return processes


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[pulsar.Client]:
    stock = new_client(cluster.service_url)
    yield stock
    stock.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://{NAMESPACE}/t-{uuid.uuid4().hex[:12]}"


def of(topic: str, rest_of_path: str = "") -> str:
    return f"/admin/v2/{topic.replace('://', '/')}{rest_of_path}"


# -- who serves what


def test_every_broker_names_the_same_owner_and_the_owner_serves(cluster: ClusterProcesses) -> None:
    topics = [f"persistent://{NAMESPACE}/lookup-{number}" for number in range(12)]
    for number, topic in enumerate(topics):
        owners = {cluster.owner(topic, by=broker).service_url for broker in cluster.alive}
        assert len(owners) == 1
        asked = cluster.alive[number % 3]
        client = new_client(asked.service_url)  # knows one broker; the lookup takes it to the owner
        client.create_producer(topic).send(b"x")
        for broker in cluster.alive:
            assert serves(broker, topic) == (broker.service_url in owners)
        client.close()
    assert len({cluster.owner(topic).service_url for topic in topics}) == 3


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def serves(broker: BrokerProcess, topic: str) -> bool:
    try:
        urllib.request.build_opener(NoRedirects()).open(f"{broker.http_url}{of(topic, '/stats')}", timeout=10).close()
    except urllib.error.HTTPError as error:
        assert error.code == 307
        return False
    return True


def relayed(broker: BrokerProcess, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{broker.http_url}{path}", method=method, headers=headers)
    try:
        with urllib.request.build_opener(NoRedirects()).open(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_page_gets_answers_of_the_owner_from_every_broker(cluster: ClusterProcesses) -> None:
    """A page cannot follow a redirect to another port, so the asked broker passes its requests on."""
    name = f"relayed-{uuid.uuid4().hex[:8]}"
    topic, path = f"persistent://{NAMESPACE}/{name}", of(f"persistent://{NAMESPACE}/{name}")
    rest(cluster.alive[0], "PUT", path, {})
    page, program = {"Sec-Fetch-Site": "same-origin"}, {"X-Anabranch-Relay": "1"}
    for broker in cluster.alive:
        is_owner = broker.service_url == cluster.owner(topic).service_url
        assert relayed(broker, "GET", f"{path}/stats", {})[0] == (200 if is_owner else 307)
        for headers in (page, program):
            status, body = relayed(broker, "GET", f"{path}/stats?getPreciseBacklog=true", headers)
            assert status == 200 and b"msgRateIn" in body
        assert relayed(broker, "PUT", f"{path}/subscription/from-{broker.http_port}", page)[0] == 204
        assert relayed(broker, "PUT", f"{path}/subscription/from-{broker.http_port}", page)[0] == 409
        passed_on = {**page, "X-Anabranch-Relayed": "1"}  # is not passed on again
        assert relayed(broker, "GET", f"{path}/stats", passed_on)[0] == (200 if is_owner else 307)
        assert relayed(broker, "GET", f"{path}/stats", {"Sec-Fetch-Site": "cross-site"})[0] == 403


def partitioned(cluster: ClusterProcesses, count: int) -> str:
    """A topic that gets so many partitions when it is first used."""
    namespace = f"public/p-{uuid.uuid4().hex[:8]}"
    rest(cluster.alive[0], "PUT", f"/admin/v2/namespaces/{namespace}", {})
    wish = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": count}
    rest(cluster.alive[0], "POST", f"/admin/v2/namespaces/{namespace}/autoTopicCreation", wish)
    return f"persistent://{namespace}/parts"


def test_partitions_spread_over_all_brokers(cluster: ClusterProcesses, client: pulsar.Client) -> None:
    topic = partitioned(cluster, 30)
    assert {cluster.owner(f"{topic}-partition-{n}").service_url for n in range(30)} == {
        broker.service_url for broker in cluster.alive
    }
    consumer = client.subscribe(topic, "all", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for number in range(60):
        producer.send(str(number).encode())
    assert {int(consumer.receive(10_000).data()) for _ in range(60)} == set(range(60))


def test_policies_changed_at_one_broker_hold_at_the_others(cluster: ClusterProcesses, client: pulsar.Client) -> None:
    namespace = f"public/n-{uuid.uuid4().hex[:8]}"
    rest(cluster.alive[0], "PUT", f"/admin/v2/namespaces/{namespace}", {})
    topics = [f"persistent://{namespace}/t-{number}" for number in range(12)]
    for topic in topics:  # loaded, each at its owner, before the policy is there
        client.create_producer(topic, producer_name="one").send(b"x")
    rest(cluster.alive[0], "POST", f"/admin/v2/namespaces/{namespace}/maxProducersPerTopic", 1)
    for topic in topics:
        cluster.until(partial(is_refused, client, topic), f"{topic} takes a second producer")


def is_refused(client: pulsar.Client, topic: str) -> bool:
    try:
        client.create_producer(topic).close()
    except pulsar.PulsarException:
        return True
    return False


# -- the owner dies


def test_kill_of_the_owner_under_load(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    books = AuditedTopic(client, topic)
    for _ in range(2):
        books.go_on(cluster)
        owner = cluster.owner(topic)
        owner.kill9()
        books.go_on(cluster)
        assert cluster.owner(topic) is not owner
        cluster.revive()
    books.close(cluster)
    assert cluster.log_complaints() == []


def test_acknowledged_messages_stay_acknowledged(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for number in range(100):
        producer.send(str(number).encode())
    kept = set()
    for _ in range(100):
        message = consumer.receive(10_000)
        number = int(message.data())
        if number % 10 == 3:
            kept.add(number)
        else:
            consumer.acknowledge(message)
    wait_acks_durable(cluster, topic, "sub", 10)
    cluster.owner(topic).kill9()
    again = {int(consumer.receive(20_000).data()) for _ in range(10)}
    assert again == kept
    producer.send(b"100")
    assert int(consumer.receive(10_000).data()) == 100


def wait_acks_durable(cluster: ClusterProcesses, topic: str, subscription: str, unacked: int) -> None:
    def backlog() -> bool:
        stats = rest(cluster.owner(topic), "GET", of(topic, "/stats"))
        return bool(stats["subscriptions"][subscription]["unackedMessages"] == unacked)

    cluster.until(backlog, "acks did not arrive")
    time.sleep(2.5)  # the documented window, and some air for a busy machine


def test_no_duplicates_with_deduplication(cluster: ClusterProcesses, client: pulsar.Client) -> None:
    namespace = f"public/once-{uuid.uuid4().hex[:8]}"
    rest(cluster.alive[0], "PUT", f"/admin/v2/namespaces/{namespace}", {})
    rest(cluster.alive[0], "POST", f"/admin/v2/namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/once"
    sender = OnceSender(lambda: client, topic, "once-0")
    audit = Subscription(topic, "audit", pulsar.ConsumerType.Exclusive, 1)
    client.subscribe(topic, "audit", initial_position=EARLIEST).close()
    sender.start()

    def go_on() -> None:
        least = (sender.acknowledged[-1][1] if sender.acknowledged else 0) + 200
        cluster.until(lambda: bool(sender.acknowledged) and sender.acknowledged[-1][1] > least, "no receipts")

    for _ in range(2):
        go_on()
        cluster.owner(topic).kill9()
        go_on()
        sender.start_over()  # sends confirmed messages again
        cluster.revive()
    go_on()
    sender.stop()
    sender.join(30)
    assert sender.failure is None
    audit.open(client)
    confirmed = set(sender.acknowledged)
    cluster.until(lambda: confirmed <= set(audit.seen), "messages are missing")
    audit.close()
    verdict = judge(by_stream(confirmed), by_stream(audit.seen))
    assert verdict.holds
    assert verdict.repeated == 0


def test_message_ids_stay_valid(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(str(number).encode()) for number in range(20)]
    consumer = client.subscribe(topic, "sub", initial_position=EARLIEST)
    consumer.seek(ids[7])
    before = consumer.receive(10_000)
    cluster.owner(topic).kill9()
    ids += [producer.send(str(number).encode()) for number in range(20, 30)]
    assert sorted(ids) == ids
    consumer.seek(ids[7])
    after = consumer.receive(10_000)
    assert (after.data(), after.message_id()) == (before.data(), before.message_id())
    reader = client.create_reader(topic, ids[12])
    assert [int(reader.read_next(10_000).data()) for _ in range(17)] == list(range(13, 30))


class Reading(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
    celsius = pulsar.schema.Float()


class Other(pulsar.schema.Record):  # type: ignore[misc]  # as above
    celsius = pulsar.schema.Array(pulsar.schema.String())


def test_schemas_survive_a_takeover(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    schema = pulsar.schema.AvroSchema(Reading)
    client.create_producer(topic, schema=schema).send(Reading(celsius=1.5))
    path = f"/admin/v2/schemas/{topic.partition('://')[2]}/schema"
    before = rest(cluster.alive[0], "GET", path)
    cluster.owner(topic).kill9()
    consumer = client.subscribe(topic, "sub", schema=schema, initial_position=EARLIEST)
    assert consumer.receive(20_000).value().celsius == 1.5
    assert rest(cluster.owner(topic), "GET", path) == before
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=pulsar.schema.AvroSchema(Other))


def test_delayed_messages_survive_a_takeover(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    due = time.time() + 6.0
    producer.send(b"later", deliver_at=int(due * 1000))
    producer.send(b"now")
    assert consumer.receive(10_000).data() == b"now"
    cluster.owner(topic).kill9()
    producer.send(b"soon")
    missing = {b"soon", b"later"}  # in this order, unless the takeover took as long as the delay
    while missing:
        value = consumer.receive(20_000).data()
        assert value != b"later" or time.time() >= due - 0.01
        missing.discard(value)


def test_exclusive_producers_stay_exclusive(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    mode = pulsar.ProducerAccessMode
    client.subscribe(topic, "keeps").close()  # what no subscription needs is trimmed after each takeover
    first = client.create_producer(topic, access_mode=mode.Exclusive, send_timeout_millis=20_000)
    first.send(b"1")
    cluster.owner(topic).kill9()
    first.send(b"2")  # it comes back with its epoch
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=mode.Exclusive)
    second = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing, send_timeout_millis=20_000)
    second.send(b"3")
    cluster.owner(topic).kill9()
    second.send(b"4")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"5")  # was fenced before the owner died, and stays so
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    assert not reader.has_message_available()


# -- planned moves


def test_a_broker_that_is_stopped_hands_over(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    books = AuditedTopic(client, topic)
    books.go_on(cluster)
    owner = cluster.owner(topic)
    owner.stop(within_s=20)
    assert cluster.owner(topic) is not owner
    books.go_on(cluster)
    books.close(cluster)


def test_rolling_restart_under_load(cluster: ClusterProcesses, client: pulsar.Client) -> None:
    topic = partitioned(cluster, 6)
    books = AuditedTopic(client, topic)
    for broker in list(cluster.brokers.values()):
        books.go_on(cluster)
        broker.stop(within_s=20)
        books.go_on(cluster)
        broker.start()
        cluster.wait_settled()
    books.go_on(cluster)
    books.close(cluster)
    assert cluster.log_complaints() == []


def test_unload_under_load(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    books = AuditedTopic(client, topic)
    for _ in range(3):
        books.go_on(cluster)
        rest(cluster.alive[0], "PUT", of(topic, "/unload"))
    books.go_on(cluster)
    books.close(cluster)


# -- a broker that was away


def test_frozen_broker_steps_down_and_joins_again(cluster: ClusterProcesses, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "keeps").close()  # a sweep drops data without a subscription
    producer = client.create_producer(topic, send_timeout_millis=0)
    producer.send(b"before")
    owner = cluster.owner(topic)
    pid, lives = owner.pid, owner.lives
    owner.freeze()
    cluster.until(lambda: cluster.owner(topic, by=other_than(cluster, owner)) is not owner, "no broker took over")
    elsewhere = new_client(other_than(cluster, owner).service_url)
    fresh = elsewhere.create_producer(topic)
    fresh.send(b"meanwhile")
    owner.thaw()
    cluster.until(lambda: owner.lives > lives, "it does not join again")
    assert "another broker has taken over; restarting to join again" in owner.log_tail()
    assert (owner.is_alive, owner.pid) == (True, pid), "a process manager sees one process"
    producer.send(b"after")
    reader = elsewhere.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(3)] == [b"before", b"meanwhile", b"after"]
    elsewhere.close()
    cluster.wait_settled()  # and it is one of them again


def other_than(cluster: ClusterProcesses, broker: BrokerProcess) -> BrokerProcess:
    return next(one for one in cluster.alive if one is not broker)
