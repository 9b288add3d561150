"""Effects of `SegmentConsumerState`: permits, deliveries, acks and requests for redelivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.client.errors import DecryptionFailed
from anabranch.client.messages.message import Message
from anabranch.protocol import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class Flow:
    permits: int


@dataclass(frozen=True, slots=True)
class Deliver:
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Ack:
    """`ids` as on the wire. An `ack_set` lists the messages of a batch that are not acknowledged."""

    number: int
    ids: Sequence[pb.MessageIdData]
    is_cumulative: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """An entry that cannot be read. It is acknowledged with the reason, so that it does not block later entries."""

    id: pb.MessageIdData
    reason: str
    problem: pb.CommandAck.ValidationError = pb.CommandAck.BatchDeSerializeError


@dataclass(frozen=True, slots=True)
class Fail:
    """An entry cannot be decrypted. It is not acknowledged, and nothing after it is delivered."""

    error: DecryptionFailed


@dataclass(frozen=True, slots=True)
class Redeliver:
    """An `ack_set` lists the messages of a batch that are returned; without one the whole entry is."""

    ids: Sequence[pb.MessageIdData]


Effect = Flow | Deliver | Ack | Reject | Fail | Redeliver
