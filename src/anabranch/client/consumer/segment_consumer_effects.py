"""What an intake wants done: permits given, messages handed out, acks and requests said. Values only; see `state`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Individual acks. `ids` are of the wire; a batch that is not complete has an `ack_set` of what is left."""

    number: int
    ids: Sequence[pb.MessageIdData]
    is_cumulative: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """An entry that cannot be read: acknowledged with the reason, so that it does not block the rest."""

    id: pb.MessageIdData
    reason: str


@dataclass(frozen=True, slots=True)
class Redeliver:
    ids: Sequence[pb.MessageIdData]


Effect = Flow | Deliver | Ack | Reject | Redeliver
