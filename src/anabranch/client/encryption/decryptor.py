"""Reads the entries of one consumer and decrypts them with the data keys that are known. Never awaits, reads no clock.

`key_fetcher` unwraps the data keys that are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from anabranch.client.encryption.options import CryptoFailure
from anabranch.client.errors import DecryptionFailed
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes, checksum_ok, metadata, parts
from anabranch.protocol.errors import BadEntry

if TYPE_CHECKING:
    from anabranch.client.encryption.data_key import DataKey

DATA_KEYS_MAX = 1000
RETRY_SECONDS = 60.0  # after which a data key that could not be unwrapped is tried again


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """The data key of a message, wrapped for one recipient."""

    value: bytes = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EncryptionContext:
    """How a message is encrypted that could not be decrypted. Its `data` is the ciphertext of the whole entry: the tag
    (16 bytes) comes last; the plain text is compressed if `compression` says so, then a batch of `batch_size` messages
    or one message (0)."""

    keys: Mapping[str, WrappedKey]
    param: bytes  # the nonce
    algorithm: str
    compression: str
    uncompressed_size: int
    batch_size: int
    chunk: tuple[int, int] | None = None  # number of the chunk and of all chunks, of a chunked message


class ReadEntry(NamedTuple):
    of: pb.MessageMetadata
    data: Bytes  # decrypted, maybe compressed
    context: EncryptionContext | None = None  # set if the data is ciphertext


class Decryptor:
    """`on_failure` is None without private keys."""

    def __init__(self, on_failure: CryptoFailure | None = None) -> None:
        self._on_failure = on_failure
        self._known: dict[bytes, DataKey] = {}  # by the wrapped value
        self._failures: dict[bytes, tuple[float, str]] = {}  # by the first wrapped value: until when, and why

    @property
    def is_failure_final(self) -> bool:
        """True if DecryptionFailed ends the consumer, false if the message is skipped."""
        return self._on_failure in (None, CryptoFailure.FAIL)

    def read(self, payload: Bytes) -> ReadEntry:
        """Raises BadEntry or DecryptionFailed."""
        if not checksum_ok(payload):
            raise BadEntry("checksum does not match")
        of, data = parts(payload)
        if not of.encryption_keys:
            return ReadEntry(of, data)
        try:
            plain = self._decrypted(of, data)
        except DecryptionFailed:
            if self._on_failure is not CryptoFailure.DELIVER:
                raise
            return ReadEntry(of, data, _detached(of))
        _clear(of)
        return ReadEntry(of, plain)

    def missing(self, payload: Bytes, now: float) -> pb.MessageMetadata | None:
        """The metadata of an entry whose data key must be unwrapped first; None if it can be read now."""
        try:
            of = metadata(payload)
        except BadEntry:
            return None  # `read` says so
        wrapped = [one.value for one in of.encryption_keys]
        if not wrapped or any(one in self._known for one in wrapped):
            return None
        until, _ = self._failures.get(wrapped[0], (0.0, ""))
        return of if until <= now else None

    def unwrapped(self, value: bytes, key: DataKey) -> None:
        if len(self._known) >= DATA_KEYS_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[value] = key
        self._failures.pop(value, None)

    def failed(self, of: pb.MessageMetadata, reason: str, now: float) -> None:
        """No private key unwraps the data key of this entry; do not try again for a while."""
        if len(self._failures) >= DATA_KEYS_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[of.encryption_keys[0].value] = now + RETRY_SECONDS, reason

    def _decrypted(self, of: pb.MessageMetadata, data: Bytes) -> bytes:
        is_known = False
        for one in of.encryption_keys:
            key = self._known.get(one.value)
            if key is not None:
                is_known = True
                if (plain := key.decrypted(of.encryption_param, data)) is not None:
                    return plain
        names = ", ".join(repr(one.key) for one in of.encryption_keys)
        if self._on_failure is None:
            why = "the consumer has no decryption="
        elif is_known:
            why = "its data does not fit its data key: it is damaged, or was changed"
        else:
            _, why = self._failures.get(of.encryption_keys[0].value, (0.0, "its data key is not known"))
        raise DecryptionFailed(f"a message is encrypted for {names}, and cannot be decrypted: {why}")


WITHOUT_KEYS = Decryptor()


def _clear(of: pb.MessageMetadata) -> None:
    del of.encryption_keys[:]
    of.ClearField("encryption_param")
    of.ClearField("encryption_algo")


def _detached(of: pb.MessageMetadata) -> EncryptionContext:
    """The context of an entry, whose metadata then describes one message with the ciphertext."""
    keys = {
        one.key: WrappedKey(one.value, {pair.key: pair.value for pair in one.metadata}) for one in of.encryption_keys
    }
    context = EncryptionContext(
        MappingProxyType(keys),
        of.encryption_param,
        of.encryption_algo,
        pb.CompressionType.Name(of.compression),
        of.uncompressed_size,
        of.num_messages_in_batch if of.HasField("num_messages_in_batch") else 0,
        (of.chunk_id, of.num_chunks_from_msg) if of.num_chunks_from_msg > 1 else None,
    )
    _clear(of)
    for name in (
        "num_messages_in_batch",
        "compression",
        "uuid",
        "chunk_id",
        "num_chunks_from_msg",
        "total_chunk_msg_size",
    ):
        of.ClearField(name)
    return context
