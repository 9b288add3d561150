"""Unwraps the data keys that a consumer meets: asks the application for private keys, and retries if that fails.

Each data key is unwrapped once, and the entries that need it wait, in order, with those behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch.client.context import ClientContext
from anabranch.client.encryption.decryptor import WITHOUT_KEYS, Decryptor
from anabranch.client.encryption.key_source import key_from
from anabranch.client.encryption.options import CryptoFailure, Decryption
from anabranch.client.errors import ClientError, KeyUnavailable, UnusableKey
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes
from anabranch.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from anabranch.client.encryption.data_key import DataKey


def decryption_of(
    decryption: Decryption | None, context: ClientContext, tasks: TaskOwner, timeout_s: float
) -> tuple[Decryptor, KeyFetcher | None]:
    """What a consumer needs to decrypt; without private keys, encrypted messages fail it."""
    if decryption is None:
        return WITHOUT_KEYS, None
    decryptor = Decryptor(CryptoFailure(decryption.on_failure))
    return decryptor, KeyFetcher(decryption, decryptor, context, tasks, timeout_s)


class KeyFetcher:
    """One for each consumer with `decryption`."""

    def __init__(
        self, decryption: Decryption, decryptor: Decryptor, context: ClientContext, tasks: TaskOwner, timeout_s: float
    ) -> None:
        self._decryption = decryption
        self._decryptor = decryptor
        self._context = context
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._fetching: dict[bytes, list[Callable[[], None]]] = {}

    async def check(self) -> None:
        """Raises UnusableKey if a file is missing or has no usable private key."""
        from anabranch.client.encryption import key_wrapping

        if not callable(self._decryption.keys):
            for name in self._decryption.keys:
                key = await key_from(self._decryption.keys, name, (), self._timeout_s)
                assert key is not None
                key_wrapping.private_key(name, key)

    def prepare(self, payload: Bytes, when_ready: Callable[[], None]) -> bool:
        """True if this entry can be read now. Otherwise its data key is unwrapped, and `when_ready` is called then, or
        when it is known that this cannot be done."""
        of = self._decryptor.missing(payload, self._context.clock.monotonic())
        if of is None:
            return True
        first = of.encryption_keys[0].value
        if (waiting := self._fetching.get(first)) is not None:
            waiting.append(when_ready)
        else:
            self._fetching[first] = [when_ready]
            self._tasks.spawn(self._fetch(of), "data key")
        return False

    async def _fetch(self, of: pb.MessageMetadata) -> None:
        context, attempt = self._context, 0
        deadline = context.clock.monotonic() + self._timeout_s
        while True:
            try:
                found = await unwrapped_key(self._decryption, of, self._timeout_s)
                break
            except ClientError as error:
                found = error.reason
                delay = context.backoff.delay(attempt, context.chance.random())
                if not error.retryable or context.clock.monotonic() + delay > deadline:
                    break
            await context.clock.sleep(delay)
            attempt += 1
        if isinstance(found, str):
            self._decryptor.failed(of, found, context.clock.monotonic())
        else:
            self._decryptor.unwrapped(*found)
        for ready in self._fetching.pop(of.encryption_keys[0].value):
            ready()


async def unwrapped_key(
    decryption: Decryption, of: pb.MessageMetadata, timeout_s: float
) -> tuple[bytes, DataKey] | str:
    """The wrapped value that a private key unwraps, and the data key; or why there is none. Raises KeyUnavailable if a
    key that was not available may unwrap it."""
    from anabranch.client.encryption import data_key, key_wrapping

    reasons: list[str] = []
    unavailable: KeyUnavailable | None = None
    for one in of.encryption_keys:
        metadata = {pair.key: pair.value for pair in one.metadata}
        try:
            key = await key_from(decryption.keys, one.key, (one.key, metadata), timeout_s)
            if key is None:
                reasons.append(f"there is no private key {one.key!r}")
                continue
            secret = key_wrapping.unwrapped(key_wrapping.private_key(one.key, key), one.value)
        except KeyUnavailable as error:
            unavailable = error
            continue
        except UnusableKey as error:
            reasons.append(error.reason)
            continue
        if secret is not None and len(secret) in data_key.DATA_KEY_SIZES:
            return one.value, data_key.DataKey(secret)
        reasons.append(f"private key {one.key!r} is not the one that the data key was wrapped for")
    if unavailable is not None:
        raise unavailable
    return "; ".join(reasons)
