"""Makes the data keys of one producer, wraps them for its recipients, and replaces them after a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.client.config import seconds
from anabranch.client.context import ClientContext
from anabranch.client.encryption.entry_cipher import EntryCipher
from anabranch.client.encryption.key_source import key_from
from anabranch.client.encryption.options import Encryption
from anabranch.client.errors import ClientError, UnusableKey
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.runtime.chance import secret_bytes
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from anabranch.client.encryption.data_key import DataKey

log = get_logger(__name__)

WRAPPED_BYTES_MAX = 8 * 1024  # of all recipients together: metadata has little room besides the body


class DataKeyRotation:
    def __init__(self, encryption: Encryption, cipher: EntryCipher, context: ClientContext, timeout_s: float) -> None:
        self._encryption = encryption
        self._cipher = cipher
        self._context = context
        self._timeout_s = timeout_s
        self._tasks = TaskOwner("encryption")

    async def open(self, topic: str) -> None:
        """Returns when entries can be encrypted. Raises UnusableKey or KeyUnavailable."""
        await self._renew()
        self._tasks.spawn(self._rotate(topic), "rotation")

    async def close(self) -> None:
        await self._tasks.close()

    async def _rotate(self, topic: str) -> None:
        context, attempt = self._context, 0
        every_s = seconds(self._encryption.rotate_every)
        while True:
            await context.clock.sleep(
                context.backoff.delay(attempt - 1, context.chance.random()) if attempt else every_s
            )
            try:
                await self._renew()
                attempt = 0
            except ClientError as error:
                attempt += 1
                log.warning(
                    "the data key of a producer was not replaced; the producer goes on with the present one",
                    extra={"topic": topic, "reason": error.reason},
                )

    async def _renew(self) -> None:
        self._cipher.use(*await new_data_key(self._encryption, self._timeout_s))


async def new_data_key(encryption: Encryption, timeout_s: float) -> tuple[DataKey, Sequence[pb.EncryptionKeys]]:
    """A data key, and the same wrapped for every recipient. Raises UnusableKey or KeyUnavailable."""
    from anabranch.client.encryption import data_key, key_wrapping

    secret = secret_bytes(data_key.DATA_KEY_BYTES)
    wrapped: list[pb.EncryptionKeys] = []
    for name in encryption.recipients:
        key = await key_from(encryption.keys, name, (name,), timeout_s)
        if key is None:
            raise UnusableKey(f"key {name!r}: there is no public key of this name")
        metadata = [pb.KeyValue(key=field, value=text) for field, text in key.metadata.items()]
        value = key_wrapping.wrapped(key_wrapping.public_key(name, key), secret)
        wrapped.append(pb.EncryptionKeys(key=name, value=value, metadata=metadata))
    _check_size(wrapped)
    return data_key.DataKey(secret), wrapped


def _check_size(wrapped: Sequence[pb.EncryptionKeys]) -> None:
    size = sum(one.ByteSize() for one in wrapped)
    if size > WRAPPED_BYTES_MAX:
        raise UnusableKey(f"{len(wrapped)} recipients add {size} bytes to each entry, the limit is {WRAPPED_BYTES_MAX}")
