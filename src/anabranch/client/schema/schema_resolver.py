"""Decoders for the schema versions that a consumer meets, fetched from the broker on first use.

A message names the version of the schema that it was written with. The resolver fetches each version once, and the
messages wait until it is known. A body is decoded when the application reads `Message.value`. A version that cannot be
fetched or read therefore fails there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anabranch.client.connection.connection_pool import ConnectionPool
from anabranch.client.context import ClientContext
from anabranch.client.errors import ClientError, HandshakeFailed, SchemaMismatch, refusal
from anabranch.client.messages.message import Message
from anabranch.client.schema.schema import Decoder, Schema
from anabranch.model.schema import Schema as Definition
from anabranch.model.schema import SchemaType
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

VERSIONS_MAX = 1000  # of one topic; brokers keep as many
Version = tuple[str, bytes]  # topic, and the version as its messages name it


class SchemaVersions:
    """The decoders of one consumer by schema version. Bounded: the oldest decoder is dropped and fetched again."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._decoders: dict[Version, Decoder] = {}

    def unknown(self, messages: Sequence[Message]) -> list[Version]:
        """Versions that must be fetched before these messages can be handed out."""
        if not self._schema.needs_writer:
            return []
        found = {(one.topic, one.schema_version): None for one in messages if one.schema_version}
        return [version for version in found if version not in self._decoders]

    def fetched(self, version: Version, definition: Definition) -> None:
        try:
            decoder = self._schema.reader_of(definition)
        except ClientError as error:
            self.failed(version, error)
        else:
            self._keep(version, decoder)

    def failed(self, version: Version, error: ClientError) -> None:
        """Messages of this version raise SchemaMismatch with the reason when their value is read."""

        def refuse(data: bytes) -> Any:
            raise SchemaMismatch(f"the message cannot be decoded: {error.reason}") from error

        self._keep(version, refuse)

    def _keep(self, version: Version, decoder: Decoder) -> None:
        if len(self._decoders) >= VERSIONS_MAX:
            self._decoders.pop(next(iter(self._decoders)))
        self._decoders[version] = decoder

    def decoder_for(self, message: Message) -> Decoder:
        return self._decoders.get((message.topic, message.schema_version), self._schema.decode)


class SchemaResolver:
    """One for each consumer with a schema."""

    def __init__(self, schema: Schema, context: ClientContext, tasks: TaskOwner) -> None:
        self._versions = SchemaVersions(schema)
        self._context = context
        self._tasks = tasks
        self._fetching: dict[Version, list[Callable[[], None]]] = {}

    def prepare(self, messages: Sequence[Message], when_ready: Callable[[], object]) -> bool:
        """True if all of these messages can be decoded now. Otherwise the missing versions are fetched, and
        `when_ready` is called once they are known."""
        unknown = self._versions.unknown(messages)
        if not unknown:
            return True
        left = len(unknown)

        def one_more() -> None:
            nonlocal left
            left -= 1
            if not left:
                when_ready()

        for version in unknown:
            waiting = self._fetching.get(version)
            if waiting is not None:
                waiting.append(one_more)
            else:
                self._fetching[version] = [one_more]
                self._tasks.spawn(self._fetch(version), "schema")
        return False

    def set_decoder(self, message: Message) -> None:
        """Called when the message is handed out to the application."""
        if message.encryption is None:  # else `value` is the ciphertext
            message.decoder = self._versions.decoder_for(message)

    async def _fetch(self, version: Version) -> None:
        """Retries until there is a final answer: a restarting broker must not make messages unreadable."""
        context, attempt = self._context, 0
        while True:
            try:
                self._versions.fetched(version, await fetch_definition(context.pool, *version))
                break
            except ClientError as error:
                if not error.retryable and not isinstance(error, HandshakeFailed):
                    self._versions.failed(version, error)
                    break
                delay = context.backoff.delay(attempt, context.chance.random())
                log.info(
                    "retrying to fetch a schema version",
                    extra={"topic": version[0], "reason": error.reason, "delay_s": delay},
                )
            await context.clock.sleep(delay)
            attempt += 1
        for ready in self._fetching.pop(version):
            ready()


async def fetch_definition(pool: ConnectionPool, topic: str, version: bytes | None) -> Definition:
    """The definition that brokers store under this version (None: the latest). Raises the broker's refusal."""
    connection = await pool.connection()  # every broker answers this
    answer = await connection.ask(
        BaseCommand.GET_SCHEMA, pool.answer_timeout_s, topic=topic, schema_version=version or None
    )
    if answer.HasField("error_code"):
        raise refusal(answer.error_code, answer.error_message)
    found = answer.schema
    properties = {pair.key: pair.value for pair in found.properties}
    return Definition(SchemaType(int(found.type)), bytes(found.schema_data), properties)


def schema_field(schema: Schema | None) -> pb.Schema | None:
    """The `schema` field of PRODUCER and SUBSCRIBE; None for bytes."""
    definition = None if schema is None else schema.definition
    if definition is None:
        return None
    pairs = [pb.KeyValue(key=name, value=value) for name, value in definition.properties.items()]
    made = pb.Schema(name=definition.type.name, schema_data=definition.data, properties=pairs)
    made.type = int(definition.type)  # type: ignore[assignment]  # the same numbers as on the wire
    return made
