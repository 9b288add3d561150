"""State machine of a client connection: bytes and ticks in, events out; requests in, bytes out.

It does the handshake and keep-alive, matches answers to requests, and fails requests that wait too long. Commands for
producers, consumers and sessions come out as events, addressed by id.

    NEW --start--> GREETING --CONNECTED--> OPEN        any state --BROKEN--> DEAD, once and for good
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from anabranch.client.errors import ClientError, Refused, TimedOut, Unreachable, WrongPort, refusal
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame, read_command
from anabranch.protocol.entry import Bytes
from anabranch.protocol.errors import FrameTooLarge, ProtocolError
from anabranch.protocol.frames import FRAME_OVERHEAD_MAX, MESSAGE_BYTES_MAX, Frame, FrameDecoder
from anabranch.protocol.replies import PING_FRAME, PONG_FRAME

CLIENT_VERSION = "Anabranch-Python"
PROTOCOL_VERSION = 21
SCRATCH_BYTES = 256 * 1024

_MESSAGE = int(BaseCommand.MESSAGE)
_RECEIPT = int(BaseCommand.SEND_RECEIPT)
_FOR_PRODUCER = frozenset(
    int(kind)
    for kind in (
        BaseCommand.SEND_RECEIPT,
        BaseCommand.SEND_ERROR,
        BaseCommand.CLOSE_PRODUCER,
        BaseCommand.SEGMENT_SEALED,
    )
)
_FOR_CONSUMER = frozenset(
    int(kind)
    for kind in (
        BaseCommand.MESSAGE,
        BaseCommand.CLOSE_CONSUMER,
        BaseCommand.REACHED_END_OF_TOPIC,
        BaseCommand.ACTIVE_CONSUMER_CHANGE,
        BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE,
    )
)


@dataclass(frozen=True, slots=True)
class Opened:
    """The broker accepted the connection."""

    server_version: str
    message_bytes_max: int
    features: pb.FeatureFlags


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that the state machine itself sends."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Challenged:
    """The broker asks for credentials; answer with `auth_response`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    request_id: int
    kind: int
    body: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """A request was refused or timed out."""

    request_id: int
    error: ClientError


@dataclass(frozen=True, slots=True)
class ForProducer:
    producer_id: int
    kind: int
    body: Any


@dataclass(frozen=True, slots=True)
class ForConsumer:
    consumer_id: int
    kind: int
    body: Any
    payload: Bytes


@dataclass(frozen=True, slots=True)
class ForSession:
    """The layout of a watched topic, or the reason why there is none."""

    session_id: int
    body: Any


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection has failed. All open requests have failed before this event."""

    error: ClientError


Event = Opened | Write | Challenged | Answered | Failed | ForProducer | ForConsumer | ForSession | Broken


class State(Enum):
    NEW = "new"
    GREETING = "greeting"
    OPEN = "open"
    DEAD = "dead"


def command(kind: int, **fields: Any) -> bytes:
    """A complete frame; fields that are None are omitted."""
    name = BaseCommand.Type.Name(kind)
    made = BaseCommand(type=name)
    body = getattr(made, name.lower())
    body.SetInParent()
    body.MergeFrom(type(body)(**{key: value for key, value in fields.items() if value is not None}))
    return frame(made)


class ConnectionState:
    """Times are seconds of a monotonic clock, passed with each call."""

    def __init__(self, *, keepalive_s: float = 30.0) -> None:
        self.state = State.NEW
        self._keepalive_s = keepalive_s
        self._decoder = FrameDecoder(MESSAGE_BYTES_MAX + FRAME_OVERHEAD_MAX, bytearray(SCRATCH_BYTES))
        self._deadlines: dict[int, float] = {}  # open requests
        self._last_request = 0
        self._last_heard = 0.0
        self._last_ping = 0.0

    # -- sending

    def start(
        self, now: float, *, auth_method: str | None = None, auth_data: bytes | None = None, proxy_to: str | None = None
    ) -> bytes:
        """CONNECT. `proxy_to` names the broker behind a proxy."""
        assert self.state is State.NEW
        self.state = State.GREETING
        self._last_heard = self._last_ping = now
        return command(
            BaseCommand.CONNECT,
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=auth_method,
            auth_data=auth_data,
            proxy_to_broker_url=proxy_to,
            feature_flags=pb.FeatureFlags(
                supports_auth_refresh=True,
                supports_broker_entry_metadata=True,
                supports_scalable_topics=True,
                anabranch_extensions=True,
                anabranch_message_nacks=True,
                anabranch_continuation=True,
                anabranch_seek=True,
                anabranch_migrated_edges=True,
            ),
        )

    def auth_response(self, method: str, data: bytes) -> bytes:
        response = pb.AuthData(auth_method_name=method, auth_data=data)
        return command(
            BaseCommand.AUTH_RESPONSE,
            response=response,
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
        )

    def request(self, kind: int, deadline: float, **fields: Any) -> tuple[int, bytes]:
        """Returns the id and the bytes of a request. Its outcome is exactly one Answered or Failed."""
        assert self.state is State.OPEN
        self._last_request += 1
        request_id = self._last_request
        data = command(kind, request_id=request_id, **fields)
        self._deadlines[request_id] = deadline
        return request_id, data

    def forget(self, request_id: int) -> None:
        """The answer is no longer awaited."""
        self._deadlines.pop(request_id, None)

    # -- receiving

    def buffer(self) -> memoryview:
        """The buffer for the next bytes."""
        return self._decoder.buffer()

    def received(self, count: int, now: float) -> list[Event]:
        """`count` bytes are in `buffer()`."""
        self._last_heard = now
        return self._events(self._decoder.received(count))

    @property
    def block_bytes(self) -> int:
        """More than 0: the next bytes are wanted as a block of up to this size."""
        return self._decoder.block_bytes

    def received_block(self, block: bytes, now: float) -> list[Event]:
        """Bytes that are not in `buffer()`."""
        self._last_heard = now
        return self._events(self._decoder.received_block(block))

    def feed(self, data: bytes, now: float) -> list[Event]:
        """For tests: any bytes."""
        self._last_heard = now
        return self._events(self._decoder.feed(data))

    def _events(self, frames: Iterator[Frame]) -> list[Event]:
        events: list[Event] = []
        if self.state is State.DEAD:
            return events
        try:
            for one in frames:
                kind, body = read_command(one.command)
                if kind == _MESSAGE:
                    payload: Bytes = b"" if one.payload is None else one.payload
                    events.append(ForConsumer(body.consumer_id, kind, body, payload if one.owned else bytes(payload)))
                elif kind == _RECEIPT:
                    events.append(ForProducer(body.producer_id, kind, body))
                else:
                    self._take(kind, body, events)
        except ProtocolError as error:
            events += self._break(self._misread(error))
        except Refused as error:
            events += self._break(error)
        return events

    def _misread(self, error: ProtocolError) -> ClientError:
        """Another protocol is recognised by the first four bytes, which are the length of a frame here."""
        if self.state is State.GREETING and isinstance(error, FrameTooLarge):
            start = (error.frame_bytes - 4).to_bytes(4, "big")
            if start == b"HTTP":
                return WrongPort("this is an HTTP port; clients connect to the broker's binary port, usually 6650")
            if start[:2] == b"\x15\x03":  # an alert record
                return WrongPort("this port expects TLS; connect with pulsar+ssl://")
        return Unreachable(f"the broker sent an invalid frame: {error.reason}")

    def _take(self, kind: int, body: Any, events: list[Event]) -> None:
        if kind == BaseCommand.PING:
            events.append(Write(PONG_FRAME))
        elif kind == BaseCommand.PONG:
            pass
        elif kind == BaseCommand.CONNECTED:
            self.state = State.OPEN
            bytes_max = body.max_message_size or MESSAGE_BYTES_MAX
            self._decoder.allow(bytes_max + FRAME_OVERHEAD_MAX)
            events.append(Opened(body.server_version, bytes_max, body.feature_flags))
        elif kind == BaseCommand.AUTH_CHALLENGE:
            events.append(Challenged(body.challenge.auth_data))
        elif kind == BaseCommand.ERROR:
            if self.state is State.GREETING:
                raise refusal(body.error, body.message)
            self._fail(body.request_id, refusal(body.error, body.message, body.migrated_to), events)
        elif kind in _FOR_PRODUCER:
            events.append(ForProducer(body.producer_id, kind, body))
        elif kind in _FOR_CONSUMER:
            events.append(ForConsumer(body.consumer_id, kind, body, b""))
        elif kind == BaseCommand.SCALABLE_TOPIC_UPDATE:
            events.append(ForSession(body.session_id, body))
        elif kind == BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE:
            events.append(ForSession(body.watch_id, body))
        elif kind == BaseCommand.PRODUCER_SUCCESS and not body.producer_ready:
            pass  # it waits for exclusive access; another PRODUCER_SUCCESS follows
        elif (request_id := getattr(body, "request_id", None)) is not None:
            if self._deadlines.pop(request_id, None) is not None:
                events.append(Answered(request_id, kind, body))

    def _fail(self, request_id: int, error: ClientError, events: list[Event]) -> None:
        if self._deadlines.pop(request_id, None) is not None:
            events.append(Failed(request_id, error))

    # -- time and the end

    def tick(self, now: float) -> list[Event]:
        """Keep-alive and timeouts. Must be called at the time that `next_tick` returns, or earlier."""
        events: list[Event] = []
        for request_id in [one for one, deadline in self._deadlines.items() if deadline <= now]:
            self._fail(request_id, TimedOut("the broker did not answer in time"), events)
        if self.state is State.DEAD:
            return events
        if now - self._last_heard >= 2 * self._keepalive_s:
            return events + self._break(Unreachable("the broker did not answer the keep-alive"))
        if self.state is State.OPEN and now - max(self._last_heard, self._last_ping) >= self._keepalive_s:
            self._last_ping = now
            events.append(Write(PING_FRAME))
        return events

    def next_tick(self) -> float:
        """The next time at which `tick` may have something to do."""
        ping = max(self._last_heard, self._last_ping) + self._keepalive_s
        return min(ping, self._last_heard + 2 * self._keepalive_s, *self._deadlines.values())

    def refuse(self, error: ClientError) -> list[Event]:
        """End the connection with an error of the client."""
        return self._break(error)

    def lost(self, reason: str) -> list[Event]:
        """The connection broke, or was closed by the client."""
        return self._break(Unreachable(reason))

    def _break(self, error: ClientError) -> list[Event]:
        if self.state is State.DEAD:
            return []
        self.state = State.DEAD
        events: list[Event] = [Failed(request_id, error) for request_id in self._deadlines]
        self._deadlines.clear()
        events.append(Broken(error))
        return events
