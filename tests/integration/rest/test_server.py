"""The HTTP server on a real loopback socket, with routes of the test's own and with the real table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import pytest

from anabranch.broker.admin.service import BrokerAdmin
from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.admin.tenants import TenantAdmin
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.broker.admin.views.journal import Journal
from anabranch.broker.errors import TopicMigrated
from anabranch.broker.services import Services
from anabranch.broker.stats.subscription_stats import StatsOptions
from anabranch.broker.wire.server import BrokerServer
from anabranch.model.errors import AlreadyExists, NotFound, NotReady
from anabranch.model.position import Position
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.router import Route, Router
from anabranch.rest.routes.table import make_router
from anabranch.rest.server import HttpServer
from anabranch.rest.settings import HttpSettings
from anabranch.security.authorization import Grants

SMALL = HttpSettings(
    port=0,
    body_bytes_max=2048,
    header_bytes_max=2048,
    connections_max=3,
    idle_seconds=5.0,
    read_seconds=0.3,
    handle_seconds=0.3,
)


async def echo(request: Request) -> Response:
    return json_response(
        {"name": request.params["name"], "query": dict(request.query), "body": request.body.decode("latin-1")}
    )


async def broken(request: Request) -> Response:
    raise RuntimeError("secret detail")


async def stuck(request: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def refused(request: Request) -> Response:
    raise NotReady("not yet")


ROUTES = Router(
    [
        Route("GET", "/echo/{name}", echo, ""),
        Route("PUT", "/echo/{name}", echo, ""),
        Route("GET", "/broken", broken, ""),
        Route("GET", "/stuck", stuck, ""),
        Route("GET", "/refused", refused, ""),
    ]
)


class Peer:
    """A raw HTTP connection: bytes out, parsed answers in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
            body = b"" if head_only else await self.reader.readexactly(int(headers.get("content-length", "0")))
            return int(lines[0].split()[1]), headers, body

    async def is_closed(self) -> bool:
        async with asyncio.timeout(5):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with HttpServer(ROUTES, SMALL) as made:
        yield made


async def connect(server: HttpServer) -> Peer:
    return Peer(*await asyncio.open_connection("127.0.0.1", server.port))


async def call(
    server: HttpServer, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    peer = await connect(server)
    extra = "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items())
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    await peer.send(head.encode() + body)
    found = await peer.answer(head_only=method == "HEAD")
    peer.writer.close()
    return found


async def test_keep_alive_and_pipelining(server: HttpServer) -> None:
    peer = await connect(server)
    await peer.send(
        b"GET /echo/a HTTP/1.1\r\nHost: h\r\n\r\n"
        b"PUT /echo/b%2Fc?x=1&y= HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"
    )
    assert json.loads((await peer.answer())[2])["name"] == "a"
    assert json.loads((await peer.answer())[2]) == {"name": "b/c", "query": {"x": "1", "y": ""}, "body": "hi"}
    await peer.send(b"GET /echo/z HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert (await peer.answer())[0] == 200
    assert await peer.is_closed()
    assert server.stats().requests == 3


async def test_chunked_body_and_slow_bytes(server: HttpServer) -> None:
    peer = await connect(server)
    for byte in b"PUT /echo/a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n":
        await peer.send(bytes([byte]))
    assert json.loads((await peer.answer())[2])["body"] == "hi!"


async def test_expect_continue(server: HttpServer) -> None:
    peer = await connect(server)
    await peer.send(b"PUT /echo/a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert (await peer.answer())[0] == 100
    await peer.send(b"ok")
    assert json.loads((await peer.answer())[2])["body"] == "ok"


async def test_head_and_options(server: HttpServer) -> None:
    status, headers, _ = await call(server, "HEAD", "/echo/a")
    assert status == 200 and int(headers["content-length"]) > 10
    status, headers, _ = await call(server, "OPTIONS", "/echo/a")
    assert (status, headers["allow"]) == (200, "GET, HEAD, OPTIONS, PUT")


def refusal_of(body: bytes) -> str:
    """The stable word of an error. Go's admin client expects a number in a field `code`, so there is none."""
    value = json.loads(body)
    assert set(value) == {"reason", "error"} and isinstance(value["reason"], str), value
    return str(value["error"])


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown-path"),
        ("OPTIONS", "/nothing", 404, "unknown-path"),
        ("DELETE", "/echo/a", 405, "wrong-method"),
        ("GET", "/refused", 503, "not-ready"),
        ("GET", "/stuck", 504, "timeout"),
        ("GET", "/broken", 500, "internal"),
        ("GET", "/echo/%FF", 400, "bad-request"),
    ],
)
async def test_errors_have_reason_and_error(server: HttpServer, method: str, path: str, status: int, code: str) -> None:
    found, headers, body = await call(server, method, path)
    assert (found, refusal_of(body)) == (status, code)
    assert headers["content-type"] == "application/json"
    assert b"secret detail" not in body and b"Traceback" not in body


async def test_changes_from_foreign_origins_are_refused(server: HttpServer) -> None:
    foreign = {"Origin": "http://elsewhere.example"}
    assert (await call(server, "PUT", "/echo/a", b"x", foreign))[0] == 403
    assert (await call(server, "PUT", "/echo/a", b"x", {"Origin": "null"}))[0] == 403
    assert (await call(server, "GET", "/echo/a", b"", foreign))[0] == 200
    assert (await call(server, "PUT", "/echo/a", b"x", {"Origin": "http://h"}))[0] == 200


async def test_connection_survives_an_error(server: HttpServer) -> None:
    peer = await connect(server)
    for path in (b"/broken", b"/nothing", b"/refused", b"/echo/a"):
        await peer.send(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        status = (await peer.answer())[0]
    assert status == 200


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"PUT /echo/a HTTP/1.1\r\nHost: h\r\nContent-Length: 9999\r\n\r\n", 413, "body-too-large"),
        (
            b"PUT /echo/a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n900\r\n" + b"x" * 0x900,
            413,
            "body-too-large",
        ),
        (b"GET /" + b"x" * 3000, 431, "headers-too-large"),
        (b"\x16\x03\x01\x02\x00 not http\r\n\r\n", 400, "bad-request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad-request"),  # no Host
        (b"PUT /echo/a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400, "bad-request"),
        (b"PUT /echo/a HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400, "bad-request"),
    ],
)
async def test_bad_requests_are_answered_and_closed(server: HttpServer, data: bytes, status: int, code: str) -> None:
    peer = await connect(server)
    await peer.send(data)
    found, _, body = await peer.answer()
    assert (found, refusal_of(body)) == (status, code)
    assert await peer.is_closed()


async def test_incomplete_request_times_out(server: HttpServer) -> None:
    peer = await connect(server)
    await peer.send(b"PUT /echo/a HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf")
    assert await peer.is_closed()
    slow = await connect(server)
    await slow.send(b"GET /echo")
    assert await slow.is_closed()


async def test_too_many_connections_are_refused(server: HttpServer) -> None:
    peers = [await connect(server) for _ in range(3)]
    for peer in peers:
        await peer.send(b"GET /echo/a HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await peer.answer())[0] == 200
    fourth = await connect(server)
    status, headers, body = await fourth.answer()
    assert (status, headers["retry-after"], refusal_of(body)) == (503, "1", "overloaded")
    assert await fourth.is_closed()


async def test_stop_closes_idle_connections_and_frees_the_port() -> None:
    server = HttpServer(ROUTES, SMALL)
    await server.start()
    peer = await connect(server)
    await peer.send(b"GET /echo/a HTTP/1.1\r\nHost: h\r\n\r\n")
    await peer.answer()
    async with asyncio.timeout(2):
        await server.stop()
    assert await peer.is_closed()
    again = HttpServer(ROUTES, HttpSettings(port=server.port))
    await again.start()
    await again.stop()


def no_services() -> Services:
    raise NotReady("not here")


class InMemoryTopics(TopicAdmin):
    """Topics in dictionaries: enough to see that each route calls what it says and answers like Pulsar."""

    def __init__(self) -> None:
        super().__init__(no_services, SubscriptionAdmin(no_services))
        self.known: dict[str, Mapping[str, str]] = {}
        self.partitioned: dict[str, int] = {}
        self.migrated: set[str] = set()

    async def check_not_migrated(self, topic: str) -> None:
        if topic in self.migrated:
            raise TopicMigrated(topic)

    async def check_served(self, topic: str) -> None:
        """Every topic is here."""

    async def lookup(self, topic: str, authoritative: bool, listener: str | None) -> dict[str, Any]:
        return {"brokerUrl": "pulsar://127.0.0.1:1", "httpUrl": "http://127.0.0.1:2", "nativeUrl": topic}

    async def partitions(self, topic: str, check_allow_auto_creation: bool) -> int:
        if topic not in self.partitioned and topic not in self.known and not check_allow_auto_creation:
            raise NotFound(f"Topic {topic} not found")
        return self.partitioned.get(topic, 0)

    async def create(self, topic: str, properties: Mapping[str, str]) -> None:
        if topic in self.known:
            raise AlreadyExists("This topic already exists")
        self.known[topic] = properties

    async def delete(self, topic: str, force: bool) -> None:
        if self.known.pop(topic, None) is None:
            raise NotFound(f"Topic {topic} not found")

    async def create_partitions(self, topic: str, count: int, properties: Mapping[str, str]) -> None:
        self.partitioned[topic] = count

    async def update_partitions(self, topic: str, count: int) -> None:
        self.partitioned[topic] = count

    async def create_missed_partitions(self, topic: str) -> None:
        assert topic in self.partitioned

    async def delete_partitions(self, topic: str, force: bool) -> None:
        del self.partitioned[topic]

    async def list_all(self, namespace: str, domain: str, include_partitioned: bool) -> list[str]:
        return sorted(topic for topic in self.known if topic.startswith(f"{domain}://{namespace}/"))

    async def list_partitioned(self, namespace: str, domain: str) -> list[str]:
        return sorted(self.partitioned)

    async def stats(self, topic: str, options: StatsOptions) -> dict[str, Any]:
        return {"msgInCounter": 1, "topic": topic}

    async def partitioned_stats(self, topic: str, options: StatsOptions) -> dict[str, Any]:
        return {"metadata": {"partitions": 2}, "partitions": {"p": {}}}

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        return {"state": "LedgerOpened"}

    async def terminate(self, topic: str) -> Position:
        return Position(3, 7)

    async def exists(self, topic: str) -> bool:
        return topic in self.known


class InMemoryTenants(TenantAdmin):
    def __init__(self) -> None:
        super().__init__(no_services, cast(BrokerServer, None))
        self.namespaces = {"public/default"}
        self.records: dict[str, Mapping[str, Any]] = {}
        self.access: dict[str, Grants] = {}

    async def list_tenants(self) -> list[str]:
        return sorted({name.split("/")[0] for name in self.namespaces})

    async def tenant(self, tenant: str) -> dict[str, Any]:
        if tenant not in await self.list_tenants():
            raise NotFound("Tenant does not exist")
        return dict(self.records.get(tenant, {}))

    async def create_tenant(self, tenant: str, record: Mapping[str, Any]) -> None:
        self.namespaces.add(f"{tenant}/default")
        self.records[tenant] = record

    async def update_tenant(self, tenant: str, record: Mapping[str, Any]) -> None:
        self.records[tenant] = record

    async def delete_tenant(self, tenant: str) -> None:
        self.records.pop(tenant, None)

    async def list_namespaces(self, tenant: str) -> list[str]:
        return sorted(name for name in self.namespaces if name.startswith(tenant + "/"))

    async def create_namespace(self, namespace: str, record: Mapping[str, Any]) -> None:
        self.namespaces.add(namespace)
        self.access[namespace] = Grants.load(record)

    async def grants(self, namespace: str) -> Grants:
        return self.access.get(namespace, Grants())

    async def change_grants(self, namespace: str, change: Callable[[Grants], Grants]) -> None:
        self.access[namespace] = change(await self.grants(namespace))

    async def delete_namespace(self, namespace: str) -> None:
        self.namespaces.discard(namespace)


class InMemoryJournal(Journal):
    def __init__(self) -> None:
        super().__init__(no_services)
        self.noted: list[dict[str, Any]] = []

    def note(self, **change: Any) -> None:
        self.noted.append(change)


class InMemoryAdmin(BrokerAdmin):
    """Routes of the other nouns answer 503; they have tests of their own."""

    def __init__(self) -> None:
        super().__init__(no_services, cast(BrokerServer, None), lambda: None)
        self.known_topics = self.topics = InMemoryTopics()
        self.tenants = InMemoryTenants()
        self.journal = self.noted_changes = InMemoryJournal()
        self.healthy = True

    def health(self) -> None:
        if not self.healthy:
            raise NotReady("starting")

    async def metrics(self) -> AsyncIterator[bytes]:
        for piece in (b"pulsar_broker_", b"", b"topics_count 1\n"):
            yield piece


async def test_routes_call_admin_services() -> None:
    broker = InMemoryAdmin()
    topics = broker.known_topics
    async with HttpServer(make_router(broker, "1.2.3"), HttpSettings(port=0)) as server:

        async def ask(method: str, path: str, body: bytes = b"") -> tuple[int, str]:
            status, _, content = await call(server, method, path, body)
            return status, content.decode()

        admin, topic = "/admin/v2", "/persistent/public/default/a%2Fb+c"
        assert await ask("PUT", admin + topic, b'{"k":"v"}') == (204, "")
        assert topics.known == {"persistent://public/default/a/b c": {"k": "v"}}
        assert (await ask("PUT", admin + topic))[0] == 409
        assert [(one["method"], one["status"]) for one in broker.noted_changes.noted] == [("PUT", 204), ("PUT", 409)]
        topics.migrated.add("persistent://public/default/old")
        assert (await ask("GET", f"{admin}/persistent/public/default/old/stats"))[0] == 410
        assert await ask("GET", admin + "/persistent/public/default") == (200, '["persistent://public/default/a/b c"]')
        assert await ask("GET", f"{admin}/namespaces/public/default/topics?mode=ALL") == (
            200,
            '["persistent://public/default/a/b c"]',
        )
        assert await ask("GET", f"{admin}/namespaces/public/default/topics?mode=NON_PERSISTENT") == (200, "[]")
        assert (await ask("GET", f"{admin}/namespaces/public/default/topics?mode=x"))[0] == 400
        assert await ask("GET", f"{admin}{topic}/partitions") == (200, '{"partitions":0,"deleted":false}')
        assert (await ask("GET", f"{admin}/persistent/public/default/none/partitions"))[0] == 404
        assert (await ask("GET", f"{admin}/persistent/public/default/none/partitions?checkAllowAutoCreation=true"))[
            0
        ] == 200
        assert (await ask("GET", f"{admin}/persistent/bad!/default/none/partitions"))[0] == 412
        assert (await ask("PUT", f"{admin}/non-persistent/public/default/p/partitions", b"3"))[0] == 204
        assert (await ask("POST", f"{admin}/non-persistent/public/default/p/partitions", b"5"))[0] == 204
        assert topics.partitioned == {"non-persistent://public/default/p": 5}
        assert (await ask("PUT", f"{admin}/persistent/public/default/q/partitions", b"0"))[0] == 406
        assert (await ask("GET", f"{admin}/persistent/public/default/partitioned"))[0] == 200
        assert (await ask("DELETE", f"{admin}/non-persistent/public/default/p/partitions"))[0] == 204
        assert json.loads((await ask("GET", f"{admin}{topic}/stats"))[1])["msgInCounter"] == 1
        assert '"partitions":{}' in (await ask("GET", f"{admin}{topic}/partitioned-stats?perPartition=false"))[1]
        assert (await ask("GET", f"{admin}{topic}/internalStats"))[0] == 200
        looked_up = json.loads((await ask("GET", f"/lookup/v2/topic{topic}?authoritative=false"))[1])
        assert looked_up["brokerUrl"] == "pulsar://127.0.0.1:1" and looked_up["brokerUrlSsl"] == ""
        assert looked_up["nativeUrl"] == "persistent://public/default/a/b c"
        assert (await ask("GET", f"/lookup/v2/destination{topic}"))[0] == 200
        assert (await ask("DELETE", admin + topic))[0] == 204
        assert (await ask("DELETE", admin + topic))[0] == 404
        assert await ask("GET", f"{admin}/tenants") == (200, '["public"]')
        assert (await ask("PUT", f"{admin}/tenants/t", b'{"allowedClusters":["standalone"],"adminRoles":[]}'))[0] == 204
        assert (await ask("PUT", f"{admin}/tenants/t", b'{"adminRoles":["x"]}'))[0] == 204
        assert (await ask("GET", f"{admin}/tenants/nope"))[0] == 404
        assert (await ask("PUT", f"{admin}/namespaces/t/n"))[0] == 204
        assert await ask("GET", f"{admin}/namespaces/t") == (200, '["t/default","t/n"]')
        assert (await ask("DELETE", f"{admin}/namespaces/t/n?force=true"))[0] == 405
        last = {"ledgerId": 3, "entryId": 7, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
        assert json.loads((await ask("POST", f"{admin}{topic}/terminate"))[1]) == last
        assert await ask("GET", f"{admin}/brokers/health") == (200, "ok")
        assert await ask("GET", f"{admin}/brokers/version") == (200, "1.2.3")
        assert await ask("GET", "/status.html") == (200, "OK")
        assert (await ask("GET", "/metrics/"))[1] == "pulsar_broker_topics_count 1\n"
        assert (await ask("GET", f"{admin}/schemas/public/default/x/schema"))[0] == 503
        broker.healthy = False
        assert (await ask("GET", f"{admin}/brokers/health"))[0] == 503
        assert (await ask("GET", "/status.html"))[0] == 503
