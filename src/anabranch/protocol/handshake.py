"""The broker's side of opening a connection and keeping it alive. No clock, no socket: ticks and commands come in.

WAITING --CONNECT--> OPEN                           PING is answered in all; anything else before OPEN, or a second
WAITING --CONNECT--> CHECKING --accept()--> OPEN    CONNECT, is a violation: HandshakeError, and the connection closes

CHECKING exists only with authentication: no command of the client counts before `accept` is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.errors import HandshakeError
from anabranch.protocol.replies import PONG_FRAME, connected

PROTOCOL_VERSION_MAX = 21

# Commands that a released C++ client (and so Python, Node …) can read; any other makes it drop the connection.
_CPP_READS = frozenset({3, 7, 8, 9, 13, 14, 15, 16, 17, 18, 19, 22, 24, 26, 30, 31, 33, 35, 36, 38, 68})

# Protocol version that introduced a command which a broker sends without a request.
_VERSION_OF = {
    int(BaseCommand.CLOSE_PRODUCER): 5,
    int(BaseCommand.CLOSE_CONSUMER): 5,
    int(BaseCommand.REACHED_END_OF_TOPIC): 9,
    int(BaseCommand.ACTIVE_CONSUMER_CHANGE): 12,
    int(BaseCommand.ACK_RESPONSE): 17,
    int(BaseCommand.TOPIC_MIGRATED): 20,
}


@dataclass(frozen=True, slots=True)
class Peer:
    """What CONNECT says about the client."""

    client_version: str
    protocol_version: int  # the smaller of both sides
    auth_method: str
    auth_data: bytes
    extensions: bool  # reads and sends the Anabranch fields >= 1000
    nacks_messages: bool  # its REDELIVER may name single messages of a batch
    broker_entry_metadata: bool
    auth_refresh: bool
    is_proxied: bool = False  # a proxy that acts for another role
    continues: bool = False  # reads a child after its parents itself, before they are acknowledged
    reads_migrated: bool = False  # reads the edges of a migration from `migrated` of a layout

    @property
    def is_cpp(self) -> bool:
        return self.client_version.startswith("Pulsar-CPP")

    def understands(self, kind: int) -> bool:
        """Whether the broker may send this command without a request."""
        if self.is_cpp and kind not in _CPP_READS:
            return False
        return self.protocol_version >= _VERSION_OF.get(kind, 0)


class Handshake:
    """Gets all commands until `is_open`, and every CONNECT afterwards."""

    __slots__ = ("_features", "_message_bytes_max", "_server_version", "_checks", "is_open", "peer")

    def __init__(
        self,
        server_version: str,
        message_bytes_max: int,
        features: pb.FeatureFlags | None = None,
        *,
        checks: bool = False,
    ) -> None:
        """With `checks`, CONNECT is answered by `accept` and not at once."""
        self._server_version = server_version
        self._message_bytes_max = message_bytes_max
        self._features = broker_features() if features is None else features
        self._checks = checks
        self.is_open = False
        self.peer: Peer | None = None

    def answer(self, kind: int, body: Any) -> bytes | None:
        """The frame to send back, b"" if there is none yet; None if an open connection must handle the command.

        Raises HandshakeError.
        """
        if kind == BaseCommand.PING:
            return PONG_FRAME
        if kind == BaseCommand.CONNECT:
            if self.peer is not None:
                raise HandshakeError("second CONNECT on one connection")
            self.peer = peer_of(body)
            return b"" if self._checks else self.accept()
        if not self.is_open:
            raise HandshakeError(f"{BaseCommand.Type.Name(kind)} before {'CONNECTED' if self.peer else 'CONNECT'}")
        return None

    def accept(self) -> bytes:
        """The client is authenticated: open the connection and answer its CONNECT."""
        assert self.peer is not None
        assert not self.is_open
        self.is_open = True
        return connected(self._server_version, self.peer.protocol_version, self._message_bytes_max, self._features)


def broker_features(*, scalable_topics: bool = False, topic_watchers: bool = False) -> pb.FeatureFlags:
    """Features of the broker: partition counts without creation, topic-list watches, and the Anabranch fields."""
    return pb.FeatureFlags(
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_topic_watchers=True if topic_watchers else None,
        supports_scalable_topics=True if scalable_topics else None,
        anabranch_extensions=True,
        anabranch_message_nacks=True,
        anabranch_seek=True if scalable_topics else None,
        anabranch_hand_outs=True,
    )


def peer_of(connect: pb.CommandConnect) -> Peer:
    flags = connect.feature_flags
    return Peer(
        client_version=connect.client_version,
        protocol_version=max(0, min(PROTOCOL_VERSION_MAX, connect.protocol_version)),
        auth_method=connect.auth_method_name,
        auth_data=connect.auth_data,
        extensions=flags.anabranch_extensions,
        continues=flags.anabranch_extensions and flags.anabranch_continuation,
        reads_migrated=flags.anabranch_extensions and flags.anabranch_migrated_edges,
        nacks_messages=flags.anabranch_message_nacks,
        broker_entry_metadata=flags.supports_broker_entry_metadata,
        auth_refresh=flags.supports_auth_refresh,
        is_proxied=bool(connect.original_principal or connect.original_auth_data or connect.proxy_version),
    )


class Beat(Enum):
    """Action of a keep-alive tick."""

    PING = "ping"
    REST = "rest"
    CLOSE = "close"


class Keepalive:
    """Liveness of one connection. Any received byte proves life; two silent ticks in a row close it."""

    __slots__ = ("_awaited",)

    def __init__(self) -> None:
        self._awaited = False

    @property
    def awaited(self) -> bool:
        """A ping was sent and nothing has been received since."""
        return self._awaited

    def on_received(self) -> None:
        """Something arrived from the peer."""
        self._awaited = False

    def probe(self) -> None:
        """A ping was sent outside the ticks, to check whether the peer is alive."""
        self._awaited = True

    def tick(self, *, is_open: bool = True, is_reading: bool = True) -> Beat:
        """Called once per keep-alive interval. Closes a connection that has not finished its handshake by then.

        While the broker itself has paused reading, silence proves nothing.
        """
        if not is_open:
            return Beat.CLOSE
        if not is_reading:
            return Beat.REST
        if self._awaited:
            return Beat.CLOSE
        self._awaited = True
        return Beat.PING
