"""Schemas over raw TCP: what the stock client does not send (other types, properties, GET_OR_CREATE_SCHEMA), and what
exactly is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.schemas.settings import SchemaSettings
from anabranch.model.names import TopicName
from anabranch.model.schema import SchemaType, key_value_data
from anabranch.node.node import Node
from anabranch.node.settings.node import NetworkSettings, NodeSettings
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from anabranch.rest.settings import HttpSettings
from anabranch.storage.settings import StorageSettings
from tests.support.traffic.raw_client import RawClient

TOPIC = "persistent://public/default/t"
V0, V1 = (0).to_bytes(8, "big"), (1).to_bytes(8, "big")


def schema(kind: SchemaType, data: bytes = b"", **properties: str) -> pb.Schema:
    made = pb.Schema(name="n", schema_data=data, type=pb.Schema.Type.Name(int(kind)))
    for key, value in properties.items():
        made.properties.add(key=key, value=value)
    return made


def avro(*fields: str) -> pb.Schema:
    definition = {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"} for name in fields]}
    return schema(SchemaType.AVRO, json.dumps(definition).encode())


@contextlib.asynccontextmanager
async def connected(directory: Path, **schemas: Any) -> AsyncIterator[tuple[Node, RawClient]]:
    settings = NodeSettings(
        network=NetworkSettings(port=0),
        http=HttpSettings(port=0),
        storage=StorageSettings(dir=directory, sync="none"),
        schemas=SchemaSettings(**schemas),
    )
    async with Node(settings) as node, RawClient(node.service_url) as client:
        await client.hello()
        yield node, client


PRIMITIVES = [
    kind for kind in SchemaType if 1 <= kind <= 19 and kind.name not in ("JSON", "PROTOBUF", "AVRO", "KEY_VALUE")
]


async def test_primitive_types(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        for number, kind in enumerate(PRIMITIVES):
            topic = f"{TOPIC}-{kind.name}"
            answer = await client.producer(topic, number, schema=schema(kind, b"null"))
            assert answer.body.schema_version == V0
            same = await client.producer(topic, 100 + number, schema=schema(kind))
            assert same.body.schema_version == V0
            assert (await client.subscribe(topic, consumer_id=number, schema=schema(kind))).kind == BaseCommand.SUCCESS
            other = PRIMITIVES[number - 1]
            refused = await client.producer(topic, 200 + number, schema=schema(other))
            assert refused.body.error == ServerError.IncompatibleSchema
            assert refused.body.message == (
                f"Incompatible schema: exists schema type {kind.name}, new schema type {other.name}"
            )
    assert len(PRIMITIVES) == 15


async def test_get_schema(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await client.producer(TOPIC, schema=schema(SchemaType.STRING, b"null", a="1", b="2"))

        async def ask(**fields: Any) -> Any:
            return (await client.ask(BaseCommand.GET_SCHEMA, topic=TOPIC, **fields)).body

        for found in (await ask(), await ask(schema_version=V0)):
            assert found.schema_version == V0
            assert (found.schema.name, found.schema.schema_data) == ("public/default/t", b"null")
            assert found.schema.type == pb.Schema.String
            assert {pair.key: pair.value for pair in found.schema.properties} == {"a": "1", "b": "2"}
        assert (await ask(schema_version=V1)).error_code == ServerError.TopicNotFound
        assert (await ask(schema_version=b"\xff" * 8)).error_code == ServerError.TopicNotFound
        assert (await ask(schema_version=b"1")).error_code == ServerError.TopicNotFound
        assert (await ask(schema_version=b"")).error_code == ServerError.IncompatibleSchema
        nowhere = await client.ask(BaseCommand.GET_SCHEMA, topic="persistent://no/where/t")
        assert nowhere.body.error_code == ServerError.TopicNotFound
        bad = await client.ask(BaseCommand.GET_SCHEMA, topic="a/b")
        assert bad.body.error_code == ServerError.NotAllowedError


async def test_get_or_create_schema(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):

        async def ask(wanted: pb.Schema, topic: str = TOPIC) -> Any:
            return (await client.ask(BaseCommand.GET_OR_CREATE_SCHEMA, topic=topic, schema=wanted)).body

        assert (await ask(avro("a"))).error_code == ServerError.TopicNotFound  # it does not create topics
        await client.producer(TOPIC)
        assert (await ask(avro("a"))).schema_version == V0
        assert (await ask(avro("a"))).schema_version == V0
        refused = await ask(avro("a", "b"))
        assert refused.error_code == ServerError.IncompatibleSchema
        assert "missing default value" in refused.error_message
        assert (await ask(schema(SchemaType.AVRO, b"{"))).error_code == ServerError.IncompatibleSchema
        assert (await ask(schema(SchemaType.NONE))).error_code == ServerError.IncompatibleSchema  # another type
        assert (await ask(schema(SchemaType.AUTO_CONSUME))).error_code == ServerError.IncompatibleSchema
        assert (await ask(avro("a"), "persistent://no/where/t")).error_code == ServerError.TopicNotFound


async def test_many_get_or_create_at_once(tmp_path: Path) -> None:
    async with connected(tmp_path, compatibility_strategy="ALWAYS_COMPATIBLE") as (_, client):
        await client.producer(TOPIC)
        asked = [avro(f"f{number % 4}") for number in range(16)]
        calls = (client.ask(BaseCommand.GET_OR_CREATE_SCHEMA, topic=TOPIC, schema=one) for one in asked)
        versions = [int.from_bytes(one.body.schema_version, "big") for one in await asyncio.gather(*calls)]
        assert sorted(set(versions)) == [0, 1, 2, 3]
        assert all(versions[number] == versions[number % 4] for number in range(16))


async def test_no_schema_no_version(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await client.producer(TOPIC, 1, schema=avro("a"))
        for number, bare in enumerate((None, schema(SchemaType.AUTO_CONSUME)), 2):
            assert (await client.producer(TOPIC, number, schema=bare)).body.schema_version == b""
            assert (await client.subscribe(TOPIC, consumer_id=number, schema=bare)).kind == BaseCommand.SUCCESS


async def test_producer_of_type_none_gets_a_version(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        plain = schema(SchemaType.NONE)
        assert (await client.producer(TOPIC, 1, schema=plain)).body.schema_version == V0
        created = await client.ask(BaseCommand.GET_OR_CREATE_SCHEMA, topic=TOPIC, schema=plain)
        assert (created.body.schema_version, created.body.HasField("error_code")) == (V0, False)
        found = (await client.ask(BaseCommand.GET_SCHEMA, topic=TOPIC)).body
        assert (found.schema.type, found.schema_version) == (0, V0)
        assert (await client.subscribe(TOPIC, consumer_id=2, schema=plain)).kind == BaseCommand.SUCCESS
        assert (await client.producer(TOPIC, 2)).body.schema_version == b""


async def test_auto_consume_sets_no_schema(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await client.subscribe(TOPIC, consumer_id=1, schema=schema(SchemaType.AUTO_CONSUME))
        assert (await client.subscribe(TOPIC, consumer_id=2, schema=avro("a"))).kind == BaseCommand.SUCCESS
        assert (await client.producer(TOPIC, schema=avro("a"))).body.schema_version == V0


async def test_key_value_with_types(tmp_path: Path) -> None:
    def pair(value: pb.Schema, **extra: str) -> pb.Schema:
        types = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": "SEPARATED", **extra}
        return schema(SchemaType.KEY_VALUE, key_value_data(b"", value.schema_data), **types)

    optional = avro("a")
    fields = {"name": "b", "type": "int", "default": 0}
    definition = json.loads(optional.schema_data)
    definition["fields"].append(fields)
    optional.schema_data = json.dumps(definition).encode()
    async with connected(tmp_path) as (_, client):
        assert (await client.producer(TOPIC, 1, schema=pair(avro("a")))).body.schema_version == V0
        assert (await client.producer(TOPIC, 2, schema=pair(optional))).body.schema_version == V1
        for refused in (pair(avro("z")), pair(avro("a"), **{"kv.encoding.type": "INLINE"})):
            assert (await client.producer(TOPIC, 3, schema=refused)).body.error == ServerError.IncompatibleSchema


async def test_a_refused_producer_leaves_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path, versions_max=1) as (node, client):
        await client.producer(TOPIC, 1, schema=avro("a"))
        assert (await client.producer(TOPIC, 2, schema=avro("z"))).body.error == ServerError.NotAllowedError  # full
        assert (await client.producer(TOPIC, 2, schema=schema(SchemaType.JSON))).body.error == (
            ServerError.IncompatibleSchema
        )
        topic = node.services.topics.loaded(TopicName.parse(TOPIC))
        assert topic is not None
        assert len(topic.producers) == 1
        client.send(0)
        await client.receipt()


async def test_one_slow_check_does_not_hold_up_the_broker(tmp_path: Path) -> None:
    """Two unions of 150 records each take the better part of a second to compare, off the event loop."""

    def huge(letter: str) -> pb.Schema:
        records = [
            {"type": "record", "name": f"{letter}{n}", "fields": [{"name": "a", "type": "int"}]} for n in range(150)
        ]
        definition = {"type": "record", "name": "R", "fields": [{"name": "u", "type": records}]}
        return schema(SchemaType.AVRO, json.dumps(definition).encode())

    async with connected(tmp_path) as (_, client):
        await client.producer(TOPIC, 1, schema=huge("x"))
        slow = asyncio.ensure_future(client.producer(TOPIC, 2, schema=huge("y")))
        answered = 0
        while not slow.done():
            await client.barrier()
            answered += 1
        assert (await slow).body.error == ServerError.IncompatibleSchema
        assert answered > 5


@pytest.mark.parametrize("enforced", [True, False])
async def test_validation_by_setting(tmp_path: Path, enforced: bool) -> None:
    async with connected(tmp_path, validation_enforced=enforced) as (_, client):
        await client.producer(TOPIC, 1, schema=avro("a"))
        answer = await client.producer(TOPIC, 2)
        assert (answer.kind == BaseCommand.ERROR) is enforced
