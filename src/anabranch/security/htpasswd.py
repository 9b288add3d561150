"""Method `basic`: user names and passwords from an htpasswd file, which may change while the broker runs.

| entry | made by | checked by |
|---|---|---|
| `$2y$…`, `$2a$…`, `$2b$…` bcrypt | `htpasswd -B` | the bcrypt package |
| `$apr1$…` salted MD5, 1,000 rounds | `htpasswd -m`, `openssl passwd -apr1` | below, on hashlib |
| `{SHA}…` unsalted SHA-1 | `htpasswd -s` | hashlib; weak, for old files only |

crypt(3) and plain texts are refused when the file is read. Checking bcrypt takes tens of milliseconds by design: it
runs on a thread, one at a time, and what succeeded is remembered under a keyed hash until its entry changes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from anabranch.model.errors import Error
from anabranch.runtime.blocking import Blocking
from anabranch.runtime.logs import get_logger
from anabranch.security.authentication import Credentials, Identity, Unauthenticated
from anabranch.security.tokens import SecurityMissing

log = get_logger(__name__)

REMEMBERED_MAX = 4_096
WAITING_MAX = 256
BCRYPT_BYTES_MAX = 72  # the algorithm reads no more; htpasswd cuts likewise
PASSWORD_BYTES_MAX = 1_024
_BCRYPT = ("$2a$", "$2b$", "$2y$")
_ITOA64 = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class BadPasswordFile(Error):
    """The htpasswd file cannot be read or has an entry of a kind that is not supported."""

    code = "bad-password-file"


def parse_htpasswd(text: str) -> dict[str, str]:
    """User to stored hash. Errors name the line, never its content."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        user, colon, stored = entry.partition(":")
        if not colon or not user:
            raise BadPasswordFile(f"line {number} of the htpasswd file is not of the form user:hash")
        if not stored.startswith((*_BCRYPT, "$apr1$", "{SHA}")):
            raise BadPasswordFile(f"line {number} of the htpasswd file: only bcrypt, apr1 and {{SHA}} are supported")
        if user in found:
            raise BadPasswordFile(f"line {number} of the htpasswd file repeats a user")
        found[user] = stored
    return found


def matches(stored: str, password: bytes) -> bool:
    """Is this the password? Compares in constant time."""
    if b"\0" in password or len(password) > PASSWORD_BYTES_MAX:
        return False
    if stored.startswith("{SHA}"):
        made = "{SHA}" + base64.b64encode(hashlib.sha1(password).digest()).decode()
        return hmac.compare_digest(made.encode(), stored.encode())
    if stored.startswith("$apr1$"):
        salt = stored.split("$")[2]
        return hmac.compare_digest(apr1(password, salt).encode(), stored.encode())
    try:
        import bcrypt
    except ImportError as error:
        raise SecurityMissing("bcrypt passwords") from error
    try:
        return bool(bcrypt.checkpw(password[:BCRYPT_BYTES_MAX], stored.encode()))
    except ValueError:
        return False  # a damaged entry matches no password


def apr1(password: bytes, salt: str) -> str:
    """Apache's variant of MD5-crypt."""
    salted = salt.encode()[:8]
    inner = hashlib.md5(password + salted + password).digest()
    outer = hashlib.md5(password + b"$apr1$" + salted)
    outer.update((inner * (len(password) // 16 + 1))[: len(password)])
    bits = len(password)
    while bits:
        outer.update(b"\0" if bits & 1 else password[:1])
        bits >>= 1
    digest = outer.digest()
    for turn in range(1_000):
        first, last = (password, digest) if turn & 1 else (digest, password)
        middle = (salted if turn % 3 else b"") + (password if turn % 7 else b"")
        digest = hashlib.md5(first + middle + last).digest()
    groups = [(digest[a] << 16 | digest[b] << 8 | digest[c], 4) for a, b, c in _APR1_ORDER] + [(digest[11], 2)]
    text = "".join(_ITOA64[value >> 6 * place & 63] for value, size in groups for place in range(size))
    return f"$apr1${salted.decode()}${text}"


_APR1_ORDER = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))


class PasswordMethod:
    name = "basic"

    def __init__(self, path: Path, blocking: Blocking, memory_key: bytes) -> None:
        """`memory_key` is random and this process's own. Reads the file; raises BadPasswordFile."""
        self._path = path
        self._blocking = blocking
        self._memory_key = memory_key
        self._remembered: dict[bytes, str] = {}  # keyed hash of user and password to the entry it fitted
        self._waiting = 0
        self._stamp = self._stat()
        self._entries: Mapping[str, str] = self._read()

    async def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        user_bytes, colon, password = credentials.data.partition(b":")
        try:
            user = user_bytes.decode()
        except UnicodeDecodeError:
            user = ""
        if not colon or not user:
            raise Unauthenticated("the credentials are not of the form user:password")
        await self._follow_file()
        memory = hashlib.blake2b(user_bytes + b"\0" + password, key=self._memory_key).digest()
        stored = self._entries.get(user)
        if stored is None or self._remembered.get(memory) != stored:
            if not await self._check(stored, password):
                raise Unauthenticated("unknown user or wrong password")
            if len(self._remembered) >= REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            assert stored is not None
            self._remembered[memory] = stored
        return Identity(user, self.name)

    async def _check(self, stored: str | None, password: bytes) -> bool:
        """Takes as long for an unknown user as for a known one."""
        if self._waiting >= WAITING_MAX:
            raise Unauthenticated("too many sign-ins at once, try again")
        self._waiting += 1
        try:
            compared = stored or next(iter(self._entries.values()), None)
            if compared is None:
                return False
            fits = await self._blocking.run(matches, compared, password)
            return fits and stored is not None
        finally:
            self._waiting -= 1

    async def _follow_file(self) -> None:
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._entries = await self._blocking.run(self._read)
        except Error as error:
            log.error("htpasswd file cannot be used: the last good one stays in force", extra={"reason": error.reason})
            return
        log.info("htpasswd file reloaded", extra={"users": len(self._entries)})

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> dict[str, str]:
        try:
            entries = parse_htpasswd(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadPasswordFile(
                f"the htpasswd file {self._path} cannot be read: {error.strerror or error}"
            ) from error
        except UnicodeDecodeError as error:
            raise BadPasswordFile("the htpasswd file is not UTF-8") from error
        if any(stored.startswith(_BCRYPT) for stored in entries.values()):
            try:
                import bcrypt  # noqa: F401 - asked for at start, not at the first sign-in
            except ImportError as error:
                raise SecurityMissing("bcrypt passwords") from error
        return entries
