"""Encrypted messages through a real broker: every kind of consumer and of call, on regular and scalable topics.

The broker stores ciphertext only: each test searches its files for the plain text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch import Batching, Checkpoint, Chunking, Client, DeadLetter, Decryption, Encryption
from anabranch.client.errors import BadOption, DecryptionFailed, NotAllowed, UnusableKey
from tests.support.in_memory.key_pairs import rsa_pair
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.stored_text import files_with

LIMIT_S = 20.0
SECRET = b"a plain text that no broker may see"
ENCRYPTION = Encryption({"app": rsa_pair(0).public, "audit": rsa_pair(1).public})
APP, AUDIT = Decryption({"app": rsa_pair(0).private}), Decryption({"audit": rsa_pair(1).private})
DOMAINS = ["persistent", "topic"]


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url) as client:
        yield client


@pytest.fixture(params=DOMAINS)
def place(topic: str, request: pytest.FixtureRequest) -> str:
    return topic.replace("persistent://", f"{request.param}://")


async def next_values(consumer: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        message = await consumer.receive(timeout=LIMIT_S)
        assert message is not None, found
        found.append(message.value)
    return found


FORMS: dict[str, dict[str, Any]] = {
    "single": {"batching": None},
    "batch": {"batching": Batching(max_delay=0.05)},
    "compressed": {"batching": Batching(max_delay=0.05), "compression": "lz4"},
    "chunks": {"chunking": Chunking(chunk_bytes=1000), "batching": None},
}


@pytest.mark.parametrize("form", FORMS)
async def test_every_kind_of_consumer_reads_every_form(
    sdk: Client, broker: BrokerProcess, place: str, form: str
) -> None:
    values = [SECRET + b"%d" % number for number in range(6)]
    if form == "chunks":
        values[3] += bytes(range(256)) * 25_000  # larger than the broker's limit
    if form == "compressed":
        values = [value * 200 for value in values]
    async with (
        sdk.stream_consumer(place, subscription="stream", start="earliest", decryption=APP) as stream,
        sdk.queue_consumer(place, subscription="queue", start="earliest", decryption=AUDIT) as queue,
        sdk.producer(place, encryption=ENCRYPTION, **FORMS[form]) as producer,
    ):
        sent = [producer.send_nowait(value, key="k") for value in values[:4]]
        await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
        await producer.send_batch(values[4:], ["k", "k"], timeout=LIMIT_S)
        assert await next_values(stream, 6) == values
        assert sorted(await next_values(queue, 6)) == sorted(values)
        async with sdk.checkpoint_consumer(place, start=Checkpoint.earliest(), decryption=APP) as reader:
            assert await next_values(reader, 6) == values
    assert files_with(broker.data, SECRET) == []


async def test_consumers_that_share_a_segment_decrypt_their_buckets(sdk: Client, topic: str) -> None:
    """The broker chooses the consumer by the stamp of an entry, unopened."""
    place = topic.replace("persistent://", "topic://")
    form: dict[str, Any] = {"subscription": "s", "start": "earliest", "fan_out": "auto", "decryption": APP}
    async with (
        sdk.stream_consumer(place, name="one", **form) as one,
        sdk.stream_consumer(place, name="two", **form) as two,
        sdk.producer(place, encryption=ENCRYPTION) as producer,
    ):
        await producer.send_batch([b"%d" % n for n in range(200)], [f"k{n % 20}" for n in range(200)], timeout=LIMIT_S)
        found: list[bytes] = []
        async with asyncio.timeout(LIMIT_S):
            while len(found) < 200:
                for consumer in (one, two):
                    found += [message.value for message in await consumer.receive_many(200, timeout=0.05)]
        assert sorted(found, key=int) == [b"%d" % n for n in range(200)]


async def test_columns_of_encrypted_entries(sdk: Client, place: str) -> None:
    async with (
        sdk.stream_consumer(place, subscription="s", start="earliest", decryption=APP) as consumer,
        sdk.producer(place, encryption=ENCRYPTION) as producer,
    ):
        await producer.send_batch([b"1", b"2", b"3"], ["a", "b", None], timeout=LIMIT_S)
        values: list[Any] = []
        while len(values) < 3:
            batch = await consumer.receive_batch(timeout=LIMIT_S)
            values += batch.to_arrow(("value",)).column("value").to_pylist()
        assert sorted(values) == [b"1", b"2", b"3"]


def test_blocking_form(broker: BrokerProcess, place: str, tmp_path: Path) -> None:
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(rsa_pair(0).public)
    private.write_bytes(rsa_pair(0).private)
    with (
        anabranch.blocking.connect(broker.service_url) as client,
        client.producer(place, encryption=Encryption({"app": public})) as producer,
        client.queue_consumer(
            place, subscription="s", start="earliest", decryption=Decryption({"app": str(private)})
        ) as consumer,
    ):
        producer.send(SECRET, key="k", timeout=LIMIT_S)
        message = consumer.receive(timeout=LIMIT_S)
        assert message is not None and message.value == SECRET
        consumer.ack(message)
    assert files_with(broker.data, SECRET) == []


@pytest.mark.parametrize("decryption", [None, Decryption({"app": rsa_pair(7).private})], ids=["no keys", "wrong key"])
async def test_consumer_without_the_key_fails_and_acknowledges_nothing(
    sdk: Client, place: str, decryption: Decryption | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with sdk.producer(place) as plain, sdk.producer(place, encryption=ENCRYPTION, batching=None) as producer:
        async with sdk.stream_consumer(place, subscription="s", start="earliest") as first:  # makes the subscription
            await plain.send(b"plain", key="k", timeout=LIMIT_S)
            await producer.send(SECRET, key="k", timeout=LIMIT_S)
            assert await next_values(first, 1) == [b"plain"]
        with caplog.at_level(logging.DEBUG):
            async with sdk.stream_consumer(place, subscription="s", decryption=decryption) as consumer:
                assert await next_values(consumer, 1) == [b"plain"], "what came before is delivered"
                for _ in range(2):
                    with pytest.raises(DecryptionFailed, match="encrypted for 'app', 'audit'"):
                        await consumer.receive(timeout=LIMIT_S)
        async with sdk.stream_consumer(place, subscription="s", decryption=APP) as consumer:
            assert await next_values(consumer, 2) == [b"plain", SECRET]
    key_lines = rsa_pair(7).private.decode().splitlines()[1:-1]
    assert not any(line in str(vars(record)) for line in key_lines for record in caplog.records)


async def test_discarded_and_delivered_messages(sdk: Client, place: str) -> None:
    keys: dict[str, Any] = {}
    async with (
        sdk.queue_consumer(
            place, subscription="discard", start="earliest", decryption=Decryption(keys, on_failure="discard")
        ) as discarding,
        sdk.queue_consumer(
            place, subscription="deliver", start="earliest", decryption=Decryption(keys, on_failure="deliver")
        ) as delivering,
        sdk.producer(place, encryption=ENCRYPTION, batching=Batching(max_delay=0.05)) as producer,
        sdk.producer(place) as plain,
    ):
        sent = [producer.send_nowait(SECRET, key="k") for _ in range(3)]
        await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
        await plain.send(b"plain", key="k", timeout=LIMIT_S)
        assert await next_values(discarding, 1) == [b"plain"]
        assert discarding.metrics().rejected == 1
        ciphertext = await delivering.receive(timeout=LIMIT_S)
        assert ciphertext is not None and ciphertext.encryption is not None and SECRET not in ciphertext.data
        assert (list(ciphertext.encryption.keys), ciphertext.encryption.batch_size) == (["app", "audit"], 3)
        after = await delivering.receive(timeout=LIMIT_S)
        assert after is not None and (after.value, after.encryption) == (b"plain", None)


async def test_dead_letters_stay_encrypted(sdk: Client, broker: BrokerProcess, place: str) -> None:
    with pytest.raises(BadOption, match="would store plain text"):
        sdk.queue_consumer(place, subscription="s", decryption=APP, dead_letter=DeadLetter(max_redeliveries=0))
    letters = f"{place}-letters"
    policy = DeadLetter(max_redeliveries=0, topic=letters, initial_subscription="dead", encryption=ENCRYPTION)
    async with (
        sdk.queue_consumer(
            place, subscription="s", start="earliest", decryption=APP, dead_letter=policy, nack_delay=0.0
        ) as consumer,
        sdk.producer(place, encryption=ENCRYPTION) as producer,
    ):
        await producer.send(SECRET, key="k", timeout=LIMIT_S)
        message = await consumer.receive(timeout=LIMIT_S)
        assert message is not None
        await consumer.nack(message)
        waiting = asyncio.create_task(consumer.receive(timeout=LIMIT_S))  # moves the message to the dead letters
        async with sdk.queue_consumer(letters, subscription="dead", start="earliest", decryption=AUDIT) as dead:
            assert await next_values(dead, 1) == [SECRET]
        waiting.cancel()
    assert files_with(broker.data, SECRET) == []


async def test_namespace_that_requires_encryption_refuses_plain_producers(sdk: Client, broker: BrokerProcess) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin:
        await admin.namespaces.create("public/encrypted")
        await admin.namespaces.set_policy("public/encrypted", "encryptionRequired", True)
    for domain in DOMAINS:
        place = f"{domain}://public/encrypted/orders"
        with pytest.raises(NotAllowed, match="Encryption is required"):
            await sdk.producer(place, timeout=LIMIT_S)
        async with sdk.producer(place, encryption=ENCRYPTION) as producer:
            await producer.send(SECRET, key="k", timeout=LIMIT_S)


async def test_bad_keys_are_named_when_producers_and_consumers_open(sdk: Client, place: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableKey, match=r"key 'app': cannot read .*missing.pem: No such file"):
        await sdk.producer(place, encryption=Encryption({"app": tmp_path / "missing.pem"}))
    with pytest.raises(UnusableKey, match="key 'app': it is a public key"):
        await sdk.stream_consumer(place, subscription="s", decryption=Decryption({"app": rsa_pair(0).public}))
