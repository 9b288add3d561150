"""Messages and their ids as an application sees them. Knows no connections and no wire.

An id orders messages of one lane (one partition of one topic) only; across lanes there is no order to speak of.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.client.errors import BadOption

_VERSION = 1
_FIXED = struct.Struct(">BqqiiiH")  # version, ledger, entry, batch index, batch size, lane, bytes of the topic


@dataclass(frozen=True, slots=True)
class MessageId:
    """Where a message is. `batch_index` is -1 for a message that has its entry for itself; `lane` is the partition."""

    topic: str
    ledger: int
    entry: int
    batch_index: int = -1
    batch_size: int = 0
    lane: int = -1

    def to_bytes(self) -> bytes:
        topic = self.topic.encode()
        head = _FIXED.pack(_VERSION, self.ledger, self.entry, self.batch_index, self.batch_size, self.lane, len(topic))
        return head + topic

    @classmethod
    def from_bytes(cls, data: bytes) -> MessageId:
        try:
            version, ledger, entry, index, size, lane, length = _FIXED.unpack_from(data)
            topic = data[_FIXED.size :].decode()
        except (struct.error, UnicodeDecodeError) as cause:
            raise BadOption("these bytes are not a message id") from cause
        if version != _VERSION or len(data) != _FIXED.size + length:
            raise BadOption("these bytes are not a message id of this version")
        return cls(topic, ledger, entry, index, size, lane)

    def _place(self, other: object) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
        if not isinstance(other, MessageId) or (self.topic, self.lane) != (other.topic, other.lane):
            return None
        return (self.ledger, self.entry, self.batch_index), (other.ledger, other.entry, other.batch_index)

    def __lt__(self, other: object) -> bool:
        places = self._place(other)
        return NotImplemented if places is None else places[0] < places[1]

    def __le__(self, other: object) -> bool:
        places = self._place(other)
        return NotImplemented if places is None else places[0] <= places[1]

    def __str__(self) -> str:
        index = "" if self.batch_index < 0 else f":{self.batch_index}"
        return f"{self.ledger}:{self.entry}{index}"


@dataclass(slots=True, eq=False)
class Message:
    """One received message. Times are milliseconds since 1970; an `event_time` that was not given is None."""

    id: MessageId
    value: Any
    key: str | bytes | None
    properties: Mapping[str, str]
    publish_time: int
    event_time: int | None
    sequence_id: int
    producer_name: str
    redelivery_count: int = 0
    delivery: int = field(default=-1, repr=False)  # running number within its stream consumer

    @property
    def topic(self) -> str:
        return self.id.topic
