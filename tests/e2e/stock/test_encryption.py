"""Encrypted messages between the SDK and the stock Python client, both ways, on regular topics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pulsar
import pytest

import anabranch
from anabranch import Batching, Chunking, Decryption, Encryption
from tests.support.in_memory.key_pairs import rsa_pair
from tests.support.processes.broker_process import BrokerProcess

LIMIT_S = 20.0
LARGE = bytes(range(256)) * 25_000  # larger than the broker's limit
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the stock client, of the SDK
    "single": ({}, {"batching": None}),
    "batch": (
        {"batching_enabled": True, "batching_max_publish_delay_ms": 200},
        {"batching": Batching(max_delay=0.2)},
    ),
    "compressed": (
        {"compression_type": pulsar.CompressionType.ZSTD, "batching_enabled": True},
        {"compression": "zstd"},
    ),
    "chunks": ({"chunking_enabled": True}, {"chunking": Chunking(), "batching": None}),
}


@pytest.fixture
def reader(tmp_path: Path) -> pulsar.CryptoKeyReader:
    return files(tmp_path, 0)


def files(folder: Path, number: int) -> pulsar.CryptoKeyReader:
    public, private = folder / f"public-{number}.pem", folder / f"private-{number}.pem"
    public.write_bytes(rsa_pair(number).public)
    private.write_bytes(rsa_pair(number).private)
    return pulsar.CryptoKeyReader(str(public), str(private))


def values_of(form: str) -> list[bytes]:
    values = [b"plain text %d " % number * (500 if form == "compressed" else 1) for number in range(5)]
    return [*values, LARGE] if form == "chunks" else values


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.conformance("end-to-end encryption: read by the SDK", client="Python")
async def test_sdk_reads_what_the_stock_client_encrypts(
    client: pulsar.Client, broker: BrokerProcess, topic: str, reader: pulsar.CryptoKeyReader, form: str
) -> None:
    async with (
        anabranch.connect(broker.service_url) as sdk,
        sdk.stream_consumer(
            topic, subscription="s", start="earliest", decryption=Decryption({"app": rsa_pair(0).private})
        ) as consumer,
    ):
        stock = client.create_producer(topic, encryption_key="app", crypto_key_reader=reader, **FORMS[form][0])
        for value in values_of(form):
            stock.send_async(value, None, partition_key="k")
        await asyncio.to_thread(stock.flush)
        for value in values_of(form):
            message = await consumer.receive(timeout=LIMIT_S)
            assert message is not None and (message.value, message.key) == (value, "k")
        stock.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.conformance("end-to-end encryption: sent by the SDK", client="Python")
async def test_stock_client_reads_what_the_sdk_encrypts(
    client: pulsar.Client, broker: BrokerProcess, topic: str, tmp_path: Path, form: str
) -> None:
    subscribed = client.subscribe(topic, "s", crypto_key_reader=files(tmp_path, 1))
    encryption = Encryption({"audit": rsa_pair(0).public, "app": rsa_pair(1).public})
    async with (
        anabranch.connect(broker.service_url) as sdk,
        sdk.producer(topic, encryption=encryption, **FORMS[form][1]) as producer,
    ):
        sent = [producer.send_nowait(value, key="k") for value in values_of(form)]
        await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
        for value in values_of(form):
            message = await asyncio.to_thread(subscribed.receive, int(LIMIT_S * 1000))
            assert (message.data(), message.partition_key()) == (value, "k")
    subscribed.close()


async def test_stock_client_without_the_key_gets_ciphertext_or_nothing(
    client: pulsar.Client, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    action = pulsar.ConsumerCryptoFailureAction.CONSUME
    wrong = client.subscribe(topic, "s", crypto_key_reader=files(tmp_path, 2), crypto_failure_action=action)
    async with (
        anabranch.connect(broker.service_url) as sdk,
        sdk.producer(topic, encryption=Encryption({"app": rsa_pair(1).public}), batching=None) as producer,
    ):
        await producer.send(b"plain text", timeout=LIMIT_S)
        message = await asyncio.to_thread(wrong.receive, int(LIMIT_S * 1000))
        assert b"plain text" not in message.data() and len(message.data()) == len(b"plain text") + 16
    wrong.close()
