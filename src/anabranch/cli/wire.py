"""A small client for the command line: connect, look up, produce in batches, consume with acks. Knows the protocol and
sockets; knows no terminals. It never reconnects: a tool that loses its broker says so. The SDK will take its place.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame, read_command
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.frames import FrameDecoder
from anabranch.protocol.replies import PONG_FRAME

DEFAULT_URL = "pulsar://localhost:6650"
ANSWER_SECONDS = 30.0
FRAME_BYTES_MAX = 128 << 20
HOPS_MAX = 5
PROTOCOL_VERSION = 21
CLIENT_VERSION = "Anabranch-CLI"
_READ_BYTES = 1 << 18
_HINTS: dict[int, str] = {
    pb.AuthenticationError: "give a token with --token or ANABRANCH_TOKEN",
    pb.AuthorizationError: "the role of this token lacks the right",
    pb.TopicNotFound: "create it with `anabranch admin topics create`",
    pb.ConsumerBusy: "somebody else has this subscription; try --type shared",
    pb.ProducerFenced: "another producer has the topic for itself",
    pb.TopicTerminatedError: "the topic has ended; nothing can be added to it",
}

Handler = Callable[[int, Any, bytes], None]


class WireError(Error):
    """`hint` says what to do about it; empty when there is nothing to say."""

    code = "refused"

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class NoBroker(WireError):
    """Nobody answers, or nobody does any more."""

    code = "unreachable"
    retryable = True

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "is the broker running? Its address is given with --url or ANABRANCH_SERVICE_URL")


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a broker and who we are there."""

    url: str = DEFAULT_URL
    token: str | None = None
    trust_file: str | None = None


def refusal(code: int, text: str) -> WireError:
    return WireError(text or pb.ServerError.Name(code), _HINTS.get(code, ""))


def command(kind: int, **fields: Any) -> bytes:
    """A complete frame; fields that are None are left out."""
    name = BaseCommand.Type.Name(kind)
    made = BaseCommand(type=name)
    body = getattr(made, name.lower())
    body.SetInParent()
    body.MergeFrom(type(body)(**{key: value for key, value in fields.items() if value is not None}))
    return frame(made)


class Link:
    """One connection. `async with Link(access) as link`; requests by `ask`, the rest goes to whoever listens."""

    def __init__(self, access: Access) -> None:
        parts = urlsplit(access.url)
        if parts.scheme not in ("pulsar", "pulsar+ssl") or not parts.hostname:
            raise WireError(f"{access.url!r} is not a service URL", f"it is like {DEFAULT_URL}")
        self._access = access
        self._tls = parts.scheme == "pulsar+ssl"
        self._address = (parts.hostname, parts.port or (6651 if self._tls else 6650))
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._waiting: dict[int, asyncio.Future[tuple[int, Any]]] = {}
        self._producers: dict[int, Handler] = {}
        self._consumers: dict[int, Handler] = {}
        self._last_id = 0
        self._failure: WireError | None = None
        self._ended: list[Callable[[WireError], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.message_bytes_max = 5 << 20

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(cafile=self._access.trust_file) if self._tls else None
        place = f"{self._address[0]}:{self._address[1]}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._reader, self._writer = await asyncio.open_connection(*self._address, ssl=context)
        except ssl.SSLError as error:
            raise NoBroker(f"TLS with {place} failed: {error.reason or error}") from error
        except TimeoutError as error:
            raise NoBroker(f"no answer from {place}") from error
        except OSError as error:
            raise NoBroker(f"cannot connect to {place}: {error.strerror or error}") from error
        self._task = asyncio.get_running_loop().create_task(self._receive())
        try:
            await self._sign_in()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        self._writer.close()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _sign_in(self) -> None:
        token = self._access.token
        answer = self._expect(0)
        self.write(
            command(
                BaseCommand.CONNECT,
                client_version=CLIENT_VERSION,
                protocol_version=PROTOCOL_VERSION,
                auth_method_name=None if token is None else "token",
                auth_data=None if token is None else token.encode(),
            )
        )
        _, connected = await self._answer(answer)
        self.message_bytes_max = connected.max_message_size or self.message_bytes_max

    # -- asking

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def write(self, *frames: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        self._writer.writelines(frames)

    async def drain(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise self._failure or NoBroker("the broker closed the connection") from error

    async def ask(self, kind: int, **fields: Any) -> Any:
        """The body of the answer; raises WireError when it is a refusal."""
        request = self.new_id()
        answer = self._expect(request)
        self.write(command(kind, request_id=request, **fields))
        try:
            code, body = await self._answer(answer)
        finally:
            self._waiting.pop(request, None)
        if code == BaseCommand.ERROR:
            raise refusal(body.error, body.message)
        return body

    def _expect(self, request: int) -> asyncio.Future[tuple[int, Any]]:
        if self._failure is not None:
            raise self._failure
        self._waiting[request] = asyncio.get_running_loop().create_future()
        return self._waiting[request]

    async def _answer(self, answer: asyncio.Future[tuple[int, Any]]) -> tuple[int, Any]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError as error:
            raise NoBroker(f"the broker did not answer within {ANSWER_SECONDS:.0f} s") from error

    def listen_producer(self, producer_id: int, handler: Handler, ended: Callable[[WireError], None]) -> None:
        self._producers[producer_id] = handler
        self._ended.append(ended)

    def listen_consumer(self, consumer_id: int, handler: Handler, ended: Callable[[WireError], None]) -> None:
        self._consumers[consumer_id] = handler
        self._ended.append(ended)

    # -- hearing

    async def _receive(self) -> None:
        failure: WireError = NoBroker("the broker closed the connection")
        try:
            while data := await self._reader.read(_READ_BYTES):
                for one in self._decoder.feed(data):
                    kind, body = read_command(one.command)
                    self._take(kind, body, b"" if one.payload is None else bytes(one.payload))
        except OSError as error:
            failure = NoBroker(f"the connection broke: {error.strerror or error}")
        except ProtocolError as error:
            failure = WireError(f"the broker sent something unreadable: {error.reason}")
        except WireError as error:
            failure = error
        self._fail(failure)

    def _fail(self, failure: WireError) -> None:
        self._failure = failure
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(failure)
        for ended in self._ended:
            ended(failure)

    def _take(self, kind: int, body: Any, payload: bytes) -> None:
        match kind:
            case BaseCommand.PING:
                self._writer.write(PONG_FRAME)
            case BaseCommand.CONNECTED:
                self._settle(0, kind, body)
            case BaseCommand.ERROR if 0 in self._waiting and not self._waiting[0].done():
                raise refusal(body.error, body.message)
            case BaseCommand.AUTH_CHALLENGE:
                token = (self._access.token or "").encode()
                data = pb.AuthData(auth_method_name="token", auth_data=token)
                self._writer.write(command(BaseCommand.AUTH_RESPONSE, response=data, client_version=CLIENT_VERSION))
            case BaseCommand.SEND_RECEIPT | BaseCommand.SEND_ERROR | BaseCommand.CLOSE_PRODUCER:
                if (handler := self._producers.get(body.producer_id)) is not None:
                    handler(kind, body, payload)
            case BaseCommand.MESSAGE | BaseCommand.CLOSE_CONSUMER | BaseCommand.REACHED_END_OF_TOPIC:
                if (handler := self._consumers.get(body.consumer_id)) is not None:
                    handler(kind, body, payload)
            case _ if (request := getattr(body, "request_id", None)) is not None:
                self._settle(request, kind, body)
            case _:
                return  # news that a small client has no use for

    def _settle(self, request: int, kind: int, body: Any) -> None:
        answer = self._waiting.get(request)
        # A producer that waits for its turn is told so, and told again when it is in.
        is_final = kind != BaseCommand.PRODUCER_SUCCESS or body.producer_ready
        if answer is not None and not answer.done() and is_final:
            answer.set_result((kind, body))


class Cluster:
    """Links to the brokers that serve what we ask for, one each. `async with Cluster(access) as cluster`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._links: dict[str, Link] = {}

    async def __aenter__(self) -> Self:
        await self._link(self._access.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self._links.values():
            await link.__aexit__(kind, error, trace)
        self._links.clear()

    async def _link(self, url: str) -> Link:
        if url not in self._links:
            access = Access(url, self._access.token, self._access.trust_file)
            self._links[url] = await Link(access).__aenter__()
        return self._links[url]

    async def parts_of(self, topic: str) -> list[str]:
        """The topic itself, or its partitions."""
        name = TopicName.parse(topic)
        link = await self._link(self._access.url)
        answer = await link.ask(BaseCommand.PARTITIONED_METADATA, topic=str(name))
        if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise refusal(answer.error, answer.message)
        count = answer.partitions
        return [str(name.partition(index)) for index in range(count)] if count else [str(name)]

    async def serving(self, topic: str) -> Link:
        """A link to the broker that serves this topic or partition."""
        url, authoritative = self._access.url, False
        for _ in range(HOPS_MAX):
            link = await self._link(url)
            answer = await link.ask(BaseCommand.LOOKUP, topic=topic, authoritative=authoritative)
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                raise refusal(answer.error, answer.message)
            secure = urlsplit(self._access.url).scheme == "pulsar+ssl"
            there = answer.brokerServiceUrlTls if secure else answer.brokerServiceUrl
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return link if answer.proxy_through_service_url or not there else await self._serving_link(url, there)
            url, authoritative = there, answer.authoritative
        raise WireError(f"brokers send us round in circles for {topic}")

    async def _serving_link(self, asked: str, there: str) -> Link:
        """The broker we asked, under whatever name we know it, when the answer names the same port of loopback."""
        ours, theirs = urlsplit(asked), urlsplit(there)
        if ours.port == theirs.port and {ours.hostname, theirs.hostname} <= {"localhost", "127.0.0.1", "::1"}:
            return await self._link(asked)
        return await self._link(there)
