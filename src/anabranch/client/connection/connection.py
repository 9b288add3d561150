"""One connection of the SDK: the `ConnectionState` machine on a stream of bytes and the event loop.

Producers, consumers and layout sessions listen by id, and are notified when the connection ends.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Protocol

from anabranch.client.config import ConnectionPolicy, seconds
from anabranch.client.connection.address import Address
from anabranch.client.connection.connection_state import (
    Answered,
    Broken,
    Challenged,
    ConnectionState,
    Event,
    Failed,
    ForConsumer,
    ForProducer,
    ForSession,
    Opened,
)
from anabranch.client.connection.connection_state import Write as WriteFrame
from anabranch.client.connection.dial_failure import refused_dial
from anabranch.client.errors import (
    CannotSignIn,
    ClientError,
    TimedOut,
    TlsFailed,
    TokenUnreadable,
    Unreachable,
    WrongPort,
)
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import Bytes
from anabranch.protocol.frames import MESSAGE_BYTES_MAX
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.credentials import Credentials, NoCredentials
from anabranch.runtime.dial import dial
from anabranch.runtime.net import Buffer, Stream
from anabranch.runtime.reach import is_alert, tls_words

PROBE_SECONDS = 2.0


class ConnectionListener(Protocol):
    """A producer, consumer or session on a connection. Called on the event loop; must not raise."""

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None: ...

    def on_detached(self, error: ClientError) -> None:
        """The connection has ended. Called at most once."""


class Connection:
    def __init__(self, address: Address, policy: ConnectionPolicy, clock: Clock, auth: Credentials | None) -> None:
        self.address = address
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.supports_scalable_topics = False
        self.has_extensions = False  # the broker supports Anabranch's extensions of the protocol
        self.supports_seek = False  # the broker moves subscriptions of scalable topics for consumers
        self.supports_message_nacks = False  # the broker redelivers single messages of a batch
        self.supports_hand_outs = False  # the broker counts deliveries to applications that die
        self._clock = clock
        self._auth = auth
        self._state = ConnectionState(keepalive_s=seconds(policy.keepalive))
        self._stream: Stream | None = None
        self._timer: Timer | None = None
        self._timer_at = float("inf")
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._opened: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()  # the socket is closed
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._producers: dict[int, ConnectionListener] = {}
        self._consumers: dict[int, ConnectionListener] = {}
        self._sessions: dict[int, ConnectionListener] = {}
        self._last_id = 0
        self._failure: ClientError | None = None
        self._outbox: list[Buffer] = []

    @classmethod
    async def dial(
        cls,
        address: Address,
        policy: ConnectionPolicy,
        clock: Clock,
        auth: Credentials | None,
        tls: ssl.SSLContext | None,
    ) -> Connection:
        """Connect, and wait until the broker has accepted the connection."""
        connection = cls(address, policy, clock, auth)
        try:
            async with asyncio.timeout(seconds(policy.connect_timeout)):
                context = (tls or ssl.create_default_context()) if address.is_tls else None
                await dial(address.host, address.port, connection._attached, context)
                await connection._opened
        except TimeoutError as error:
            connection.abort("no answer")
            raise TimedOut(f"no answer from {address}") from error
        except OSError as error:  # also ssl.SSLError
            connection.abort("not connected")
            raise await refused_dial(address, error, PROBE_SECONDS) from error
        except Unreachable as error:  # the broker closed it before it answered
            raise await refused_dial(address, error, PROBE_SECONDS) from error
        except WrongPort as error:
            raise WrongPort(f"{address}: {error.reason}") from error
        except BaseException:
            connection.abort("given up")
            raise
        return connection

    @property
    def is_usable(self) -> bool:
        return self._failure is None

    # -- for the stream

    def _attached(self, stream: Stream) -> Connection:
        self._stream = stream
        if self._failure is not None:
            self._loop.call_soon(stream.abort)  # it has no handler yet
            return self
        now = self._clock.monotonic()
        if self._auth is None:
            self.write(self._state.start(now))
        elif (data := self._credentials()) is not None:
            self.write(self._state.start(now, auth_method=self._auth.method, auth_data=data))
        self._set_timer()
        return self

    @property
    def block_bytes(self) -> int:
        return self._state.block_bytes

    def buffer(self) -> memoryview:
        return self._state.buffer()

    def received(self, count: int) -> None:
        self._perform(self._state.received(count, self._clock.monotonic()))

    def received_block(self, block: bytes) -> None:
        self._perform(self._state.received_block(block, self._clock.monotonic()))

    def drained(self) -> None:
        """Nothing to do: producers and consumers bound what they write."""

    def closed(self, reason: str) -> None:
        if self.address.is_tls and not self._opened.done() and is_alert(reason):
            # TLS 1.3: the broker checks the client's certificate after the client's part of the handshake.
            self._perform(
                self._state.refuse(TlsFailed(f"{self.address} refused the TLS handshake: {tls_words(reason)}"))
            )
        self._perform(self._state.lost(f"the connection has ended: {reason}"))
        self._mark_gone()

    def _mark_gone(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    # -- sending

    def new_id(self) -> int:
        """A new id for a producer or consumer on this connection."""
        self._last_id += 1
        return self._last_id

    def write(self, *buffers: Buffer) -> None:
        """Frames written in one turn of the event loop are sent together."""
        if self._stream is None or self._failure is not None:
            return
        if not self._outbox:
            self._loop.call_soon(self._send)
        self._outbox += buffers

    def write_now(self, *buffers: Buffer) -> None:
        """Like `write`, and the kernel has the frames when this returns, unless the socket is full."""
        self.write(*buffers)
        self._send()

    def _send(self) -> None:
        outbox, self._outbox = self._outbox, []
        if self._stream is not None and outbox:
            self._stream.write(outbox)

    def begin(self, kind: int, timeout_s: float, **fields: Any) -> asyncio.Future[Any]:
        """Write a request before returning; the future has the body of the answer."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._failure is not None:
            answer.set_exception(self._failure)
            return answer
        request_id, data = self._state.request(kind, self._clock.monotonic() + timeout_s, **fields)
        self._answers[request_id] = answer
        answer.add_done_callback(lambda _: self._settled(request_id))
        self.write(data)
        self._set_timer()
        return answer

    def _settled(self, request_id: int) -> None:
        self._state.forget(request_id)
        self._answers.pop(request_id, None)

    async def ask(self, kind: int, timeout_s: float, **fields: Any) -> Any:
        """Send a request and return the body of the answer. Raises the broker's refusal, TimedOut or Unreachable."""
        return await self.begin(kind, timeout_s, **fields)

    # -- receiving

    def listen_producer(self, producer_id: int, listener: ConnectionListener) -> None:
        self._producers[producer_id] = listener

    def listen_consumer(self, consumer_id: int, listener: ConnectionListener) -> None:
        self._consumers[consumer_id] = listener

    def listen_session(self, session_id: int, listener: ConnectionListener) -> None:
        """For a layout session. Its ids are chosen by the client, not by `new_id`."""
        self._sessions[session_id] = listener

    def unlisten_session(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def unlisten(self, identity: int) -> None:
        """Remove a producer or consumer; their ids differ within a connection."""
        self._producers.pop(identity, None)
        self._consumers.pop(identity, None)

    def _perform(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case ForConsumer(consumer_id, kind, body, payload):
                    if (listener := self._consumers.get(consumer_id)) is not None:
                        listener.on_command(kind, body, payload)
                case ForProducer(producer_id, kind, body):
                    if (listener := self._producers.get(producer_id)) is not None:
                        listener.on_command(kind, body, b"")
                case ForSession(session_id, body):
                    if (listener := self._sessions.get(session_id)) is not None:
                        listener.on_command(BaseCommand.SCALABLE_TOPIC_UPDATE, body, b"")
                case Answered(request_id, _, body):
                    answer = self._answers.get(request_id)
                    if answer is not None and not answer.done():
                        answer.set_result(body)
                case Failed(request_id, error):
                    answer = self._answers.get(request_id)
                    if answer is not None and not answer.done():
                        answer.set_exception(error)
                case WriteFrame(data):
                    self.write(data)
                case Challenged():
                    self._answer_challenge()
                case Opened(_, message_bytes_max, features):
                    self.message_bytes_max = message_bytes_max
                    self.supports_scalable_topics = features.supports_scalable_topics
                    self.has_extensions = features.anabranch_extensions
                    self.supports_message_nacks = features.anabranch_message_nacks
                    self.supports_seek = features.anabranch_seek
                    self.supports_hand_outs = features.anabranch_hand_outs
                    if not self._opened.done():
                        self._opened.set_result(None)
                case Broken(error):
                    self._over(error)

    def _answer_challenge(self) -> None:
        """The broker asks for credentials again, because the first may have expired."""
        if self._auth is None:
            self.write(self._state.auth_response("none", b""))
        elif (data := self._credentials()) is not None:
            self.write(self._state.auth_response(self._auth.method, data))

    def _credentials(self) -> bytes | None:
        """The credentials; if there are none, the connection ends, because the broker would refuse it."""
        assert self._auth is not None
        try:
            return self._auth.data()
        except NoCredentials as error:
            kind = CannotSignIn if error.retryable else TokenUnreadable
            self._perform(self._state.refuse(kind(str(error))))
            return None

    # -- time and the end

    def _set_timer(self) -> None:
        """One timer; it is only moved to an earlier time."""
        at = self._state.next_tick()
        if self._failure is not None or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._clock.call_later(max(0.0, at - self._clock.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._perform(self._state.tick(self._clock.monotonic()))
        self._set_timer()

    def _over(self, error: ClientError) -> None:
        self._failure = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stream is not None:
            self._stream.abort()
        else:
            self._mark_gone()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # read here, because the caller of `dial` may have been cancelled
        listeners = [*self._producers.values(), *self._consumers.values(), *self._sessions.values()]
        self._producers.clear()
        self._consumers.clear()
        self._sessions.clear()
        for listener in listeners:
            listener.on_detached(error)

    def abort(self, reason: str) -> None:
        self._perform(self._state.lost(reason))

    async def close(self) -> None:
        """Pass pending data to the kernel, then close. Returns when the socket is closed. If cancelled, the socket is
        closed at once."""
        self._send()
        try:
            if self._stream is not None and self._failure is None:
                self._stream.close()
                async with asyncio.timeout(1.0):
                    await asyncio.shield(self._gone)
        except TimeoutError:
            pass  # the peer does not read; abort drops the rest
        finally:
            self.abort("closed")
        await asyncio.shield(self._gone)
