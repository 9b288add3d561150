"""Schemas through the stock client: its classes, versions on messages, evolution, refusals, policies, deletion."""

from __future__ import annotations

import enum
import json
import urllib.parse
import uuid
from datetime import date
from typing import Any

import _pulsar
import pulsar
import pulsar.asyncio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    BytesSchema,
    CustomEnum,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    ProtobufNativeSchema,
    Record,
    Schema,
    String,
    StringSchema,
)

from tests.e2e.conftest import StartBroker
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import EARLIEST, RECEIVE_MS, Rest, eventually, receive_all
from tests.support.traffic.stock_client import new_client

BOTH = pytest.mark.parametrize("schema_class", [AvroSchema, JsonSchema])


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Address(Record):  # type: ignore[misc]  # the wheel has no types
    street = String(required=True)
    number = Integer()


class Order(Record):  # type: ignore[misc]  # the wheel has no types
    name = String(required=True)
    count = Integer(default=7, required_default=True)
    total = Long()
    weight = Double()
    height = Float()
    paid = Boolean()
    colour = CustomEnum(Colour)
    home = Address()
    others = Array(Address())
    tags = Array(String())
    prices = Map(Double())
    addresses = Map(Address())
    note = String()  # a union with null


def order(**values: Any) -> Any:
    return Order(
        name="a",
        total=1 << 40,
        weight=1.5,
        height=0.5,
        paid=True,
        colour=Colour.BLUE,
        home=Address(street="s", number=3),
        others=[Address(street="t", number=4)],
        tags=["x", "y"],
        prices={"p": 2.5},
        addresses={"h": Address(street="u", number=5)},
        **values,
    )


def first_versions() -> tuple[Any, Any, Any]:
    """Three classes called Item: the second adds a field with a default, the third one without."""

    def later() -> Any:
        class Item(Record):  # type: ignore[misc]  # the wheel has no types
            name = String(required=True)
            size = Integer(default=9, required=True, required_default=True)

        return Item

    def breaking() -> Any:
        class Item(Record):  # type: ignore[misc]  # the wheel has no types
            name = String(required=True)
            size = Integer(required=True)

        return Item

    class Item(Record):  # type: ignore[misc]  # the wheel has no types
        name = String(required=True)

    return Item, later(), breaking()


class AutoConsume(Schema):  # type: ignore[misc]  # the wheel has no types
    """Takes whatever the topic has: the wheel knows the type, so a class of the application's own can ask for it."""

    def __init__(self) -> None:
        super().__init__(None, _pulsar.SchemaType.AUTO_CONSUME, None, "AUTO_CONSUME")

    def decode_message(self, message: Any) -> Any:
        info = self._client.get_schema_info(message.topic_name(), message.int_schema_version())
        return AvroSchema(None, schema_definition=json.loads(info.schema())).decode(message.data())


class RawSchema(Schema):  # type: ignore[misc]  # the wheel has no types
    """A schema of any type and text, for payloads that are bytes."""

    def __init__(self, kind: Any, definition: str) -> None:
        super().__init__(bytes, kind, None, "raw")
        self._schema_info = _pulsar.SchemaInfo(kind, "raw", definition)

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, value: bytes) -> bytes:
        return value


def version_of(message: Any) -> int:
    return int(message._message.int_schema_version())


def schema_path(topic: str, last: str = "schema") -> str:
    tenant, namespace, local = topic.partition("://")[2].split("/", 2)
    return f"/admin/v2/schemas/{tenant}/{namespace}/{urllib.parse.quote(local, safe='')}/{last}"


def versions(rest: Rest, topic: str) -> list[int]:
    return [one["version"] for one in rest.expect("GET", schema_path(topic, "schemas"))["getSchemaResponses"]]


@pytest.fixture
def namespace(rest: Rest) -> str:
    """A new namespace, so that a test can set policies."""
    name = f"public/s-{uuid.uuid4().hex[:10]}"
    rest.create_namespace(name)
    return name


def set_strategy(rest: Rest, namespace: str, strategy: str) -> None:
    rest.expect("PUT", f"/admin/v2/namespaces/{namespace}/schemaCompatibilityStrategy", strategy)


# -- the wheel's classes


@BOTH
@pytest.mark.conformance("schema: JSON and Avro records", client="Python")
def test_records_with_everything(client: pulsar.Client, topic: str, schema_class: Any) -> None:
    consumer = client.subscribe(topic, "s", schema=schema_class(Order))
    producer = client.create_producer(topic, schema=schema_class(Order))
    producer.send(order())
    producer.send(order(count=1, note="n"))
    first, second = receive_all(consumer, 2)
    assert first.value() == order()
    assert first.value().colour is Colour.BLUE
    assert (first.value().count, first.value().note) == (7, None)
    assert (second.value().count, second.value().note) == (1, "n")
    assert [version_of(first), version_of(second)] == [0, 0]


def test_strings(client: pulsar.Client, rest: Rest, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("grüße")
    assert receive_all(consumer, 1)[0].value() == "grüße"
    found = rest.expect("GET", schema_path(topic))
    assert (found["version"], found["type"], found["data"]) == (0, "STRING", "null")


@pytest.mark.conformance("schema: bytes", client="Python")
def test_bytes_have_no_schema(client: pulsar.Client, rest: Rest, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=BytesSchema())
    client.create_producer(topic, schema=BytesSchema()).send(b"x")
    assert receive_all(consumer, 1)[0].schema_version() == ""
    assert rest.call("GET", schema_path(topic))[0] == 404


def test_protobuf_native(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=ProtobufNativeSchema(Timestamp))
    producer = client.create_producer(topic, schema=ProtobufNativeSchema(Timestamp))
    producer.send(Timestamp(seconds=5, nanos=6))
    message = receive_all(consumer, 1)[0]
    assert message.value() == Timestamp(seconds=5, nanos=6)
    assert version_of(message) == 0
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=ProtobufNativeSchema(Duration))


def test_own_avro_definitions(client: pulsar.Client, topic: str) -> None:
    definition = {
        "type": "record",
        "name": "Event",
        "namespace": "org.example",
        "fields": [
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "what", "type": ["null", "string", "long", {"type": "array", "items": "string"}]},
            {"name": "next", "type": ["null", "Event"], "default": None},
            {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 2}},
        ],
    }
    schema = AvroSchema(None, schema_definition=definition)
    consumer = client.subscribe(topic, "s", schema=schema)
    sent = {"day": date(2026, 11, 16), "what": ["a"], "next": None, "id": b"ab"}
    client.create_producer(topic, schema=schema).send({**sent, "next": {**sent, "what": 5}})
    assert receive_all(consumer, 1)[0].value() == {**sent, "next": {**sent, "what": 5}}


def test_key_value(client: pulsar.Client, rest: Rest, topic: str) -> None:
    """The wheel has no class for it; it tells the broker of such a schema all the same."""
    schema = RawSchema(_pulsar.SchemaType.KEY_VALUE, "\0" * 8)  # two empty definitions: bytes and bytes
    client.create_producer(topic, schema=schema)
    client.subscribe(topic, "s", schema=schema)
    found = rest.expect("GET", schema_path(topic))
    assert (found["type"], json.loads(found["data"])) == ("KEY_VALUE", {"key": "", "value": ""})
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=RawSchema(_pulsar.SchemaType.KEY_VALUE, "not two definitions"))


def test_readers_and_table_views(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, schema=JsonSchema(Address))
    producer.send(Address(street="s", number=1), partition_key="k")
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=JsonSchema(Address))
    assert reader.read_next(RECEIVE_MS).value() == Address(street="s", number=1)
    view = client.create_table_view(topic, schema=JsonSchema(Address))
    assert view.get("k") == Address(street="s", number=1)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_reader(topic, pulsar.MessageId.earliest, schema=StringSchema())


def test_topics_that_keep_nothing(client: pulsar.Client) -> None:
    topic = f"non-persistent://public/default/n-{uuid.uuid4().hex[:12]}"
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Address))
    client.create_producer(topic, schema=AvroSchema(Address)).send(Address(street="s", number=1))
    assert receive_all(consumer, 1)[0].value() == Address(street="s", number=1)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())


# -- whatever the topic has


def test_auto_consume(client: pulsar.Client, topic: str) -> None:
    """A consumer that knows no class reads each message by the version it was written with."""
    consumer = client.subscribe(topic, "s", schema=AutoConsume())
    item, later, _ = first_versions()
    client.create_producer(topic, schema=AvroSchema(item)).send(item(name="a"))
    client.create_producer(topic, schema=AvroSchema(later)).send(later(name="b", size=2))
    assert [message.value() for message in receive_all(consumer, 2)] == [{"name": "a"}, {"name": "b", "size": 2}]


# -- evolution


@BOTH
def test_old_and_new_read_each_other(client: pulsar.Client, rest: Rest, topic: str, schema_class: Any) -> None:
    item, later, _ = first_versions()
    old_reader = client.subscribe(topic, "old", schema=schema_class(item))
    client.create_producer(topic, schema=schema_class(item)).send(item(name="a"))
    client.create_producer(topic, schema=schema_class(later)).send(later(name="b", size=2))
    new_reader = client.subscribe(topic, "new", initial_position=EARLIEST, schema=schema_class(later))
    assert versions(rest, topic) == [0, 1]
    found = receive_all(new_reader, 2)
    assert [(one.value().name, one.value().size, version_of(one)) for one in found] == [("a", 9, 0), ("b", 2, 1)]
    if schema_class is AvroSchema:  # the wheel's JSON records refuse fields that they do not know
        assert [one.value().name for one in receive_all(old_reader, 2)] == ["a", "b"]


@BOTH
def test_an_incompatible_producer_is_refused(
    client: pulsar.Client, other_client: pulsar.Client, rest: Rest, topic: str, schema_class: Any
) -> None:
    item, _, breaking = first_versions()
    consumer = client.subscribe(topic, "s", schema=schema_class(item))
    producer = client.create_producer(topic, schema=schema_class(item))
    with pytest.raises(pulsar.IncompatibleSchema):
        other_client.create_producer(topic, schema=schema_class(breaking))
    producer.send(item(name="still here"))
    assert receive_all(consumer, 1)[0].value().name == "still here"
    assert versions(rest, topic) == [0]


@BOTH
def test_a_consumer_that_could_not_read_is_refused(client: pulsar.Client, topic: str, schema_class: Any) -> None:
    item, later, breaking = first_versions()
    client.create_producer(topic, schema=schema_class(item))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=schema_class(breaking))
    client.subscribe(topic, "s", schema=schema_class(later))


def test_types_do_not_mix(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(Address))
    for other in (JsonSchema(Address), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=other)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(topic, "s", schema=other)


def test_invalid_definitions_are_refused(client: pulsar.Client, rest: Rest, topic: str) -> None:
    for definition in ('{"type": "zzz"}', "no json", ""):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=RawSchema(_pulsar.SchemaType.AVRO, definition))
    assert rest.call("GET", schema_path(topic))[0] == 404


def test_a_huge_definition_is_refused_at_once(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=RawSchema(_pulsar.SchemaType.AVRO, " " * (512 * 1024 + 1)))
    client.create_producer(topic).send(b"the connection lives")


# -- with and without


def test_bytes_beside_a_schema(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "raw")
    client.create_producer(topic, schema=StringSchema()).send("a")
    client.create_producer(topic).send(b"b")
    found = receive_all(consumer, 2)
    assert [one.data() for one in found] == [b"a", b"b"]
    assert found[1].schema_version() == ""


def test_validation_enforced(client: pulsar.Client, rest: Rest, namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic, schema=StringSchema())
    bytes_before = client.create_producer(topic)
    rest.expect("POST", f"/admin/v2/namespaces/{namespace}/schemaValidationEnforced", True)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic)
    bytes_before.send(b"connected before")
    client.create_producer(f"persistent://{namespace}/bytes").send(b"no schema, no rule")


def test_the_first_consumer_says_what_an_unused_topic_holds(client: pulsar.Client, rest: Rest, topic: str) -> None:
    client.subscribe(topic, "s", schema=StringSchema())
    assert rest.expect("GET", schema_path(topic))["type"] == "STRING"
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Address))


def test_a_schema_does_not_explain_bytes_that_are_there(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(Address))


# -- other ways in


@pytest.mark.conformance("schema: JSON and Avro records", client="Python asyncio")
async def test_the_asyncio_client(broker: BrokerProcess, topic: str) -> None:
    client = pulsar.asyncio.Client(broker.service_url, operation_timeout_seconds=10)
    item, later, _ = first_versions()
    consumer = await client.subscribe(topic, "s", schema=JsonSchema(later))
    producer = await client.create_producer(topic, schema=JsonSchema(later))
    await producer.send(later(name="a", size=3))
    message = await consumer.receive()
    assert (message.value().size, version_of(message)) == (3, 0)
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await client.create_producer(topic, schema=AvroSchema(item))
    assert refused.value.error() == pulsar.Result.IncompatibleSchema
    await client.close()


def test_over_http(broker: BrokerProcess, topic: str) -> None:
    """A client with an http:// address looks topics and schemas up over REST."""
    item, later, _ = first_versions()
    client = new_client(broker.http_url, operation_timeout_seconds=10)
    client.create_producer(topic, schema=AvroSchema(item)).send(item(name="a"))
    client.create_producer(topic, schema=AvroSchema(later)).send(later(name="b", size=2))
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=AvroSchema(later))
    found = receive_all(consumer, 2)
    assert [(one.value().name, one.value().size) for one in found] == [("a", 9), ("b", 2)]  # by version 0 and version 1
    assert json.loads(client._client.get_schema_info(topic, 0).schema()) == item.schema()
    client.close()


def test_several_topics_with_one_consumer(client: pulsar.Client, topic: str) -> None:
    item, later, _ = first_versions()
    topics = [f"{topic}-a", f"{topic}-b"]
    for number, name in enumerate(topics):
        for one in (item, later)[: number + 1]:
            client.create_producer(name, schema=AvroSchema(one)).send(one(name=name))
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST, schema=AvroSchema(later))
    found = receive_all(consumer, 3)
    assert sorted((one.value().name, version_of(one)) for one in found) == [
        (topics[0], 0),
        (topics[1], 0),
        (topics[1], 1),
    ]
    client.create_producer(f"{topic}-c", schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe([*topics, f"{topic}-c"], "t", schema=AvroSchema(later))


# -- one history


def test_partitions_share_one_history(client: pulsar.Client, rest: Rest, partitioned_topic: str) -> None:
    _, later, _ = first_versions()
    consumer = client.subscribe(partitioned_topic, "s", schema=AvroSchema(later))
    producer = client.create_producer(partitioned_topic, schema=AvroSchema(later))
    for number in range(6):
        producer.send(later(name=f"{number}", size=1), partition_key=f"{number}")
    found = receive_all(consumer, 6)
    assert {message.value().name for message in found} == {"0", "1", "2", "3", "4", "5"}
    assert {version_of(message) for message in found} == {0}
    assert versions(rest, partitioned_topic) == versions(rest, f"{partitioned_topic}-partition-2") == [0]
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(f"{partitioned_topic}-partition-1", schema=AvroSchema(Address))


def test_versions_survive_a_restart(private_broker: BrokerProcess, topic: str) -> None:
    item, later, _ = first_versions()
    client = new_client(private_broker.service_url)
    producer = client.create_producer(topic, schema=AvroSchema(item))
    producer.send(item(name="a"))
    client.create_producer(topic, schema=AvroSchema(later)).send(later(name="b", size=1))
    client.close()
    private_broker.kill9()
    private_broker.start()
    client = new_client(private_broker.service_url)
    client.create_producer(topic, schema=AvroSchema(item)).send(item(name="c"))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(later))
    found = [reader.read_next(RECEIVE_MS) for _ in range(3)]
    assert [(one.value().name, version_of(one)) for one in found] == [("a", 0), ("b", 1), ("c", 0)]
    client.close()


def test_waiting_exclusive_producer_keeps_its_schema_version(
    client: pulsar.Client, other_client: pulsar.Client, topic: str
) -> None:
    """A producer that waited for exclusive access sends under the version of its own schema."""
    item, later, _ = first_versions()
    consumer = client.subscribe(topic, "s", schema=AvroSchema(later))  # version 0 is the later one
    exclusive, waits = pulsar.ProducerAccessMode.Exclusive, pulsar.ProducerAccessMode.WaitForExclusive
    first = client.create_producer(topic, schema=AvroSchema(later), access_mode=exclusive)
    made: list[tuple[Any, Any]] = []
    conf = _pulsar.ProducerConfiguration()
    conf.schema(AvroSchema(item).schema_info())
    conf.access_mode(waits)
    other_client._client.create_producer_async(topic, conf, lambda result, producer: made.append((result, producer)))
    first.send(later(name="a", size=1))
    first.close()
    eventually(lambda: bool(made), what="the waiting producer's turn")
    result, heir = made[0]
    assert result == pulsar.Result.Ok
    message = _pulsar.MessageBuilder().content(AvroSchema(item).encode(item(name="b"))).build()
    heir.send(message)
    assert [(one.value().name, version_of(one)) for one in receive_all(consumer, 2)] == [("a", 0), ("b", 1)]


# -- policies and administration

# (strategy, may a field without a default be added, may it be taken away again)
STRATEGIES = [
    ("BACKWARD", False, True),
    ("FORWARD", True, False),
    ("FULL", False, False),
    ("BACKWARD_TRANSITIVE", False, True),
    ("FORWARD_TRANSITIVE", True, False),
    ("FULL_TRANSITIVE", False, False),
    ("ALWAYS_COMPATIBLE", True, True),
    ("ALWAYS_INCOMPATIBLE", False, False),
]


@pytest.mark.parametrize(("strategy", "may_add", "may_remove"), STRATEGIES)
def test_strategies(
    client: pulsar.Client, rest: Rest, namespace: str, strategy: str, may_add: bool, may_remove: bool
) -> None:
    item, _, breaking = first_versions()

    def is_let_in(topic: str, before: type, after: type) -> bool:
        client.create_producer(topic, schema=AvroSchema(before))
        try:
            client.create_producer(topic, schema=AvroSchema(after))
        except pulsar.IncompatibleSchema:
            return False
        return True

    set_strategy(rest, namespace, strategy)
    assert is_let_in(f"persistent://{namespace}/add", item, breaking) is may_add
    assert is_let_in(f"persistent://{namespace}/remove", breaking, item) is may_remove


def test_a_strategy_takes_effect_at_once(client: pulsar.Client, rest: Rest, namespace: str) -> None:
    item, _, breaking = first_versions()
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic, schema=AvroSchema(item))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(breaking))
    set_strategy(rest, namespace, "FORWARD")
    client.create_producer(topic, schema=AvroSchema(breaking))
    assert versions(rest, topic) == [0, 1]


def test_the_brokers_own_strategy(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker(arguments=["--set", "schemas.compatibility_strategy=ALWAYS_COMPATIBLE"])
    client = new_client(broker.service_url)
    client.create_producer(topic, schema=StringSchema())
    client.create_producer(topic, schema=AvroSchema(Address))
    client.close()


def test_only_administrators_add_versions(client: pulsar.Client, rest: Rest, namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    rest.expect("POST", f"/admin/v2/namespaces/{namespace}/isAllowAutoUpdateSchema", False)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Address))
    posted = {"type": "AVRO", "schema": json.dumps(Address.schema()), "properties": {}}
    assert rest.expect("POST", schema_path(topic), posted) == {"version": {"version": 0}}
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Address))
    client.create_producer(topic, schema=AvroSchema(Address)).send(Address(street="s"))
    assert version_of(receive_all(consumer, 1)[0]) == 0


def test_deletion_goes_on_counting(client: pulsar.Client, rest: Rest, topic: str) -> None:
    client.create_producer(topic, schema=StringSchema()).close()
    assert rest.expect("DELETE", schema_path(topic)) == {"version": 1}
    assert rest.call("GET", schema_path(topic, "schema/0"))[0] == 404
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Address))
    client.create_producer(topic, schema=AvroSchema(Address)).send(Address(street="s"))
    assert version_of(receive_all(consumer, 1)[0]) == 2


def test_deleting_a_topic_deletes_its_schema(client: pulsar.Client, rest: Rest, topic: str) -> None:
    client.create_producer(topic, schema=StringSchema()).close()
    path = f"/admin/v2/persistent/public/default/{topic.rpartition('/')[2]}"
    eventually(lambda: rest.call("DELETE", path)[0] == 204, what="deletion")
    assert rest.call("GET", schema_path(topic))[0] == 404
    client.create_producer(topic, schema=AvroSchema(Address))


def test_clients_come_back_to_a_topic_deleted_by_force(client: pulsar.Client, rest: Rest, topic: str) -> None:
    """A client that reconnects registers its schema under a new version; messages in flight may have an old version."""
    item, later, _ = first_versions()
    client.create_producer(topic, schema=AvroSchema(item)).close()
    producer = client.create_producer(topic, schema=AvroSchema(later))
    producer.send(later(name="before", size=1))
    path = f"/admin/v2/persistent/public/default/{topic.rpartition('/')[2]}"
    rest.expect("DELETE", f"{path}?force=true")
    eventually(lambda: versions(rest, topic) == [3], what="a new version after the deletion, which was number 2")
    eventually(lambda: producer.is_connected(), what="the producer's return")
    producer.send(later(name="after", size=2))
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=AvroSchema(later))
    message = receive_all(consumer, 1)[0]
    assert (message.value().name, version_of(message)) == ("after", 3)


def test_the_client_asks_for_versions(client: pulsar.Client, topic: str) -> None:
    item, later, _ = first_versions()
    for one in (item, later):
        client.create_producer(topic, schema=AvroSchema(one))
    ask = client._client.get_schema_info
    assert [json.loads(ask(topic, version).schema()) for version in (0, 1)] == [item.schema(), later.schema()]
    assert ask(topic, 0).schema_type() == _pulsar.SchemaType.AVRO
    with pytest.raises(pulsar.TopicNotFound):
        ask(topic, 7)


class Blob(Record):  # type: ignore[misc]  # the wheel has no types
    content = Bytes(required=True)


def test_bytes_in_records(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Blob))
    client.create_producer(topic, schema=AvroSchema(Blob)).send(Blob(content=b"\0\xff"))
    assert receive_all(consumer, 1)[0].value().content == b"\0\xff"


@pytest.mark.parametrize("strategy", ["FULL_TRANSITIVE", "FORWARD_TRANSITIVE", "BACKWARD_TRANSITIVE"])
@pytest.mark.parametrize("schema_class", [AvroSchema, JsonSchema])
@pytest.mark.conformance("schema: renamed record, strategies", client="Python")
def test_renamed_record_class_is_compatible(
    client: pulsar.Client, rest: Rest, namespace: str, schema_class: Any, strategy: str
) -> None:
    """The name of the top-level record is that of the class; renaming a class changes no message."""

    class Before(Record):  # type: ignore[misc]  # the wheel has no types
        street = String(required=True)

    class After(Record):  # type: ignore[misc]  # the wheel has no types
        street = String(required=True)

    rest.expect("PUT", f"/admin/v2/namespaces/{namespace}/schemaCompatibilityStrategy", strategy)
    topic = f"persistent://{namespace}/renamed"
    client.create_producer(topic, schema=schema_class(Before)).send(Before(street="Main"))
    consumer = client.subscribe(topic, "s", schema=schema_class(After), initial_position=EARLIEST)
    client.create_producer(topic, schema=schema_class(After)).send(After(street="Side"))
    assert [message.value().street for message in receive_all(consumer, 2)] == ["Main", "Side"]
