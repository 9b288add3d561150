"""How one consumer reads bodies: a decoder for every version of the topic's schema that it has met.

Decides what must be learned and remembers it; asking the broker is the `SchemaResolver`'s work. Knows no connections,
no time. A body is decoded when the application looks at `Message.value`, so what cannot be read fails there and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.client.errors import ClientError, SchemaMismatch
from anabranch.client.messages.message import Message
from anabranch.client.schema.schema import Decoder, Schema
from anabranch.model.schema import Schema as Definition

VERSIONS_MAX = 1000  # of one topic, as brokers keep
Version = tuple[str, bytes]  # topic and what its messages say


class Reading:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._decoders: dict[Version, Decoder] = {}

    def unknown(self, messages: Sequence[Message]) -> list[Version]:
        """Versions among these that have to be learned before the messages can be handed out."""
        if not self._schema.needs_writer:
            return []
        found = {(one.topic, one.schema_version): None for one in messages if one.schema_version}
        return [version for version in found if version not in self._decoders]

    def learned(self, version: Version, definition: Definition) -> None:
        try:
            decoder = self._schema.reader_of(definition)
        except ClientError as error:
            self.failed(version, error)
        else:
            self._keep(version, decoder)

    def failed(self, version: Version, error: ClientError) -> None:
        """It cannot be learned; whoever looks at such a message hears why."""

        def refuse(data: bytes) -> Any:
            raise SchemaMismatch(f"the message cannot be read: {error.reason}") from error

        self._keep(version, refuse)

    def _keep(self, version: Version, decoder: Decoder) -> None:
        if len(self._decoders) >= VERSIONS_MAX:
            self._decoders.pop(next(iter(self._decoders)))
        self._decoders[version] = decoder

    def decoder_for(self, message: Message) -> Decoder:
        return self._decoders.get((message.topic, message.schema_version), self._schema.decode)
