"""Functions behind `anabranch token`: files and randomness around `security.tokens`."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.model.errors import AlreadyExists, BadRequest
from anabranch.security import tokens
from anabranch.security.tokens import ALGORITHMS, HMAC_BYTES

PAIR_ALGORITHMS = tuple(name for name in ALGORITHMS if name not in HMAC_BYTES)


def create_secret_key(algorithm: str, *, as_base64: bool) -> bytes:
    """A new secret in the format of Pulsar's tool: raw bytes, or base64 text without a line end."""
    secret = tokens.new_secret(algorithm, os.urandom(64))
    return base64.b64encode(secret) if as_base64 else secret


def create_key_pair(algorithm: str, private: Path, public: Path) -> None:
    """Writes PKCS#8 and X.509 files, DER. Neither file may exist: an overwritten private key is lost."""
    for path in (private, public):
        if path.exists():
            raise AlreadyExists(f"{path} exists already")
    private_bytes, public_bytes = tokens.new_key_pair(algorithm)
    write_private(private, private_bytes)
    public.write_bytes(public_bytes)


def write_private(path: Path, content: bytes) -> None:
    """Creates a file that only its owner can read; AlreadyExists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} exists already") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def create_token(
    subject: str,
    *,
    secret_key: str | None,
    private_key: str | None,
    algorithm: str | None,
    expires_ms: int | None,
    claims: Mapping[str, Any],
    headers: Mapping[str, str],
) -> str:
    said: dict[str, Any] = {"sub": subject, **claims}
    if expires_ms is not None:
        said["exp"] = expires_ms // 1000
    key = _signing_key(secret_key, private_key)
    return tokens.make_token(said, key, algorithm, headers)


def _signing_key(secret_key: str | None, private_key: str | None) -> tokens.TokenKey:
    if (secret_key is None) == (private_key is None):
        raise BadRequest("give either --secret-key or --private-key")
    if secret_key is not None:
        return tokens.secret_keys(tokens.read_key(secret_key))[0]
    assert private_key is not None
    return tokens.private_key(tokens.read_key(private_key))


def validate_token(token: str, *, secret_key: str | None, public_key: str | None, now_ms: int) -> dict[str, Any]:
    """The claims of a valid token; raises Unauthenticated with the reason."""
    if (secret_key is None) == (public_key is None):
        raise BadRequest("give either --secret-key or --public-key")
    if secret_key is not None:
        keys = tokens.secret_keys(tokens.read_key(secret_key))
    else:
        assert public_key is not None
        keys = (tokens.public_key(tokens.read_key(public_key)),)
    return tokens.TokenReader(keys).claims(token.encode(), now_ms)
