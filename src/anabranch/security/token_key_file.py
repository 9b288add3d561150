"""A token key in a file: read at start, and again when the file has changed.

If the file cannot be read or holds no key, the last good key stays in force and an error is logged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from anabranch.model.errors import Error
from anabranch.runtime.logs import get_logger
from anabranch.security.authentication import Credentials, Identity
from anabranch.security.tokens import TokenKey, TokenMethod, TokenReader, read_key

log = get_logger(__name__)

Parse = Callable[[bytes], tuple[TokenKey, ...]]


class KeyFile:
    """`place` is a path, a file: URL or a data: URL (which never changes)."""

    def __init__(self, place: str, parse: Parse) -> None:
        """Reads it; raises BadKey."""
        self._place = place
        self._parse = parse
        self._path = None if place.startswith("data:") else _path(place)
        self._stamp = self._stat()
        self.keys = parse(read_key(place))

    def follow(self) -> bool:
        """Checks for a change (one `stat`); True: `keys` are new."""
        stamp = self._stat()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.keys = self._parse(read_key(self._place))
        except Error as error:
            log.error("token key file cannot be used: the last good key stays in force", extra={"reason": error.reason})
            return False
        log.info("token key reloaded")
        return True

    def _stat(self) -> tuple[int, int, int]:
        if self._path is None:
            return (0, 0, 0)
        try:
            found = os.stat(self._path)
        except (OSError, ValueError):
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)


class FollowingTokenMethod(TokenMethod):
    """Method `token` with keys that may change while the broker runs."""

    def __init__(self, reader: TokenReader, role_claim: str, file: KeyFile) -> None:
        super().__init__(reader, role_claim)
        self._file = file

    async def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        if self._file.follow():
            self._reader.keys = self._file.keys
        return await super().identify(credentials, now_ms)


def _path(place: str) -> str:
    return unquote(urlsplit(place).path) if place.startswith("file:") else place
