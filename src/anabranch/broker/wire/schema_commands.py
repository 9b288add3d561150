"""GET_SCHEMA and GET_OR_CREATE_SCHEMA, and the schema field of other commands."""

from __future__ import annotations

from typing import Any

from anabranch.broker.errors import IncompatibleSchema, SchemaNotFound
from anabranch.broker.schemas.registry import VERSION_BYTES, is_schemaless, schema_name, version_bytes
from anabranch.broker.services import Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.model.schema import Schema, SchemaType
from anabranch.protocol import replies
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.frames import Frame
from anabranch.protocol.server_errors import server_error
from anabranch.security.authorization import Resource


class SchemaCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.GET_SCHEMA): self._get,
            int(BaseCommand.GET_OR_CREATE_SCHEMA): self._get_or_create,
        }

    def _get(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_get(body), "schema")

    async def _answer_get(self, body: Any) -> None:
        try:
            topic = TopicName.parse(body.topic)
            await self._connection.authorize(BaseCommand.GET_SCHEMA, Resource.of_topic(topic))
            asked = _asked_version(body.schema_version) if body.HasField("schema_version") else None
            found = await self._services.schemas.get(topic, asked)
        except Error as error:
            answer = replies.schema_failed(body.request_id, server_error(error), error.reason)
        else:
            answer = replies.schema(
                body.request_id,
                name=schema_name(topic),
                type_number=int(found.schema.type),
                data=found.schema.data,
                properties=found.schema.properties,
                version=version_bytes(found.version),
            )
        self._connection.send(answer)

    def _get_or_create(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_get_or_create(body), "schema")

    async def _answer_get_or_create(self, body: Any) -> None:
        try:
            topic = TopicName.parse(body.topic)
            await self._connection.authorize(BaseCommand.GET_OR_CREATE_SCHEMA, Resource.of_topic(topic))
            await self._services.topics.get(topic, create=False)
            schema = wire_schema(body)
            if is_schemaless(schema):
                raise IncompatibleSchema("AUTO_CONSUME is a request of consumers, not a schema")
            version = await self._services.schemas.admit_producer(topic, schema)
        except Error as error:
            answer = replies.get_or_create_schema_failed(body.request_id, server_error(error), error.reason)
        else:
            answer = replies.get_or_create_schema(body.request_id, version_bytes(version))
        self._connection.send(answer)


def wire_schema(body: Any) -> Schema | None:
    """The schema of a PRODUCER, SUBSCRIBE or GET_OR_CREATE_SCHEMA; None if the client sent none."""
    if not body.HasField("schema"):
        return None
    sent = body.schema
    properties = {pair.key: pair.value for pair in sent.properties}
    return Schema(SchemaType(int(sent.type)), bytes(sent.schema_data), properties)


def _asked_version(data: bytes) -> int:
    if not data:
        raise IncompatibleSchema("the schema version is empty")
    if len(data) != VERSION_BYTES:
        raise SchemaNotFound(f"a schema version has {VERSION_BYTES} bytes, not {len(data)}")
    return int.from_bytes(data, "big")
