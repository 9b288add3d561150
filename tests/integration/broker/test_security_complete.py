"""Every command and every route is refused for a role without permissions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.wire.connection import CommandSet
from anabranch.node.node import Node
from anabranch.node.settings.node import NetworkSettings, NodeSettings
from anabranch.node.settings.security import SecuritySettings
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from anabranch.rest.router import Route
from anabranch.rest.routes.table import make_router
from anabranch.rest.settings import HttpSettings
from anabranch.security.authorization import Action
from anabranch.security.permissions import COMMAND_NEEDS, Covered, Scope
from anabranch.storage.settings import StorageSettings
from tests.integration.rest.test_server import InMemoryAdmin
from tests.support.in_memory.credentials import token_of, write_secret
from tests.support.traffic.raw_client import RawClient, command

TOPIC = "persistent://public/default/t"


@contextlib.asynccontextmanager
async def guarded(directory: Path, http: HttpSettings | None = None, **security: Any) -> AsyncIterator[Node]:
    settings = NodeSettings(
        network=NetworkSettings(port=0),
        http=http or HttpSettings(port=0),
        storage=StorageSettings(dir=directory / "data", sync="none"),
        security=SecuritySettings(
            **{
                "methods": ("token",),
                "token_secret_key": str(write_secret(directory)),
                "authorization": True,
                "superusers": ("root",),
                **security,
            }
        ),
    )
    async with Node(settings) as node:
        yield node


def hello(role: str, **fields: Any) -> bytes:
    return command(
        BaseCommand.CONNECT,
        client_version="raw",
        protocol_version=21,
        auth_method_name="token",
        auth_data=token_of(role).encode(),
        **fields,
    )


def command_sets() -> list[type[CommandSet]]:
    return [one for one in CommandSet.__subclasses__() if one.__module__.startswith("anabranch.")]


def handled() -> set[int]:
    return {int(kind) for one in command_sets() for kind in one.handlers(one.__new__(one))}


def test_every_command_has_a_need() -> None:
    assert len(command_sets()) >= 4
    names = {BaseCommand.Type.Name(kind) for kind in handled() - set(COMMAND_NEEDS)}
    assert names == set(), "say in broker.permissions who may send these"


def test_every_need_belongs_to_a_command() -> None:
    assert set(COMMAND_NEEDS) - handled() == {int(BaseCommand.AUTH_RESPONSE)}


def sample(body: Any) -> dict[str, Any]:
    """Every required field, and names that parse."""
    fields: dict[str, Any] = {}
    for field in body.DESCRIPTOR.fields:
        if field.name == "topic":
            fields[field.name] = TOPIC
        elif field.name == "namespace":
            fields[field.name] = "public/default"
        elif field.is_required and field.cpp_type == field.CPPTYPE_STRING:
            fields[field.name] = "x"
        elif field.is_required and field.cpp_type == field.CPPTYPE_MESSAGE:
            fields[field.name] = {"name": "x", "schema_data": b"", "type": 1} if field.name == "schema" else {}
        elif field.is_required:
            fields[field.name] = field.enum_type.values[0].number if field.enum_type is not None else 7
    return fields


ASKED = [
    kind for kind, need in COMMAND_NEEDS.items() if not isinstance(need, Covered) and need.scope is not Scope.BROKER
]


@pytest.mark.parametrize("kind", ASKED, ids=BaseCommand.Type.Name)
async def test_a_role_without_rights_gets_nothing(tmp_path: Path, kind: int) -> None:
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        client.write(hello("guest"))
        await client.expect(BaseCommand.CONNECTED)
        body = getattr(BaseCommand(), BaseCommand.Type.Name(kind).lower())
        if "request_id" in body.DESCRIPTOR.fields_by_name:
            answer = await client.ask(kind, **sample(body))
        else:  # a session: its answers carry the number that the client chose
            client.tell(kind, **sample(body))
            answer = await client.until(
                lambda one: 7 in (getattr(one.body, name, 0) for name in ("session_id", "watch_id"))
            )
        said = answer.body.error_code if hasattr(answer.body, "error_code") else answer.body.error
        assert said == ServerError.AuthorizationError
        assert list(node.services.topics) == []
        assert await node.services.catalog.topics("public/default") == []


async def test_covered_commands_need_their_producer_or_consumer(tmp_path: Path) -> None:
    """They name an id of their own connection; another connection's is out of reach."""
    async with guarded(tmp_path) as node, RawClient(node.service_url) as owner, RawClient(node.service_url) as thief:
        owner.write(hello("root"))
        await owner.expect(BaseCommand.CONNECTED)
        await owner.producer(TOPIC, 1)
        await owner.subscribe(TOPIC, "s", 1)
        thief.write(hello("guest"))
        await thief.expect(BaseCommand.CONNECTED)
        for kind, need in COMMAND_NEEDS.items():
            if isinstance(need, Covered) and kind != BaseCommand.SEND:
                body = getattr(BaseCommand(), BaseCommand.Type.Name(kind).lower())
                fields = sample(body)
                fields |= {key: 1 for key in ("producer_id", "consumer_id") if key in fields}
                thief.tell(kind, **fields)
        await thief.barrier()
        owner.send(1)
        assert (await owner.receipt()).producer_id == 1
        owner.flow(10)
        assert (await owner.message()).consumer_id == 1
        (topic,) = node.services.topics
        assert set(topic.subscriptions) == {"s"}


# -- routes


def routes() -> list[Route]:
    return list(make_router(InMemoryAdmin(), "1").routes)


def test_every_route_has_a_need() -> None:
    undecided = [f"{route.method} {route.pattern}" for route in routes() if route.need is None]
    assert undecided == [], "say in the table of routes who may use these"


def test_needs_fit_their_paths() -> None:
    wanted = {
        Scope.BROKER: set(),
        Scope.BODY_TOPICS: set(),
        Scope.TENANT: {"tenant"},
        Scope.NAMESPACE: {"tenant", "namespace"},
        Scope.TOPIC: {"tenant", "namespace", "topic"},
        Scope.SUBSCRIPTION: {"tenant", "namespace", "topic", "subscription"},
    }
    for route in routes():
        assert route.need is not None
        named = set(re.findall(r"\{(\w+)", route.pattern))
        assert wanted[route.need.scope] <= named, route.pattern
        if route.need.action is Action.SIGNED_IN:
            assert not named & {"namespace", "topic"}, f"{route.pattern} is about something: who may?"


def test_open_commands_and_routes_are_listed() -> None:
    """Every further one is a decision to be made twice."""
    found = {route.pattern for route in routes() if route.need is not None and route.need.action is Action.OPEN}
    assert found == {"/metrics", "/status.html", "/docs", "/", "/console/{file}"}  # the last three: static files


def path_of(route: Route) -> str:
    values = {"tenant": "public", "namespace": "default", "topic": "t", "domain": "persistent", "file": "docs.js"}
    values["bundle"] = "0x00000000_0xffffffff"
    return re.sub(r"\{(\w+)(?::([^}|]+)[^}]*)?\}", lambda found: found[2] or values.get(found[1], "x"), route.pattern)


async def status(node: Node, method: str, path: str, body: bytes = b"", token: str | None = None) -> int:
    return (await http(node, method, path, body, f"Bearer {token}" if token else None))[0]


async def http(
    node: Node, method: str, path: str, body: bytes = b"", authorization: str | None = None
) -> tuple[int, bytes]:
    host, _, port = node.http_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: {authorization}\r\n" if authorization else ""
    writer.write(head.encode() + b"\r\n" + body)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


async def test_every_route_is_behind_the_door(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        guest, forged = token_of("guest"), token_of("root", secret=b"another secret of enough bytes!!")
        for route in routes():
            assert route.need is not None
            path = path_of(route)
            body = json.dumps([{"topic": TOPIC, "role": "r", "actions": ["produce"]}]).encode()
            body = body if route.need.scope is Scope.BODY_TOPICS else b""
            case = f"{route.method} {path}"
            if route.need.action is Action.OPEN:
                assert await status(node, route.method, path) == 200, case
                continue
            assert await status(node, route.method, path, body) == 401, case
            assert await status(node, route.method, path, body, forged) == 401, case
            if route.need.action is not Action.SIGNED_IN:
                assert await status(node, route.method, path, body, guest) == 403, case
        assert await status(node, "GET", "/nothing/here") == 401
        assert await status(node, "OPTIONS", "/admin/v2/tenants") == 401
        assert await status(node, "GET", "/nothing/here", b"", guest) == 404
        assert await node.services.catalog.topics("public/default") == []


async def test_metrics_count_refusals_and_can_be_closed(tmp_path: Path) -> None:
    async with guarded(tmp_path, open_metrics=False) as node:
        assert await status(node, "GET", "/metrics") == 401
        assert await status(node, "GET", "/admin/v2/tenants", b"", token_of("guest")) == 403
        code, text = await http(node, "GET", "/metrics", b"", f"Bearer {token_of('anybody')}")
        assert code == 200
        for line in (b"anabranch_sign_ins_total 2", b"sign_ins_refused_total 1", b"permissions_refused_total 1"):
            assert line in text


async def test_a_route_without_a_need_is_for_superusers(tmp_path: Path) -> None:
    from anabranch.rest.access import AccessFilter
    from anabranch.rest.http_message import Request, Response
    from anabranch.rest.router import Router
    from anabranch.rest.server import answer

    async def handler(request: Request) -> Response:
        return Response(200)

    async with guarded(tmp_path) as node:
        router = Router([Route("GET", "/forgotten", handler, "")])
        access_filter = AccessFilter(node.services.guard, node.services.clock)
        for role, expected in (("root", 200), ("guest", 403)):
            request = Request("GET", "/forgotten", headers={"authorization": f"Bearer {token_of(role)}"})
            assert (await answer(router, request, 5, access_filter)).status == expected


async def test_command_without_permission_rule_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(COMMAND_NEEDS, int(BaseCommand.LOOKUP))
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        client.write(hello("root"))
        await client.expect(BaseCommand.CONNECTED)
        client.tell(BaseCommand.LOOKUP, topic=TOPIC, request_id=1)
        await client.wait_closed()
        assert not client.has(BaseCommand.LOOKUP_RESPONSE)


async def test_without_authorization_every_signed_in_role_may(tmp_path: Path) -> None:
    async with guarded(tmp_path, authorization=False, superusers=()) as node, RawClient(node.service_url) as client:
        client.write(hello("anybody"))
        await client.expect(BaseCommand.CONNECTED)
        assert (await client.producer(TOPIC)).kind == BaseCommand.PRODUCER_SUCCESS
        assert await status(node, "GET", "/admin/v2/tenants") == 401
        assert await status(node, "GET", "/admin/v2/tenants", b"", token_of("anybody")) == 200
