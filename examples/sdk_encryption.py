"""Messages that the broker cannot read: two recipients, keys from files and from a function, and one without a key."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import anabranch
from anabranch import Decryption, Encryption
from anabranch.client.errors import DecryptionFailed

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"topic://public/default/patients-{uuid.uuid4().hex[:8]}"


def make_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Public and private key as files; `openssl genrsa` makes the same."""
    key = rsa.generate_private_key(65537, 2048)
    public, private = folder / f"{name}.pub.pem", folder / f"{name}.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    private.chmod(0o600)
    return public, private


async def main() -> None:
    folder = Path(tempfile.mkdtemp())
    clinic, archive = make_keys(folder, "clinic"), make_keys(folder, "archive")

    async def from_key_server(name: str, metadata: Mapping[str, str]) -> bytes | None:
        return archive[1].read_bytes() if name == "archive" else None

    async with anabranch.connect(SERVICE_URL) as client:
        encryption = Encryption({"clinic": clinic[0], "archive": archive[0]})
        async with client.producer(TOPIC, encryption=encryption) as producer:
            for number in range(3):
                producer.send_nowait(f"diagnosis {number}".encode(), key=f"patient-{number}")
            await producer.flush()
        readers = {"clinic": Decryption({"clinic": clinic[1]}), "archive": Decryption(from_key_server)}
        for name, decryption in readers.items():
            async with client.queue_consumer(
                TOPIC, subscription=name, start="earliest", decryption=decryption
            ) as consumer:
                for _ in range(3):
                    message = await consumer.receive(timeout=30)
                    assert message is not None
                    print(f"{name}: {message.value.decode()}")
                    await consumer.ack(message)
        async with client.queue_consumer(TOPIC, subscription="nobody", start="earliest") as consumer:
            try:
                await consumer.receive(timeout=30)
            except DecryptionFailed as error:
                print(f"without a key: {error.reason}")


asyncio.run(main())
