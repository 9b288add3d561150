"""Encrypted messages between the SDK and Pulsar's Java client, both ways, with RSA and EC keys."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import anabranch
from anabranch import Batching, Chunking, Decryption, Encryption
from tests.services.available import pulsar_java
from tests.services.pulsar_java import JavaClient
from tests.support.in_memory.key_pairs import ec_pair, rsa_pair
from tests.support.processes.broker_process import BrokerProcess

LIMIT_S = 30.0
KEYS = {"RSA": rsa_pair(), "EC": ec_pair(), "EC, 521 bits": ec_pair("secp521r1")}
FORMS: dict[str, dict[str, Any]] = {
    "single": {"batching": None},
    "batch": {"batching": Batching(max_delay=0.2), "compression": "zstd"},
    "chunks": {"batching": None, "chunking": Chunking(chunk_bytes=20_000)},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("encryption") / "data") as process:
        yield process
        assert process.log_complaints() == []


@pytest.fixture(scope="module")
def java(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    client = pulsar_java(broker.service_url, tmp_path_factory.mktemp("log"))
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/encrypted-{uuid.uuid4().hex[:8]}"


def values_of(form: str) -> list[str]:
    return [
        f"plain text {number} " * (6_000_000 // 13 if form == "chunks" and number == 2 else 1) for number in range(4)
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.conformance("end-to-end encryption: read by the SDK", client="Java")
async def test_sdk_reads_what_java_encrypts(
    java: JavaClient, broker: BrokerProcess, topic: str, kind: str, form: str
) -> None:
    pair, values = KEYS[kind], values_of(form)
    if form == "chunks":
        values[2] = values[2][:100_000]
    await asyncio.to_thread(java, "encrypt", topic, form, pair.public.decode(), *values)
    metadata: list[dict[str, str]] = []

    async def key(name: str, of: Any) -> bytes:
        metadata.append(dict(of))
        return pair.private

    async with (
        anabranch.connect(broker.service_url) as sdk,
        sdk.stream_consumer(topic, subscription="sdk", start="earliest", decryption=Decryption(key)) as consumer,
    ):
        for value in values:
            message = await consumer.receive(timeout=LIMIT_S)
            assert message is not None and message.value.decode() == value
    assert metadata == [{"version": "1"}], "the data key is unwrapped once"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.conformance("end-to-end encryption: sent by the SDK", client="Java")
async def test_java_reads_what_the_sdk_encrypts(
    java: JavaClient, broker: BrokerProcess, topic: str, kind: str, form: str
) -> None:
    pair, values = KEYS[kind], values_of(form)
    encryption = Encryption({"other": rsa_pair(3).public, "app": pair.public})
    async with (
        anabranch.connect(broker.service_url) as sdk,
        sdk.producer(topic, encryption=encryption, **FORMS[form]) as producer,
    ):
        sent = [producer.send_nowait(value.encode(), key="k") for value in values]
        await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
    assert await asyncio.to_thread(java, "decrypt", topic, "4", pair.private.decode()) == values
