"""The SDK where clients sign in: tokens, permissions, TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import anabranch
from anabranch.client.errors import NotAuthenticated, NotAuthorized, TimedOut
from anabranch.testing.broker import Broker
from tests.security_world import Authority, token_of, write_secret

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
        "security.methods": ("token",),
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


async def test_a_token_opens_the_door_and_its_role_decides(broker: Broker) -> None:
    with pytest.raises(NotAuthenticated):
        await anabranch.connect(broker.service_url)
    with pytest.raises(NotAuthenticated):
        await anabranch.connect(broker.service_url, token="nonsense")
    async with anabranch.connect(broker.service_url, token=token_of("nobody")) as client:
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
    with pytest.raises(TimedOut) as caught:
        await anabranch.connect(secure, token=token, operation_timeout=0.5)
    assert "certificate" in caught.value.reason.lower(), "nobody vouches for it"
    trusting = ssl.create_default_context(cafile=str(authority.path))
    async with (
        anabranch.connect(secure, token=token, tls=trusting) as client,
        client.queue_consumer(TOPIC, subscription="s") as consumer,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b"x" * 300_000, timeout=10)
        message = await consumer.receive(timeout=10)
        assert message is not None and len(message.value) == 300_000
