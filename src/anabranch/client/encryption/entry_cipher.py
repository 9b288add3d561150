"""Encrypts the entries of one producer. Never awaits; `data_key_rotation` gives it data keys.

Nonces count the entries of a data key. No other producer has the same data key, so no nonce is used twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes

if TYPE_CHECKING:
    from anabranch.client.encryption.data_key import DataKey

NONCE_BYTES = 12
TAG_BYTES = 16  # that a body grows by
OVERHEAD_BYTES = TAG_BYTES + NONCE_BYTES + 8  # with the fields around nonce and keys


class EntryCipher:
    def __init__(self) -> None:
        self._key: DataKey | None = None
        self._wrapped: Sequence[pb.EncryptionKeys] = ()
        self._used = 0  # entries that were encrypted with this data key
        self.overhead_bytes = 0  # that encryption adds to an entry, metadata included

    def use(self, key: DataKey, wrapped: Sequence[pb.EncryptionKeys]) -> None:
        """Encrypt with this data key from now on; `wrapped` is the same key for every recipient."""
        self._key, self._wrapped, self._used = key, wrapped, 0
        self.overhead_bytes = OVERHEAD_BYTES + sum(one.ByteSize() + 4 for one in wrapped)

    def encrypted(self, of: pb.MessageMetadata, body: Bytes) -> bytes:
        """The body as it is sent. Puts the wrapped keys and the nonce into `of`, in place of earlier ones."""
        assert self._key is not None
        nonce = self._used.to_bytes(NONCE_BYTES, "big")
        self._used += 1
        del of.encryption_keys[:]
        of.encryption_keys.extend(self._wrapped)
        of.encryption_param = nonce
        return self._key.encrypted(nonce, body)
