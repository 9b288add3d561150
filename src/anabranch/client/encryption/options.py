"""What applications say about encryption: keys, recipients, and what happens to messages that cannot be decrypted."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from anabranch.client.arguments import check_properties, is_text
from anabranch.client.config import Seconds, seconds
from anabranch.client.errors import BadOption

ROTATE_SECONDS = 4 * 3600.0  # as Pulsar's clients


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A public or private key (PEM), as a function of the application returns it. `metadata` of a public key, such as
    its version, travels with the messages, and the consumer's function gets it."""

    pem: bytes | str = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.pem, bytes | str):
            raise BadOption(f"EncryptionKey.pem must be text or bytes, not {type(self.pem).__name__}")
        check_properties(self.metadata, "EncryptionKey.metadata")


KeyFile = Path | str | bytes
"""The name of a PEM file, or its content."""

GivenKey = EncryptionKey | bytes | str | None
"""What a function returns: a key, its PEM, or None if there is no such key."""

PublicKeys = Mapping[str, KeyFile] | Callable[[str], GivenKey | Awaitable[GivenKey]]
PrivateKeys = Mapping[str, KeyFile] | Callable[[str, Mapping[str, str]], GivenKey | Awaitable[GivenKey]]


class CryptoFailure(StrEnum):
    """What a consumer does with a message that it cannot decrypt."""

    FAIL = "fail"  # `receive` raises DecryptionFailed; the message stays unacknowledged
    DISCARD = "discard"  # the message is acknowledged and skipped
    DELIVER = "deliver"  # the entry is delivered as one message with the ciphertext and `Message.encryption`

    @classmethod
    def named(cls, name: str) -> CryptoFailure:
        try:
            return cls(name)
        except ValueError as cause:
            names = ", ".join(one.value for one in cls)
            raise BadOption(f"on_failure is one of {names}, not {type(name).__name__} {str(name)[:20]!r}") from cause


@dataclass(frozen=True, slots=True)
class Encryption:
    """A producer encrypts the bodies of its messages for these recipients.

    `keys` has the public keys (RSA or EC) by name: PEM files or their content. Or it is a function, asynchronous or
    not, that returns the key of a name; `recipients` has the names then. Each recipient can decrypt all messages. A new
    data key is made every `rotate_every`, with public keys that are read again.
    """

    keys: PublicKeys = field(repr=False)
    recipients: Sequence[str] = ()
    rotate_every: Seconds = field(default=ROTATE_SECONDS, kw_only=True)

    def __post_init__(self) -> None:
        _check_keys(self.keys, "Encryption")
        if isinstance(self.recipients, str) or not all(map(is_text, self.recipients)):
            raise BadOption("Encryption.recipients must be a list of names of keys")
        names = tuple(dict.fromkeys(self.recipients)) or (() if callable(self.keys) else tuple(self.keys))
        if not names or not all(names):
            raise BadOption("Encryption needs at least one recipient: the name of a public key")
        if not callable(self.keys) and (missing := [name for name in names if name not in self.keys]):
            raise BadOption(f"Encryption.keys has no public key for {', '.join(map(repr, missing))}")
        object.__setattr__(self, "recipients", names)
        if seconds(self.rotate_every, "Encryption.rotate_every") <= 0:
            raise BadOption("Encryption.rotate_every must be above 0")


@dataclass(frozen=True, slots=True)
class Decryption:
    """A consumer decrypts messages with these private keys.

    `keys` has them by name: PEM files or their content. Or it is a function, asynchronous or not, that gets the name
    and the metadata of a key, and returns the private key. `on_failure` says what happens to a message that cannot be
    decrypted: "fail", "discard" or "deliver" (see `CryptoFailure`).
    """

    keys: PrivateKeys = field(repr=False)
    on_failure: CryptoFailure | str = field(default=CryptoFailure.FAIL, kw_only=True)

    def __post_init__(self) -> None:
        _check_keys(self.keys, "Decryption")
        object.__setattr__(self, "on_failure", CryptoFailure.named(self.on_failure))


def _check_keys(keys: object, what: str) -> None:
    if callable(keys):
        return
    if not isinstance(keys, Mapping):  # not shown: it may be a key
        raise BadOption(f"{what}.keys must be a mapping of names to PEM files, or a function")
    for name, file in keys.items():
        if not is_text(name) or not isinstance(file, Path | str | bytes):
            raise BadOption(f"{what}.keys must map names (text) to PEM files, or to their content as bytes")


def check_encryption(encryption: Encryption | None, what: str = "encryption") -> None:
    """Raises BadOption for another type, or if the extra is missing."""
    _check_option(encryption, Encryption, what, "an Encryption")


def check_decryption(decryption: Decryption | None) -> None:
    """Raises BadOption for another type, or if the extra is missing."""
    _check_option(decryption, Decryption, "decryption", "a Decryption")


def _check_option(value: object, kind: type, what: str, expected: str) -> None:
    if value is None:
        return
    if not isinstance(value, kind):  # not shown: it may be a key
        raise BadOption(f"{what} must be {expected} or None, not {type(value).__name__}")
    if importlib.util.find_spec("cryptography") is None:
        raise BadOption(f"{what}= needs the package cryptography: pip install 'anabranch[crypto]'")
