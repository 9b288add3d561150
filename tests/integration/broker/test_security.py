"""Authentication over raw TCP and TLS: order of frames, reasons to close a connection, changes of grants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.settings import BrokerSettings
from anabranch.model.errors import Error
from anabranch.node.node import Node
from anabranch.node.settings.node import NetworkSettings, NodeSettings
from anabranch.node.settings.security import SecuritySettings, TlsSettings
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import NO_REQUEST, BaseCommand
from anabranch.protocol.replies import AUTH_REFRESH
from anabranch.protocol.server_errors import ServerError
from anabranch.rest.settings import HttpSettings
from anabranch.runtime.net import Stream, StreamHandler
from anabranch.runtime.net_tls import TlsNetwork
from anabranch.runtime.settings import SettingsError
from anabranch.runtime.tls import TlsFiles, TlsServer
from anabranch.storage.settings import StorageSettings
from tests.integration.broker.test_security_complete import TOPIC, guarded, hello, http, status
from tests.support.in_memory.credentials import (
    PASSWORDS,
    Authority,
    basic_header,
    token_of,
    write_htpasswd,
    write_secret,
)
from tests.support.traffic.raw_client import RawClient, command


def connect(method: str, data: bytes = b"", *, refresh: bool = False, **fields: Any) -> bytes:
    flags = pb.FeatureFlags(supports_auth_refresh=True) if refresh else None
    return command(
        BaseCommand.CONNECT,
        **{"client_version": "raw", "protocol_version": 21, **fields},
        auth_method_name=method,
        auth_data=data,
        feature_flags=flags,
    )


async def expect_refused(client: RawClient) -> str:
    answer = await client.expect(BaseCommand.ERROR)
    assert (answer.body.request_id, answer.body.error) == (NO_REQUEST, ServerError.AuthenticationError)
    await client.wait_closed()
    assert not client.has(BaseCommand.CONNECTED)
    return str(answer.body.message)


# -- CONNECT


@pytest.mark.parametrize(
    "first",
    [
        connect("none"),
        connect(""),
        connect("token"),
        connect("token", b"rubbish"),
        connect("token", token_of("root", secret=b"another secret of enough bytes!!").encode()),
        connect("token", token_of("root", seconds=-1).encode()),
        connect("basic", b"root:root"),
        connect("tls"),
        connect("athenz", b"x"),
        connect("token", token_of("root").encode(), original_principal="other"),
    ],
    ids=["none", "empty", "no token", "rubbish", "forged", "expired", "basic", "tls", "athenz", "proxied"],
)
async def test_refusals(tmp_path: Path, first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        client.write(first)
        said = await expect_refused(client)
    for text in (said, *(f"{record.getMessage()} {vars(record)}" for record in caplog.records)):
        assert "eyJ" not in text and "rubbish" not in text and "root:root" not in text


@pytest.mark.parametrize(
    "first_request",
    [
        command(BaseCommand.PARTITIONED_METADATA, topic=TOPIC, request_id=7, metadata_auto_creation_enabled=True),
        command(BaseCommand.LOOKUP, topic=TOPIC, request_id=7),
        command(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=7),
        command(BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=7),
    ],
    ids=["partitions", "lookup", "producer", "topics"],
)
async def test_cpp_client_is_refused_on_its_first_request(tmp_path: Path, first_request: bytes) -> None:
    """It cannot see an ERROR before CONNECTED, and connects again until its operation timeout."""
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        client.write(connect("token", b"rubbish", client_version="Pulsar-CPP-v4.2.0"))
        await client.expect(BaseCommand.CONNECTED)
        client.write(first_request)
        await client.wait_closed()
        (answer,) = client.take_all()
        assert answer.body.error == ServerError.AuthenticationError and answer.body.request_id == 7
        assert list(node.services.topics) == []


async def test_cpp_client_that_is_refused_may_send_no_messages(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        client.write(connect("token", b"rubbish", client_version="Pulsar-CPP-v4.2.0"))
        await client.expect(BaseCommand.CONNECTED)
        client.send(1, b"x")
        await client.wait_closed()


async def test_nothing_counts_before_connected(tmp_path: Path) -> None:
    """Commands in the same packet as CONNECT, while it is being checked, are a violation and have no effect."""
    users = write_htpasswd(tmp_path)
    async with (
        guarded(tmp_path, methods=("basic",), basic_file=users, superusers=("alice",)) as node,
        RawClient(node.service_url) as client,
    ):
        good = connect("basic", f"alice:{PASSWORDS['alice']}".encode())
        client.write(good + command(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1))
        await client.wait_closed()
        assert not client.has(BaseCommand.PRODUCER_SUCCESS)
        assert list(node.services.topics) == []
        async with RawClient(node.service_url) as other:
            other.write(good)
            await other.expect(BaseCommand.CONNECTED)
            assert (await other.producer(TOPIC)).kind == BaseCommand.PRODUCER_SUCCESS


async def test_strangers_may_not_send_much(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        async with RawClient(node.service_url) as client:
            client.write((1 << 20).to_bytes(4, "big") + (1 << 19).to_bytes(4, "big"))
            await client.wait_closed()
        async with RawClient(node.service_url) as client:
            client.write(connect("token", b"x" * 70_000))  # fits, but is no token
            await expect_refused(client)
        async with RawClient(node.service_url) as client:
            client.write(hello("root"))
            await client.expect(BaseCommand.CONNECTED)
            await client.producer(TOPIC)
            client.send(1, b"x" * 4_000_000)
            await client.receipt()


async def test_unrequested_auth_response_is_a_protocol_error(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        client.write(hello("root"))
        await client.expect(BaseCommand.CONNECTED)
        response = pb.AuthData(auth_method_name="token", auth_data=token_of("root").encode())
        client.tell(BaseCommand.AUTH_RESPONSE, response=response)
        await client.wait_closed()


async def test_anonymous_role_has_its_grants(tmp_path: Path) -> None:
    async with guarded(tmp_path, anonymous_role="guest") as node:
        grant = b'["consume"]'
        path = "/admin/v2/namespaces/public/default/permissions/guest"
        assert await status(node, "POST", path, grant, token_of("root")) == 204
        async with RawClient(node.service_url) as client:
            client.write(connect("none"))
            await client.expect(BaseCommand.CONNECTED)
            assert (await client.producer(TOPIC)).body.error == ServerError.AuthorizationError
            answer = await client.subscribe(TOPIC, force_topic_creation=True)
            assert answer.kind == BaseCommand.SUCCESS
        async with RawClient(node.service_url) as client:
            client.write(connect("token", b"wrong"))
            await expect_refused(client)


# -- expiry


async def test_client_without_refresh_is_closed_at_token_expiry(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        client.write(connect("token", token_of("root", seconds=3).encode()))
        await client.expect(BaseCommand.CONNECTED)
        assert (await client.producer(TOPIC)).kind == BaseCommand.PRODUCER_SUCCESS
        answer = await client.expect(BaseCommand.ERROR)
        assert answer.body.error == ServerError.AuthenticationError
        await client.wait_closed()
        (topic,) = node.services.topics
        assert topic.producers == {}


def fresh(role: str, seconds: float | None = None) -> dict[str, Any]:
    data = token_of(role, seconds=seconds).encode()
    return {"response": pb.AuthData(auth_method_name="token", auth_data=data)}


async def test_a_client_that_refreshes_stays(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client:
        client.write(connect("token", token_of("root", seconds=0.3).encode(), refresh=True))
        await client.expect(BaseCommand.CONNECTED)
        await client.producer(TOPIC)
        for _ in range(2):
            challenge = (await client.expect(BaseCommand.AUTH_CHALLENGE)).body.challenge
            assert (challenge.auth_method_name, challenge.auth_data) == ("token", AUTH_REFRESH)
            client.tell(BaseCommand.AUTH_RESPONSE, **fresh("root", 0.3))
        await client.expect(BaseCommand.AUTH_CHALLENGE)
        client.tell(BaseCommand.AUTH_RESPONSE, **fresh("root"))
        client.send(1)
        await client.receipt()
        assert not client.is_closed


@pytest.mark.parametrize(
    "answer", [None, fresh("other-role"), fresh("root", -1), {}], ids=["silent", "other", "old", "empty"]
)
async def test_a_bad_refresh_closes(tmp_path: Path, answer: dict[str, Any] | None) -> None:
    async with guarded(tmp_path, refresh_seconds=0.2) as node, RawClient(node.service_url) as client:
        client.write(connect("token", token_of("root", seconds=0.2).encode(), refresh=True))
        await client.expect(BaseCommand.CONNECTED)
        await client.expect(BaseCommand.AUTH_CHALLENGE)
        if answer is not None:
            client.tell(BaseCommand.AUTH_RESPONSE, **answer)
        assert (await client.expect(BaseCommand.ERROR)).body.error == ServerError.AuthenticationError
        await client.wait_closed()


# -- grants


NAMESPACE = "/admin/v2/namespaces/public/default"


async def test_revoked_grant_closes_producers_and_consumers(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node, RawClient(node.service_url) as client, RawClient(node.service_url) as root:
        admin = token_of("root")
        for role, actions in (("app", b'["produce","consume"]'), ("other", b'["produce"]')):
            assert await status(node, "POST", f"{NAMESPACE}/permissions/{role}", actions, admin) == 204
        client.write(hello("app"))
        root.write(hello("other"))
        for one in (client, root):
            await one.expect(BaseCommand.CONNECTED)
            assert (await one.producer(TOPIC, 1)).kind == BaseCommand.PRODUCER_SUCCESS
        assert (await client.subscribe(TOPIC, "s", 2)).kind == BaseCommand.SUCCESS
        assert await status(node, "POST", f"{NAMESPACE}/permissions/app", b'["consume"]', admin) == 204
        assert (await client.expect(BaseCommand.CLOSE_PRODUCER)).body.producer_id == 1
        assert (await client.producer(TOPIC, 1)).body.error == ServerError.AuthorizationError
        assert not client.has(BaseCommand.CLOSE_CONSUMER)
        assert await status(node, "DELETE", f"{NAMESPACE}/permissions/app", b"", admin) == 204
        assert (await client.expect(BaseCommand.CLOSE_CONSUMER)).body.consumer_id == 2
        assert (await client.subscribe(TOPIC, "s", 2)).body.error == ServerError.AuthorizationError
        root.send(1)
        await root.receipt()  # other clients are not affected
        (topic,) = node.services.topics
        assert len(topic.producers) == 1 and not list(topic.subscriptions["s"].consumers)


async def test_tenant_admins_rule_their_tenant_only(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        root, boss = token_of("root"), token_of("boss")
        body = json.dumps({"adminRoles": ["boss"], "allowedClusters": ["standalone"]}).encode()
        assert await status(node, "PUT", "/admin/v2/tenants/acme", body, boss) == 403
        assert await status(node, "PUT", "/admin/v2/tenants/acme", body, root) == 204
        policies = json.dumps({"auth_policies": {"namespace_auth": {"app": ["produce"]}}}).encode()
        assert await status(node, "PUT", "/admin/v2/namespaces/acme/n", policies, boss) == 204
        found = await http(node, "GET", "/admin/v2/namespaces/acme/n/permissions", b"", f"Bearer {boss}")
        assert found == (200, b'{"app":["produce"]}')
        assert await status(node, "PUT", "/admin/v2/namespaces/public/n", b"", boss) == 403
        assert await status(node, "GET", "/admin/v2/tenants", b"", boss) == 403
        async with RawClient(node.service_url) as client:
            client.write(hello("boss"))
            await client.expect(BaseCommand.CONNECTED)
            assert (await client.producer("acme/n/x", 1)).kind == BaseCommand.PRODUCER_SUCCESS
            assert (await client.producer(TOPIC, 2)).body.error == ServerError.AuthorizationError
            none = json.dumps({"adminRoles": [], "allowedClusters": ["standalone"]}).encode()
            assert await status(node, "POST", "/admin/v2/tenants/acme", none, root) == 204
            assert (await client.expect(BaseCommand.CLOSE_PRODUCER)).body.producer_id == 1


async def test_a_topic_created_again_has_no_old_grants(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        root, topic = token_of("root"), "/admin/v2/persistent/public/default/t"
        assert await status(node, "POST", f"{topic}/permissions/app", b'["produce"]', root) == 404
        for _ in range(2):
            assert await status(node, "PUT", topic, b"", root) == 204
            found = await http(node, "GET", f"{topic}/permissions", b"", f"Bearer {root}")
            assert found == (200, b"{}")
            assert await status(node, "POST", f"{topic}/permissions/app", b'["produce"]', root) == 204
            found = await http(node, "GET", f"{topic}/permissions", b"", f"Bearer {root}")
            assert found == (200, b'{"app":["produce"]}')
            assert await status(node, "DELETE", topic, b"", root) == 204


async def test_permissions_over_http(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        bearer = f"Bearer {token_of('root')}"

        async def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            content = b"" if body is None else json.dumps(body).encode()
            code, answer = await http(node, method, "/admin/v2" + path, content, bearer)
            return code, json.loads(answer) if answer else None

        space = "/namespaces/public/default"
        assert await ask("GET", f"{space}/permissions") == (200, {})
        assert await ask("POST", f"{space}/permissions/a", ["produce", "consume"]) == (204, None)
        assert await ask("GET", f"{space}/permissions") == (200, {"a": ["consume", "produce"]})
        assert (await ask("POST", f"{space}/permissions/a", ["fly"]))[0] == 400
        assert (await ask("POST", f"{space}/permissions/a"))[0] == 400
        assert (await ask("GET", "/namespaces/public/none/permissions"))[0] == 404
        assert await ask("DELETE", f"{space}/permissions/a") == (204, None)
        assert await ask("DELETE", f"{space}/permissions/a") == (204, None)
        assert await ask("POST", f"{space}/permissions/subscription/s1", ["r", "q"]) == (204, None)
        assert await ask("GET", f"{space}/permissions/subscription") == (200, {"s1": ["q", "r"]})
        assert await ask("DELETE", f"{space}/permissions/s1/r") == (204, None)
        assert await ask("DELETE", f"{space}/permissions/s1/q") == (204, None)
        assert await ask("GET", f"{space}/permissions/subscription") == (200, {"s1": []})
        assert await ask("POST", f"{space}/permissions/subscription/s1", []) == (204, None)
        assert await ask("GET", f"{space}/permissions/subscription") == (200, {})
        assert await ask("GET", f"{space}/subscriptionAuthMode") == (200, "None")
        assert await ask("POST", f"{space}/subscriptionAuthMode", "Prefix") == (204, None)
        assert await ask("GET", f"{space}/subscriptionAuthMode") == (200, "Prefix")
        assert (await ask("POST", f"{space}/subscriptionAuthMode", "zzz"))[0] == 400
        many = [{"topic": TOPIC, "role": "c", "actions": ["produce"]}]
        assert await ask("POST", "/namespaces/grantPermissionsOnTopics", many) == (204, None)
        stored = (await ask("GET", space))[1]["auth_policies"]
        assert stored["destination_auth"] == {TOPIC: {"c": ["produce"]}}
        assert await ask("POST", "/namespaces/revokePermissionsOnTopics", many) == (204, None)
        assert (await ask("GET", space))[1]["auth_policies"]["destination_auth"] == {}
        assert (await ask("POST", "/namespaces/grantPermissionsOnTopics", {}))[0] == 400
        assert (await ask("GET", "/tenants/public"))[1]["adminRoles"] == []
        assert await ask("DELETE", "/tenants/nope") == (404, {"reason": "no such tenant: 'nope'", "error": "not-found"})


async def test_sign_in_over_http(tmp_path: Path) -> None:
    users = write_htpasswd(tmp_path)
    async with guarded(
        tmp_path, methods=("token", "basic"), basic_file=users, superusers=("root", "alice", "bob", "carol")
    ) as node:
        for user, password in PASSWORDS.items():
            assert (await http(node, "GET", "/admin/v2/tenants", b"", basic_header(user, password)))[0] == 200
            assert (await http(node, "GET", "/admin/v2/tenants", b"", basic_header(user, password + "x")))[0] == 401
        assert await status(node, "GET", "/admin/v2/tenants", b"", token_of("root")) == 200
        assert await status(node, "GET", "/admin/v2/tenants", b"", token_of("root", seconds=-1)) == 401


# -- limits and settings


async def test_connections_per_address(tmp_path: Path) -> None:
    settings = NodeSettings(
        network=NetworkSettings(port=0),
        http=HttpSettings(port=0, connections_per_address_max=1),
        storage=StorageSettings(dir=tmp_path, sync="none"),
        broker=BrokerSettings(connections_per_address_max=2),
    )
    async with Node(settings) as node, RawClient(node.service_url) as first, RawClient(node.service_url) as second:
        for one in (first, second):
            await one.hello()
        async with RawClient(node.service_url) as third:
            assert (await third.expect(BaseCommand.ERROR)).body.error == ServerError.NotAllowedError
            await third.wait_closed()
        await first.barrier()
        second.write(b"\xff\xff\xff\xff\x00\x00\x00\x01")
        await second.wait_closed()
        async with RawClient(node.service_url) as fourth:
            await fourth.hello()
        host, _, port = node.http_url.removeprefix("http://").partition(":")
        _, idle = await asyncio.open_connection(host, int(port))
        idle.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await status(node, "GET", "/metrics") == 503
        idle.close()


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ({"network": {"host": "0.0.0.0"}}, "network.host"),
        ({"http": {"host": "::"}}, "http.host"),
        ({"security": {"authorization": True}}, "security.authorization"),
        ({"security": {"methods": ("token",)}}, "security.methods"),
        ({"security": {"methods": ("magic",)}}, "security.methods"),
        ({"security": {"methods": ("basic",)}}, "security.basic_file"),
        ({"security": {"methods": ("tls",)}}, "security.methods"),
        ({"security": {"token_secret_key": "a", "token_public_key": "b"}}, "security.token_public_key"),
        ({"security": {"anonymous_role": "root", "superusers": ("root",)}}, "security.anonymous_role"),
        ({"tls": {"cert_file": Path("x")}}, "tls.key_file"),
        ({"tls": {"ca_file": Path("x")}}, "tls.ca_file"),
        ({"tls": {"require_client_certificate": True}}, "tls.require_client_certificate"),
    ],
)
def test_settings_that_make_no_sense(groups: dict[str, Any], complaint: str) -> None:
    defaults = NodeSettings()
    with pytest.raises(SettingsError) as caught:
        replace(defaults, **{name: replace(getattr(defaults, name), **values) for name, values in groups.items()})
    assert any(line.startswith(complaint + ":") for line in caught.value.complaints)


def test_authentication_opens_other_addresses() -> None:
    settings = NodeSettings(
        network=NetworkSettings(host="0.0.0.0"),
        http=HttpSettings(host="0.0.0.0"),
        security=SecuritySettings(methods=("token",), token_secret_key="data:;base64,s3cr3t"),
    )
    assert "s3cr3t" not in repr(settings)


@pytest.mark.parametrize("missing", ["token_secret_key", "basic_file", "cert"])
async def test_files_that_are_missing_are_one_line_at_start(tmp_path: Path, missing: str) -> None:
    security: dict[str, Any] = {}
    tls = TlsSettings()
    match missing:
        case "token_secret_key":
            security = {"methods": ("token",), "token_secret_key": str(tmp_path / "none")}
        case "basic_file":
            security = {"methods": ("basic",), "basic_file": tmp_path / "none"}
        case _:
            tls = TlsSettings(cert_file=tmp_path / "none", key_file=tmp_path / "none")
    settings = NodeSettings(
        network=NetworkSettings(port=0),
        http=HttpSettings(port=0),
        storage=StorageSettings(dir=tmp_path / "data", sync="none"),
        security=SecuritySettings(**security),
        tls=tls,
    )
    with pytest.raises(Error, match="No such file"):
        async with Node(settings):
            raise AssertionError("it must not start")


# -- TLS


@contextlib.asynccontextmanager
async def with_tls(directory: Path, authority: Authority, *, ca: bool = True, **options: Any) -> AsyncIterator[Node]:
    files = authority.issue("localhost", file="server")
    tls: dict[str, Any] = {"cert_file": files.certificate, "key_file": files.key, "port": 0, "http_port": 0}
    tls |= {"ca_file": authority.path} if ca else {}
    security: dict[str, Any] = {"methods": ("token", "tls"), "token_secret_key": str(write_secret(directory))}
    settings = NodeSettings(
        network=NetworkSettings(port=0),
        http=HttpSettings(port=0),
        storage=StorageSettings(dir=directory / "data", sync="none"),
        security=SecuritySettings(**security, authorization=True, superusers=("node-1",)),
        tls=TlsSettings(**{**tls, **options}),
    )
    async with Node(settings) as node:
        yield node


def client_context(authority: Authority, *names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if names:
        files = authority.issue(*names)
        context.load_cert_chain(files.certificate, files.key)
    return context


class TlsRawClient(RawClient):
    def __init__(self, service_url: str, context: ssl.SSLContext) -> None:
        super().__init__(service_url)
        self._context = context

    async def __aenter__(self) -> TlsRawClient:
        self._reader, self._writer = await asyncio.open_connection(*self._address, ssl=self._context)
        self._task = asyncio.ensure_future(self._receive())
        return self


async def https(url: str, context: ssl.SSLContext, path: str) -> int:
    host, _, port = url.removeprefix("https://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def test_certificates_are_roles(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with with_tls(tmp_path, authority) as node:
        binary, web = node.tls_urls
        superuser, other = client_context(authority, "node-1"), client_context(authority, "node-2")
        bare, double = client_context(authority), client_context(authority, "node-1", "node-2")
        async with TlsRawClient(binary, superuser) as client:
            client.write(connect("tls"))
            await client.expect(BaseCommand.CONNECTED)
            assert (await client.producer(TOPIC)).kind == BaseCommand.PRODUCER_SUCCESS
        async with TlsRawClient(binary, other) as client:
            client.write(connect("tls"))
            await client.expect(BaseCommand.CONNECTED)
            assert (await client.producer(TOPIC)).body.error == ServerError.AuthorizationError
        for context in (bare, double):
            async with TlsRawClient(binary, context) as client:
                client.write(connect("tls"))
                await expect_refused(client)
        async with TlsRawClient(binary, bare) as client:  # another method on a TLS connection
            client.write(hello("node-1"))
            await client.expect(BaseCommand.CONNECTED)
        found = [await https(web, one, "/admin/v2/tenants") for one in (superuser, other, bare, double)]
        assert found == [200, 403, 401, 401]


async def test_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other", "other-ca")
    stranger = client_context(authority)
    files = other.issue("node-1")
    stranger.load_cert_chain(files.certificate, files.key)
    async with with_tls(tmp_path, authority) as node:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with TlsRawClient(node.tls_urls[0], stranger) as client:
                client.write(connect("tls"))
                await client.expect(BaseCommand.CONNECTED)
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await https(node.tls_urls[1], stranger, "/admin/v2/tenants")
        assert await https(node.tls_urls[1], client_context(authority, "node-1"), "/admin/v2/tenants") == 200


async def test_a_certificate_can_be_required(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with with_tls(tmp_path, authority, require_client_certificate=True) as node:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with TlsRawClient(node.tls_urls[0], client_context(authority)) as client:
                client.write(hello("node-1"))
                await client.expect(BaseCommand.CONNECTED)
        async with TlsRawClient(node.tls_urls[0], client_context(authority, "x")) as client:
            client.write(hello("node-1"))
            await client.expect(BaseCommand.CONNECTED)


async def test_a_certificate_on_the_plain_port_means_nothing(tmp_path: Path) -> None:
    async with with_tls(tmp_path, Authority(tmp_path)) as node, RawClient(node.service_url) as client:
        client.write(connect("tls"))
        await expect_refused(client)


async def test_garbage_and_silence_on_tls_ports_affect_no_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with with_tls(tmp_path, authority) as node:
        for url in node.tls_urls:
            host, _, port = url.partition("://")[2].partition(":")
            silent = await asyncio.open_connection(host, int(port))
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()  # an alert, then the end
            writer.close()
            old = client_context(authority)
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(host, int(port), ssl=old)
            silent[1].close()
        async with TlsRawClient(node.tls_urls[0], client_context(authority, "node-1")) as client:
            client.write(connect("tls"))
            await client.expect(BaseCommand.CONNECTED)


async def test_large_traffic_both_ways_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        with_tls(tmp_path, authority) as node,
        TlsRawClient(node.tls_urls[0], client_context(authority, "node-1")) as client,
    ):
        client.write(connect("tls"))
        await client.expect(BaseCommand.CONNECTED)
        await client.producer(TOPIC)
        await client.subscribe(TOPIC, "s", 2)
        sizes = [1, 100, 16_384, 16_385, 300_000, 4_000_000, 10]
        for number, size in enumerate(sizes):
            client.send(number, bytes([number]) * size)
        for _ in sizes:
            await client.receipt()
        client.flow(100, 2)
        for number, size in enumerate(sizes):
            answer = await client.expect(BaseCommand.MESSAGE)
            assert answer.payload is not None and answer.payload.endswith(bytes([number]) * size)


class Echo:
    """Sends back what it gets; may stop reading."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.received_bytes = 0
        self.has_much = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._room = bytearray(5_000)

    block_bytes = 0

    def buffer(self) -> memoryview:
        return memoryview(self._room)

    def received_block(self, block: bytes) -> None:
        raise AssertionError("not asked for")

    def received(self, count: int) -> None:
        self.received_bytes += count
        if self.received_bytes > 1_000_000:
            self.has_much.set()
        data = bytes(self._room[:count])
        self.stream.write([data[: count // 2], data[count // 2 :]])

    def drained(self) -> None:
        return

    def closed(self, reason: str) -> None:
        self.ended.set_result(reason)


async def test_the_stream_keeps_every_byte_in_order(tmp_path: Path) -> None:
    """More than the kernel takes, read in other pieces than written, with a pause of both sides in between."""
    authority = Authority(tmp_path)
    files = authority.issue("localhost", file="server")
    made: asyncio.Queue[Echo] = asyncio.Queue()

    def make(stream: Stream) -> StreamHandler:
        echo = Echo(stream)
        made.put_nowait(echo)
        return echo

    listener = await TlsNetwork(TlsServer(TlsFiles(files.certificate, files.key))).listen("127.0.0.1", 0, make)
    listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=client_context(authority))
    data = b"".join(number.to_bytes(4, "big") for number in range(1_500_000))
    writer.write(data)  # nothing is read back yet: both directions fill up
    async with asyncio.timeout(30):
        echo = await made.get()
        await echo.has_much.wait()
        echo.stream.pause_reading()
        held = echo.received_bytes
        got = await reader.readexactly(100_000)
        assert echo.received_bytes == held
        echo.stream.resume_reading()
        got += await reader.readexactly(len(data) - len(got))
        assert got == data
        echo.stream.close()
        assert await reader.read() == b""
        assert await echo.ended == "closed"
    assert echo.stream.unsent_bytes == 0
    writer.close()
    listener.close()


async def test_new_certificates_count_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with with_tls(tmp_path, authority) as node:

        async def serials() -> list[Any]:
            found = []
            for url in node.tls_urls:
                host, _, port = url.partition("://")[2].partition(":")
                _, writer = await asyncio.open_connection(host, int(port), ssl=client_context(authority))
                found.append(writer.get_extra_info("peercert")["serialNumber"])
                writer.close()
            return found

        before = await serials()
        authority.issue("localhost", file="server")
        after = await serials()
        assert before[0] == before[1] != after[0] == after[1]
        (tmp_path / "server.cert.pem").write_text("rubbish")
        assert await serials() == after
