"""Asks the broker for the definitions that messages were written with, while those messages wait. Knows the pool and
waiting; what is done with a definition is `reading`'s business."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from anabranch.client.config import Backoff
from anabranch.client.connection.connection_pool import Pool
from anabranch.client.errors import ClientError, refusal
from anabranch.client.messages.message import Message
from anabranch.client.schema.reading import Reading, Version
from anabranch.client.schema.schema import Schema
from anabranch.model.schema import Schema as Definition
from anabranch.model.schema import SchemaType
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)


class Ground(Protocol):
    @property
    def pool(self) -> Pool: ...
    @property
    def backoff(self) -> Backoff: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def chance(self) -> Chance: ...


class SchemaResolver:
    """One for each consumer with a schema."""

    def __init__(self, schema: Schema, ground: Ground, tasks: TaskOwner) -> None:
        self.reading = Reading(schema)
        self._ground = ground
        self._tasks = tasks
        self._asked: dict[Version, list[Callable[[], None]]] = {}

    def prepare(self, messages: Sequence[Message], when_ready: Callable[[], None]) -> bool:
        """True when all of these can be read. Otherwise what is missing is asked for, and `when_ready` is called when
        it is there."""
        unknown = self.reading.unknown(messages)
        if not unknown:
            return True
        left = len(unknown)

        def one_more() -> None:
            nonlocal left
            left -= 1
            if not left:
                when_ready()

        for version in unknown:
            waiting = self._asked.get(version)
            if waiting is not None:
                waiting.append(one_more)
            else:
                self._asked[version] = [one_more]
                self._tasks.spawn(self._learn(version), "schema")
        return False

    def finish(self, message: Message) -> None:
        """The message goes to the application."""
        message.decoder = self.reading.decoder_for(message)

    async def _learn(self, version: Version) -> None:
        """Until there is an answer: a broker that restarts is no reason to hand out what cannot be read."""
        ground, attempt = self._ground, 0
        while True:
            try:
                self.reading.learned(version, await definition_of(ground.pool, *version))
                break
            except ClientError as error:
                if not error.retryable:
                    self.reading.failed(version, error)
                    break
                log.info("asking for a schema again", extra={"topic": version[0], "reason": error.reason})
            await ground.clock.sleep(ground.backoff.delay(attempt, ground.chance.random()))
            attempt += 1
        for ready in self._asked.pop(version):
            ready()


async def definition_of(pool: Pool, topic: str, version: bytes | None) -> Definition:
    """What the broker has under this version (None: the latest); raises what it refuses with."""
    connection = await pool.connection()  # any broker knows
    answer = await connection.ask(
        BaseCommand.GET_SCHEMA, pool.answer_timeout_s, topic=topic, schema_version=version or None
    )
    if answer.HasField("error_code"):
        raise refusal(answer.error_code, answer.error_message)
    found = answer.schema
    properties = {pair.key: pair.value for pair in found.properties}
    return Definition(SchemaType(int(found.type)), bytes(found.schema_data), properties)


def on_wire(schema: Schema | None) -> pb.Schema | None:
    """As PRODUCER and SUBSCRIBE carry it; nothing for bytes."""
    definition = None if schema is None else schema.definition
    if definition is None:
        return None
    pairs = [pb.KeyValue(key=name, value=value) for name, value in definition.properties.items()]
    made = pb.Schema(name=definition.type.name, schema_data=definition.data, properties=pairs)
    made.type = int(definition.type)  # type: ignore[assignment]  # the numbers are the wire's
    return made
