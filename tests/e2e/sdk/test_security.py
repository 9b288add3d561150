"""The SDK with authentication: tokens, permissions, TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import anabranch
import anabranch.admin
import anabranch.admin.blocking
from anabranch import Backoff, Basic, Certificate, ConnectionPolicy, Tls, Token
from anabranch.admin import AdminError, Refused
from anabranch.client.errors import BadOption, NotAuthenticated, NotAuthorized, TimedOut, TlsFailed
from anabranch.testing.broker import Broker
from tests.support.in_memory.credentials import Authority, token_of, write_htpasswd, write_secret

TOPIC = "persistent://public/default/t"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


@pytest.fixture(scope="module")
def broker(directory: Path, authority: Authority) -> Iterator[Broker]:
    files = authority.issue("broker")
    settings = {
        "security.methods": ("token", "basic", "tls"),
        "security.basic_file": write_htpasswd(directory, root="hunter2"),
        "tls.ca_file": authority.path,
        "security.authorization": True,
        "security.superusers": ("root",),
        "security.token_secret_key": str(write_secret(directory)),
        "tls.cert_file": files.certificate,
        "tls.key_file": files.key,
        "tls.port": 0,
        "tls.http_port": 0,
    }
    with Broker(settings=settings) as running:
        yield running


async def test_token_authenticates_and_its_role_is_checked(broker: Broker) -> None:
    with pytest.raises(NotAuthenticated):
        await anabranch.connect(broker.service_url)
    with pytest.raises(NotAuthenticated):
        await anabranch.connect(broker.service_url, token="nonsense")
    async with anabranch.connect(broker.service_url, token=token_of("stranger")) as client:
        with pytest.raises(NotAuthorized):
            await client.producer(TOPIC)
    asked = []

    def supplier() -> str:
        asked.append(1)
        return token_of("root")

    async with anabranch.connect(broker.service_url, token=supplier) as client, client.producer(TOPIC) as producer:
        assert (await producer.send(b"x", timeout=10)).ledger >= 0
    assert asked


def secure_url(broker: Broker) -> str:
    request = urllib.request.Request(f"{broker.http_url}/lookup/v2/topic/{TOPIC.replace('://', '/')}")
    request.add_header("Authorization", f"Bearer {token_of('root')}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["brokerUrlTls"])


async def test_tls_is_checked_and_carries_messages(broker: Broker, authority: Authority) -> None:
    secure = await asyncio.to_thread(secure_url, broker)
    token = token_of("root")
    with pytest.raises(TlsFailed) as caught:
        await anabranch.connect(secure, token=token)
    assert "certificate" in caught.value.reason.lower(), "no trusted certificate signed it"
    trusting = ssl.create_default_context(cafile=str(authority.path))
    async with (
        anabranch.connect(secure, token=token, tls=trusting) as client,
        client.queue_consumer(TOPIC, subscription="s") as consumer,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b"x" * 300_000, timeout=10)
        message = await consumer.receive(timeout=10)
        assert message is not None and len(message.value) == 300_000


async def test_password_and_token_file_authenticate(broker: Broker, tmp_path: Path) -> None:
    """The file is read whenever it is needed: what it says then counts."""
    async with anabranch.connect(broker.service_url, auth=Basic("root", "hunter2")) as client:
        assert (await (await client.producer(TOPIC)).send(b"x", timeout=10)).ledger >= 0
    with pytest.raises(NotAuthenticated) as caught:
        await anabranch.connect(broker.service_url, auth=Basic("root", "wrong-word"))
    assert "wrong-word" not in str(caught.value)
    file = tmp_path / "token"
    file.write_text(token_of("root") + "\n")
    async with anabranch.connect(broker.service_url, token=file) as client:
        assert (await (await client.producer(TOPIC)).send(b"x", timeout=10)).ledger >= 0


async def test_certificate_authenticates(broker: Broker, authority: Authority) -> None:
    """Scenario 96: mutual TLS; a role that is not allowed is refused, files that are none at once."""
    secure = await asyncio.to_thread(secure_url, broker)

    def identity(role: str) -> Tls:
        files = authority.issue(role)
        return Tls(trust_file=authority.path, certificate_file=files.certificate, key_file=files.key)

    async with anabranch.connect(secure, auth=Certificate(), tls=identity("root")) as client:
        assert (await (await client.producer(TOPIC)).send(b"x", timeout=10)).ledger >= 0
    async with anabranch.connect(secure, auth=Certificate(), tls=identity("stranger")) as client:
        with pytest.raises(NotAuthorized):
            await client.producer(TOPIC)
    with pytest.raises(BadOption, match="TLS files"):
        anabranch.connect(secure, tls=Tls(trust_file="/nowhere.pem"))


async def test_expired_token_is_renewed_on_the_open_connection(broker: Broker) -> None:
    """Scenario 96: the broker challenges when the token expires; the answer is a fresh one, and nothing is lost."""
    asked = asyncio.Event()
    given = 0

    def supplier() -> str:
        nonlocal given
        given += 1
        if given >= 3:
            asked.set()
        return token_of("root", seconds=3.0) if given < 3 else token_of("root")

    async with (
        anabranch.connect(broker.service_url, token=supplier) as client,
        client.queue_consumer(TOPIC, subscription="renewed") as consumer,
        client.producer(TOPIC) as producer,
    ):
        connection = await client._pool.connection()
        await asyncio.wait_for(asked.wait(), 20)
        await producer.send(b"after", timeout=10)
        message = await consumer.receive(timeout=10)
        assert message is not None
        assert await client._pool.connection() is connection, "no new connection"


async def test_failing_token_supplier_is_retried(broker: Broker) -> None:
    tries = 0

    def supplier() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("secret words of the vault")
        return token_of("root")

    quick = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.05))
    async with anabranch.connect(broker.service_url, token=supplier, connection=quick):
        assert tries == 3
    tries = -1000
    with pytest.raises(TimedOut) as caught:
        await anabranch.connect(broker.service_url, token=supplier, connection=quick, operation_timeout=2)
    assert "no token" in caught.value.reason
    assert "secret" not in str(caught.value)


async def test_admin_client_authenticates_in_the_same_ways(broker: Broker) -> None:
    for auth in (Token(token_of("root")), Basic("root", "hunter2")):
        async with anabranch.admin.connect(broker.http_url, auth=auth) as admin:
            assert "public" in await admin.tenants.list()
    with anabranch.admin.blocking.connect(broker.http_url, token=lambda: token_of("root")) as blocking:
        assert "public" in await asyncio.to_thread(blocking.tenants.list)
    async with anabranch.admin.connect(broker.http_url) as admin:
        with pytest.raises(Refused) as caught:
            await admin.tenants.list()
        assert caught.value.status == 401

    def broken() -> str:
        raise RuntimeError("secret words")

    async with anabranch.admin.connect(broker.http_url, token=broken) as admin:
        with pytest.raises(AdminError) as failed:
            await admin.tenants.list()
        assert "secret" not in str(failed.value)
