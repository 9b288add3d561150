"""One client connection: bytes in, commands to their handlers, frames out, keep-alive, back-pressure.

Frames that are written during one step of the event loop are sent together at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from anabranch.broker.errors import TooManyRequests, migrated_to
from anabranch.broker.services import SERVER_VERSION, Services
from anabranch.broker.wire.authentication_flow import AuthenticationFlow
from anabranch.broker.wire.http_clients import HTTP_ANSWER, is_http
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import TopicName
from anabranch.protocol import replies
from anabranch.protocol.commands import BaseCommand, read_command
from anabranch.protocol.errors import BadCommand, ProtocolError
from anabranch.protocol.frames import FRAME_OVERHEAD_MAX, Frame, FrameDecoder, TakeRun
from anabranch.protocol.handshake import Beat, Handshake, Keepalive, broker_features
from anabranch.protocol.handshake import Peer as ClientFacts
from anabranch.protocol.server_errors import server_error
from anabranch.runtime.clock import Timer
from anabranch.runtime.logs import get_logger
from anabranch.runtime.net import Buffer, Stream
from anabranch.runtime.tasks import TaskOwner
from anabranch.security.authentication import Identity
from anabranch.security.authorization import Resource, Unauthorized
from anabranch.security.permissions import COMMAND_NEEDS, Covered

log = get_logger(__name__)

Handler = Callable[[Any, Frame], None]
"""Called with a command's body and its frame; does not wait."""

BaseType = int

STEP_FRAMES = 256
"""Approximate number of commands of one connection per step of the event loop, before others get a turn."""
READ_BYTES_MIN = 16 * 1024
UNAUTHENTICATED_FRAME_BYTES_MAX = 128 * 1024
"""Largest frame before authentication: more than any credentials need."""

_OF_TRANSACTIONS = frozenset(
    int(kind)
    for kind in (
        BaseCommand.TC_CLIENT_CONNECT_REQUEST,
        BaseCommand.NEW_TXN,
        BaseCommand.ADD_PARTITION_TO_TXN,
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
        BaseCommand.END_TXN,
    )
)


class Connection:
    """Implements `runtime.net.StreamHandler` and `broker.client_connection.ClientConnection`."""

    def __init__(
        self, stream: Stream, services: Services, scratch: bytearray, on_closed: Callable[[Connection], None]
    ) -> None:
        settings = services.settings
        self.address = stream.peer
        self.is_open = True
        self.client_version = ""
        self.protocol_version = 0
        self.knows_end_of_topic = False
        self.extensions = False
        self.reads_migrated = False
        self.continues = False  # the client reads a child after its parents itself
        self.nacks_messages = False  # REDELIVER may name single messages of a batch
        self.access_changes = 0  # how often permissions_changed was called
        self.tasks = TaskOwner(stream.peer)
        self._stream = stream
        self._services = services
        self._on_closed = on_closed
        self._decoder = FrameDecoder(settings.message_bytes_max + FRAME_OVERHEAD_MAX, scratch)
        checks = services.guard.authenticates
        is_scalable = services.scalable is not None and services.scalable.is_enabled
        features = broker_features(scalable_topics=is_scalable, topic_watchers=services.topic_lists is not None)
        self._handshake = Handshake(SERVER_VERSION, settings.message_bytes_max, features, checks=checks)
        self._authentication = (
            AuthenticationFlow(
                self, services.guard, services.clock, stream.certificate_name, self._identified, self._refused
            )
            if checks
            else None
        )
        self._refusal: Error | None = None  # the client is not authenticated, and learns it on its first request
        if checks:
            self._decoder.allow(UNAUTHENTICATED_FRAME_BYTES_MAX)
        self._keepalive = Keepalive()
        self._handlers: dict[BaseType, Handler] = {}
        self._command_sets: list[CommandSet] = []
        self._step_listeners: list[CommandSet] = []  # command sets that override `step_ended`
        self._run_taker: TakeRun | None = None
        self._taken = 0  # frames that it handled in this step
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flushing = False
        self._was_full = False
        self._pending_bytes = 0
        self._pending_max = settings.connection_bytes_max
        self._unsent_max = settings.consumer_unsent_bytes_max
        self._is_closing = False
        self._paused = False  # too many bytes are pending for producers
        self._is_unread = False  # the client sends requests without reading the answers
        self._unsent_before = 0  # at the last tick, while not reading
        self._read_bytes = READ_BYTES_MIN
        self._probes: list[asyncio.Future[None]] = []
        self._beat: Timer = services.clock.call_later(settings.keep_alive_seconds, self._tick)

    def serve(self, *command_sets: CommandSet) -> None:
        """Register the command sets of this connection."""
        for one in command_sets:
            self._command_sets.append(one)
            if type(one).step_ended is not CommandSet.step_ended:
                self._step_listeners.append(one)
            self._run_taker = one.run_taker() or self._run_taker
            for kind, handler in one.handlers().items():
                has_rule = kind in COMMAND_NEEDS or not self._services.guard.authorizes
                self._handlers[kind] = handler if has_rule else self._without_rule

    @staticmethod
    def _without_rule(body: Any, frame: Frame) -> None:
        """Commands without an entry in the permission table are rejected."""
        raise BadCommand("command has no permission rule")

    # -- receiving

    def buffer(self) -> memoryview:
        return self._decoder.buffer()[: self._read_bytes]

    @property
    def block_bytes(self) -> int:
        return min(self._decoder.block_bytes, self._read_bytes)

    def received(self, count: int) -> None:
        self._handle(self._decoder.received(count), count)

    def received_block(self, block: bytes) -> None:
        self._handle(self._decoder.received_block(block), len(block))

    def _handle(self, found: Iterator[Frame], count: int) -> None:
        self._keepalive.on_received()
        if self._probes:
            self._answer_probes()
        frames = self._taken = 0
        try:
            try:
                for frame in found:
                    frames += 1
                    kind, body = read_command(frame.command)
                    handler = self._handlers.get(kind)
                    if handler is not None and self.protocol_version:
                        handler(body, frame)
                    else:
                        self._other(kind, body)
                    if not self.is_open or self._is_closing:
                        return
            finally:
                for one in self._step_listeners:
                    one.step_ended()
        except ProtocolError as error:
            reason = error.reason
            if not self.protocol_version and is_http(error):
                reason = "an HTTP client connected to the binary port"
                self.send(HTTP_ANSWER)
            log.warning("protocol error, connection closed", extra={"peer": self.address, "reason": reason})
            self._flush()
            self.close()
        except Exception:  # an internal error must not affect other connections
            log.exception("command failed, connection closed", extra={"peer": self.address})
            self._stream.abort()
        frames += self._taken
        if frames > STEP_FRAMES:
            self._read_bytes = max(self._read_bytes // 2, READ_BYTES_MIN)
        elif frames * 2 < STEP_FRAMES and count == self._read_bytes:
            self._read_bytes *= 2

    def _other(self, kind: int, body: Any) -> None:
        """Handshake, keep-alive, and commands without a handler."""
        if self._refusal is not None and kind not in (BaseCommand.PING, BaseCommand.PONG):
            self._answer_refused(kind, body, self._refusal)
            return
        answer = self._handshake.answer(kind, body)
        if answer is not None:
            if answer:
                self.send(answer)
            if kind == BaseCommand.CONNECT:
                assert self._handshake.peer is not None
                if self._authentication is None:
                    self._connected(self._handshake.peer)
                else:
                    self._authentication.begin(self._handshake.peer, SERVER_VERSION)
        elif kind == BaseCommand.PONG:
            return
        elif kind == BaseCommand.AUTH_RESPONSE and self._authentication is not None:
            self._authentication.answered(body)
        elif (handler := self._handlers.get(kind)) is not None:
            handler(body, Frame(memoryview(b""), None, True))
        elif kind in _OF_TRANSACTIONS:
            self.fail(body.request_id, NotAllowed("Transactions are not enabled."))  # Pulsar's text
        elif hasattr(body, "request_id"):
            name = BaseCommand.Type.Name(kind)
            self.send(replies.error(body.request_id, server_error(BadCommand(name)), f"{name} is not supported"))
        else:
            raise BadCommand(f"{BaseCommand.Type.Name(kind)} is not a command of clients")

    def _identified(self, identity: Identity) -> None:
        """Authenticated: only now is CONNECT answered, and commands are accepted."""
        log.info("client authenticated", extra={"peer": self.address, "role": identity.role, "method": identity.method})
        if not self.is_open:
            return
        assert self._handshake.peer is not None
        self._decoder.allow(self._services.settings.message_bytes_max + FRAME_OVERHEAD_MAX)
        self.send(self._handshake.accept())
        self._connected(self._handshake.peer)

    def _refused(self, error: Error) -> None:
        """Not authenticated: CONNECT is answered, and the first request with `error`. No command is handled."""
        self._refusal = error
        if self.is_open:
            self.send(self._handshake.accept())

    def _answer_refused(self, kind: int, body: Any, error: Error) -> None:
        if not hasattr(body, "request_id"):
            raise BadCommand(f"{BaseCommand.Type.Name(kind)} of a client that is not authenticated")
        match kind:
            case BaseCommand.LOOKUP:
                self.send(replies.lookup_failed(body.request_id, server_error(error), error.reason))
            case BaseCommand.PARTITIONED_METADATA:
                self.send(replies.partitioned_metadata_failed(body.request_id, server_error(error), error.reason))
            case _:
                self.fail(body.request_id, error)
        self.close()

    @property
    def identity(self) -> Identity | None:
        """Identity of the client; None if authentication is off."""
        return None if self._authentication is None else self._authentication.identity

    async def authorize(self, kind: int, resource: Resource) -> None:
        """Raises Unauthorized unless the table of permissions and the grants allow this command on `resource`."""
        guard = self._services.guard
        if not guard.authorizes:
            return
        need = COMMAND_NEEDS[kind]
        action = (need.need if isinstance(need, Covered) else need).action
        try:
            await guard.check(self.identity, action, resource)
        except Unauthorized as error:
            log.warning("request not authorized", extra={"peer": self.address, "reason": error.reason})
            raise

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        """Grants of a namespace (None: admins of the tenant; of all tenants) changed: close what is not allowed now."""
        self.access_changes += 1
        for one in self._command_sets:
            await one.permissions_changed(tenant, namespace)

    def _connected(self, client: ClientFacts) -> None:
        self.client_version = client.client_version
        # Version 0 is legal; it counts as 1, because handlers run only from version 1 on.
        self.protocol_version = max(1, client.protocol_version)
        self.knows_end_of_topic = client.understands(BaseCommand.REACHED_END_OF_TOPIC)
        self.extensions, self.continues = client.extensions, client.continues
        self.reads_migrated = client.reads_migrated
        self.nacks_messages = client.nacks_messages
        if self._run_taker is not None:
            self._decoder.take_run = self._take_run

    def _take_run(self, view: memoryview, start: int, end: int, owned: bool, limit: int) -> tuple[int, int]:
        """Pass consecutive SENDs to the command set at once."""
        assert self._run_taker is not None
        rest, taken = self._run_taker(view, start, end, owned, limit)
        self._taken += taken
        return rest, taken

    def start_request(self, request_id: int, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[Any] | None:
        """Run a request as a task; its errors are answered by `fail`."""
        if len(self.tasks) >= self._services.settings.requests_in_flight_max:
            work.close()
            self.fail(request_id, TooManyRequests("too many requests in flight on this connection"))
            return None
        task = self.tasks.spawn(self._guard(request_id, work), name)
        if task is None:
            work.close()
        else:
            task.add_done_callback(lambda _: work.close())  # if it is cancelled before its first step
        return task

    async def _guard(self, request_id: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Error as error:
            self.fail(request_id, error)
        except Exception as error:
            log.exception("request failed", extra={"peer": self.address})
            self.fail(request_id, Error(f"internal error: {type(error).__name__}"))

    def fail(self, request_id: int, error: Error) -> None:
        self.send(replies.error(request_id, server_error(error), error.reason, migrated_to(error)))

    # -- sending

    def send(self, *buffers: Buffer) -> None:
        if not self.is_open:
            return
        self._out.extend(buffers)
        self._out_bytes += sum(map(len, buffers))
        if not self._flushing:
            self._flush_soon()

    def send_run(self, buffers: list[Buffer], size: int) -> None:
        if not self.is_open:
            return
        self._out += buffers
        self._out_bytes += size
        if not self._flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._flushing = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._out:
            out, self._out = self._out, []
            self._out_bytes = 0
            self._stream.write(out)
            if self._stream.unsent_bytes > self._pending_max and not self._is_unread:
                self._is_unread = True
                self._unsent_before = self._stream.unsent_bytes
                self._stream.pause_reading()
            if self._was_full and self.has_room:
                self.drained()

    @property
    def has_room(self) -> bool:
        if self._out_bytes + self._stream.unsent_bytes < self._unsent_max:
            return True
        self._was_full = True
        return False

    def drained(self) -> None:
        if self._is_unread and not self._stream.unsent_bytes:
            self._is_unread = False
            if not self._paused and self.is_open:
                self._stream.resume_reading()
        if self._was_full and self.is_open:
            self._was_full = False
            for one in self._command_sets:
                one.writable()

    def add_pending_bytes(self, size: int) -> None:
        self._pending_bytes += size
        if self._paused:
            if self._pending_bytes * 2 < self._pending_max and self.is_open:
                self._paused = False
                if not self._is_unread:
                    self._stream.resume_reading()
        elif self._pending_bytes > self._pending_max:
            self._paused = True
            self._stream.pause_reading()

    # -- liveness

    def _tick(self) -> None:
        if not self.is_open:
            return
        if self._is_unread:  # the socket is not read; a client that takes bytes is alive
            if self._stream.unsent_bytes < self._unsent_before:
                self._keepalive.on_received()
            self._unsent_before = self._stream.unsent_bytes
        match self._keepalive.tick(is_open=self.protocol_version > 0, is_reading=not self._paused):
            case Beat.CLOSE:
                log.info("client is silent, connection closed", extra={"peer": self.address})
                self._stream.abort()
                return
            case Beat.PING:
                self.send(replies.PING_FRAME)
            case Beat.REST:
                pass
        self._beat = self._services.clock.call_later(self._services.settings.keep_alive_seconds, self._tick)

    async def is_alive(self) -> bool:
        if not self.is_open:
            return False
        probe: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._probes.append(probe)
        self._keepalive.probe()
        self.send(replies.PING_FRAME)
        try:
            async with asyncio.timeout(self._services.settings.probe_seconds):
                await probe
        except TimeoutError:
            if probe in self._probes:
                self._probes.remove(probe)
            log.info("client did not answer a PING, connection closed", extra={"peer": self.address})
            self._stream.abort()
        return self.is_open

    def _answer_probes(self) -> None:
        probes, self._probes = self._probes, []
        for probe in probes:
            if not probe.done():
                probe.set_result(None)

    # -- closing

    def close(self) -> None:
        """Send what is queued, then close."""
        self._is_closing = True
        self._flush()
        self._stream.close()

    def abort(self) -> None:
        self._stream.abort()

    def closed(self, reason: str) -> None:
        self.is_open = False
        self._beat.cancel()
        self._answer_probes()
        if self._authentication is not None:
            self._authentication.closed()
        self.tasks.cancel()
        self._on_closed(self)
        for one in self._command_sets:
            try:
                one.closed()
            except Exception:
                log.exception("cleanup of closed connection failed", extra={"peer": self.address})
        asyncio.get_running_loop().call_soon(self._drop_command_sets)

    def _drop_command_sets(self) -> None:
        """They refer to the connection. Called when no frame is being handled any more."""
        self._handlers.clear()
        self._command_sets.clear()
        self._step_listeners.clear()
        self._run_taker = self._decoder.take_run = None

    # -- for producers and consumers

    def producer_closed(self, producer_id: int) -> None:
        for one in self._command_sets:
            one.producer_closed(producer_id)

    def consumer_closed(self, consumer_id: int) -> None:
        for one in self._command_sets:
            one.consumer_closed(consumer_id)

    def __repr__(self) -> str:
        return f"<Connection {self.address} {self.client_version!r}>"


def concerns(name: TopicName, tenant: str | None, namespace: str | None) -> bool:
    """Whether a change of this tenant and namespace (None: of any) concerns the topic."""
    return tenant in (None, name.tenant) and namespace in (None, name.namespace_path)


class CommandSet:
    """A group of commands on one connection. Subclasses declare their handlers; event methods do nothing by default."""

    def handlers(self) -> dict[BaseType, Handler]:
        return {}

    def run_taker(self) -> TakeRun | None:
        """A function that handles several SENDs at once, if the command set has one."""
        return None

    def step_ended(self) -> None:
        """All commands of one socket read have been handled."""

    def writable(self) -> None:
        """The socket queue has room again."""

    def closed(self) -> None:
        """The connection is closed."""

    def producer_closed(self, producer_id: int) -> None:
        """The broker closed one of this connection's producers."""

    def consumer_closed(self, consumer_id: int) -> None:
        """The broker closed one of this connection's consumers."""

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        """When this returns, what a revoked grant had allowed is closed."""
