"""One data key: AES-256-GCM as Pulsar's clients use it, a nonce of 12 bytes and the tag after the ciphertext."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from anabranch.protocol.entry import Bytes

DATA_KEY_BYTES = 32
DATA_KEY_SIZES = (16, 24, 32)  # that other clients may use
NONCE_BYTES_MIN, NONCE_BYTES_MAX = 8, 128  # of the library


class DataKey:
    __slots__ = ("_cipher",)

    def __init__(self, secret: bytes) -> None:
        """Raises ValueError for lengths that AES does not have."""
        self._cipher = AESGCM(secret)

    def __repr__(self) -> str:
        return "<DataKey>"

    def encrypted(self, nonce: bytes, body: Bytes) -> bytes:
        """A nonce may be used once with each key."""
        return self._cipher.encrypt(nonce, body, None)

    def decrypted(self, nonce: bytes, data: Bytes) -> bytes | None:
        """None if the data is damaged, or was encrypted with another key."""
        if not NONCE_BYTES_MIN <= len(nonce) <= NONCE_BYTES_MAX:
            return None
        try:
            return self._cipher.decrypt(nonce, data, None)
        except InvalidTag:
            return None
