"""The decoded messages of one entry: columns first, `Message` objects when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import overload

from anabranch.client.encryption.decryptor import EncryptionContext
from anabranch.client.messages.message import NULL, Message, MessageId, Origin
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec import NO_SEQUENCE, Body, Run, core
from anabranch.protocol.codec.reading import alone
from anabranch.protocol.codec.rows import Rows, key_of
from anabranch.protocol.entry import Bytes
from anabranch.protocol.errors import BadEntry

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class EntryContents:
    """The messages of one decompressed entry. Raises BadEntry if the format is violated."""

    __slots__ = ("_body", "_rows", "compacted", "encryption", "of", "size")

    def __init__(self, of: pb.MessageMetadata, body: Bytes, encryption: EncryptionContext | None = None) -> None:
        self.of = of
        self.encryption = encryption  # set if the body is ciphertext
        self._body = body
        self._rows: Rows | None = None
        self.size = 0  # of the batch; 0: a single message
        self.compacted = 0  # bits of messages that compaction removed
        if not of.HasField("num_messages_in_batch"):
            return
        self.size = of.num_messages_in_batch
        if self.size < 1:
            raise BadEntry(f"batch of {self.size} messages")
        self._rows = rows = core.opened(body, self.size)
        if rows.count != self.size:
            self.compacted = (1 << self.size) - 1
            for index in rows.listing().indexes:
                self.compacted &= ~(1 << index)

    def run(self) -> Run:
        """All messages as columns, with the metadata of the entry."""
        of = self.of
        columns = core.decode((Body(alone(of, self._body), 1),)) if self._rows is None else self._rows.columns()
        version = of.schema_version if of.HasField("schema_version") else None
        return Run(columns, [0], [of.publish_time], [of.producer_name], [of.sequence_id], [self.size], [version], [])

    def values(self) -> list[bytes | None]:
        """None: a null value."""
        if self._rows is None:
            return [None if self.of.null_value else bytes(self._body)]
        return self._rows.values()

    def keys(self) -> list[str | bytes | None]:
        return [self._key()] if self._rows is None else self._rows.keys()

    def _key(self) -> str | bytes | None:
        """Of a single message."""
        of = self.of
        return key_of(of.partition_key, of.partition_key_b64_encoded) if of.HasField("partition_key") else None

    def messages(self, topic: str, lane: int, place: tuple[int, int], wanted: int, redeliveries: int) -> list[Message]:
        """The messages whose bits are set in `wanted`, in order."""
        of, rows, size = self.of, self._rows, self.size
        origin = Origin(topic, *place, size, lane, of.publish_time, of.producer_name, redeliveries, of.schema_version)
        origin.encryption = self.encryption
        if rows is None:
            if not wanted & 1:
                return []
            properties = {pair.key: pair.value for pair in of.properties} if of.properties else NO_PROPERTIES
            time = of.event_time or None
            data = NULL if of.null_value else bytes(self._body)
            return [Message(origin, -1, data, self._key(), properties, time, of.sequence_id)]
        indexes, values, keys, sequences, times, properties_list = rows.listing()
        if NO_SEQUENCE in sequences:
            own = of.sequence_id
            sequences = [own if one == NO_SEQUENCE else one for one in sequences]
        if wanted == (1 << size) - 1 and properties_list is None and times is None:
            return [
                Message(origin, index, NULL if value is None else value, key, NO_PROPERTIES, None, sequence)
                for index, (value, key, sequence) in enumerate(zip(values, keys, sequences, strict=True))
            ]
        return [
            Message(
                origin, index, _body_of(values[row]), keys[row],
                NO_PROPERTIES if properties_list is None else properties_list[row],
                None if times is None else times[row] or None, sequences[row],
            )
            for row, index in enumerate(indexes)
            if wanted >> index & 1
        ]  # fmt: skip


def _body_of(value: bytes | None) -> bytes:
    return NULL if value is None else value


class DeliveredEntry(Sequence[Message]):
    """Messages of one entry for the application; `wanted` has their bits. `Message` objects are made at the first
    access, and never if only columns are read."""

    __slots__ = ("_length", "_made", "contents", "lane", "place", "redeliveries", "seek_number", "topic", "wanted")

    def __init__(
        self, contents: EntryContents, topic: str, lane: int, place: tuple[int, int], wanted: int, redeliveries: int
    ) -> None:
        self.contents = contents
        self.topic = topic
        self.lane = lane
        self.place = place
        self.wanted = wanted
        self.redeliveries = redeliveries
        self.seek_number = 0  # of the segment consumer when the entry arrived
        self._length = wanted.bit_count()
        self._made: list[Message] | None = None

    @property
    def made(self) -> list[Message]:
        if self._made is None:
            self._made = self.contents.messages(self.topic, self.lane, self.place, self.wanted, self.redeliveries)
            if self.seek_number:
                set_seek_number(self._made, self.seek_number)
        return self._made

    @property
    def is_whole(self) -> bool:
        """True if all messages of the entry are wanted."""
        size = self.contents.size or 1
        return self.wanted == (1 << size) - 1 & ~self.contents.compacted

    @property
    def is_untouched(self) -> bool:
        """Like `is_whole`, and no `Message` objects were made (they may hold decoded values)."""
        return self._made is None and self.is_whole

    @property
    def last(self) -> MessageId:
        """The id of its last message, without making `Message` objects."""
        size = self.contents.size
        index = self.wanted.bit_length() - 1 if size else -1
        return MessageId(self.topic, *self.place, index, size, self.lane)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message]:
        return iter(self.made)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self.made[index]


def set_seek_number(messages: Sequence[Message], number: int) -> None:
    """These messages arrived after this many moves of the position."""
    if isinstance(messages, DeliveredEntry):
        messages.seek_number = number
    else:
        for message in messages:
            message.origin.seek_number = number
