"""Options of source and sink for encryption: values that travel to executors, without key material.

Keys are read from files or functions where they are used. An option never has a key itself, because Spark shows the
options of a query.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.client.encryption.options import (
    CryptoFailure,
    Decryption,
    Encryption,
    check_decryption,
    check_encryption,
)
from anabranch.client.errors import BadOption
from anabranch.spark.client.access import BadSparkOption

Text = Callable[[str], str | None]
"""An option by name."""


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """`package.module:function`, imported where it is called."""

    name: str

    def __call__(self, *arguments: Any) -> Any:
        module, _, function = self.name.partition(":")
        return getattr(importlib.import_module(module), function)(*arguments)


def encryption_of(text: Text) -> Encryption | None:
    """Of the sink."""
    recipients = tuple(name.strip() for name in (text("encryptionRecipients") or "").split(",") if name.strip())
    keys = _keys(text, "encryption")
    if keys is None:
        if recipients:
            raise BadSparkOption("encryptionRecipients goes with encryptionKeys or encryptionKeyFunction")
        return None
    try:
        made = Encryption(keys, recipients)
        check_encryption(made)
    except BadOption as cause:
        raise BadSparkOption(cause.reason) from cause
    return made


def decryption_of(text: Text) -> Decryption | None:
    """Of the source."""
    failure, keys = text("cryptoFailure"), _keys(text, "decryption")
    if failure is not None and failure.lower() == CryptoFailure.DELIVER:
        raise BadSparkOption("cryptoFailure=deliver is refused: a row has no place for the wrapped data keys")
    if keys is None:
        if failure is None:
            return None
        keys = {}  # all encrypted messages are skipped, or fail the query
    try:
        made = Decryption(keys, on_failure=(failure or CryptoFailure.FAIL).lower())
        check_decryption(made)
    except BadOption as cause:
        raise BadSparkOption(cause.reason) from cause
    return made


def _keys(text: Text, what: str) -> Any:
    files, function = text(f"{what}Keys"), text(f"{what}KeyFunction")
    if files is not None and function is not None:
        raise BadSparkOption(f"{what}Keys and {what}KeyFunction exclude each other")
    if function is not None:
        if not all(function.partition(":")):
            raise BadSparkOption(f"option {what}KeyFunction is like package.module:function, not {function!r}")
        return NamedFunction(function)
    if files is None:
        return None
    if "-----BEGIN" in files:  # not shown
        raise BadSparkOption(f"option {what}Keys has names of files, not keys: Spark shows the options of a query")
    found = {}
    for pair in files.split(","):
        name, is_pair, path = pair.strip().partition("=")
        if not (name and is_pair and path):
            raise BadSparkOption(f"option {what}Keys is like app=/keys/app.pem, several with commas, not {files!r}")
        found[name] = path
    return found
