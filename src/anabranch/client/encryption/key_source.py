"""Public and private keys from files or from a function of the application.

Files and functions are read again for each data key, so a replaced key is used from the next data key on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from anabranch.client.encryption.options import EncryptionKey, GivenKey, KeyFile
from anabranch.client.errors import KeyUnavailable, UnusableKey

PEM_BYTES_MAX = 1 << 20
PEM_START = "-----BEGIN"

Ask = Callable[..., GivenKey | Awaitable[GivenKey]]


async def key_from(
    source: Mapping[str, KeyFile] | Ask, name: str, arguments: tuple[object, ...], timeout_s: float
) -> EncryptionKey | None:
    """The key of this name; None if there is none. Functions are called with `arguments`. Raises UnusableKey for
    files and answers without a key, KeyUnavailable if the function fails."""
    if not callable(source):
        file = source.get(name)
        return None if file is None else EncryptionKey(_content(name, file))
    try:
        async with asyncio.timeout(timeout_s):
            given = source(*arguments)
            if inspect.isawaitable(given):
                given = await given
    except LookupError:
        return None
    except TimeoutError as cause:
        raise KeyUnavailable(f"key {name!r}: its function did not answer within {timeout_s:g} s") from cause
    except Exception as cause:  # a function of the application may raise any error, and its text may have secrets
        raise KeyUnavailable(f"key {name!r}: its function raised {type(cause).__name__}") from cause
    if given is None or isinstance(given, EncryptionKey):
        return given
    if isinstance(given, bytes | str):
        return EncryptionKey(given)
    raise UnusableKey(
        f"key {name!r}: its function returned {type(given).__name__}, not PEM text or bytes, or EncryptionKey"
    )


def _content(name: str, file: KeyFile) -> bytes:
    if isinstance(file, bytes):
        return file
    if isinstance(file, str) and file.lstrip().startswith(PEM_START):
        return file.encode()
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(PEM_BYTES_MAX + 1)
    except (OSError, ValueError) as cause:
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        raise UnusableKey(f"key {name!r}: cannot read {file}: {why}") from cause
    if len(content) > PEM_BYTES_MAX:
        raise UnusableKey(f"key {name!r}: {file} is larger than {PEM_BYTES_MAX} bytes")
    return content
