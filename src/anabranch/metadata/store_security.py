"""TLS and credentials of a networked store: the options of its metadata URL. Pure, but for the files it reads.

    etcd://h:2379/mine?ca=/etc/ca.pem&cert=/etc/me.pem&key=/etc/me.key&user=anabranch&password-file=/etc/word

| option | meaning | stores |
|---|---|---|
| `tls=true` | TLS with the CAs of the system | all |
| `ca=FILE` | TLS with these CAs instead | all |
| `cert=FILE`, `key=FILE` | this client's certificate and key | all |
| `server-name=NAME` | the name that the server's certificate must have, if it is not the host of the URL | all |
| `user=NAME`, `password-file=FILE` | digest authentication, or etcd's user | ZooKeeper, etcd |
| `token-file=FILE` | bearer token; read again when the server refuses it | Oxia |

A URL never contains a secret, only the files of secrets, so it can be logged, stored and sent to other brokers. Paths
are absolute, because brokers with different working directories use the same URL. The server's certificate is always
verified.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from anabranch.metadata.interface import StoreUnavailable, UnknownStore

TLS_OPTIONS = ("tls", "ca", "cert", "key", "server-name")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "zk": (*TLS_OPTIONS, "user", "password-file"),
    "etcd": (*TLS_OPTIONS, "user", "password-file"),
    "oxia": (*TLS_OPTIONS, "token-file"),
}
SECRET_BYTES_MAX = 64 * 1024


class TlsFailed(StoreUnavailable):
    """No server could be reached with TLS: certificates, keys or names do not match, or a side does not speak TLS."""

    code = "metadata-tls-failed"


class CredentialsUnreadable(StoreUnavailable):
    """A file of certificates, keys or secrets that the metadata URL names cannot be used."""

    code = "metadata-credentials-unreadable"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of PEM; an empty path is not given."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""

    def context(self) -> ssl.SSLContext:
        """For connections of this process' own TLS. Raises CredentialsUnreadable."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = " or ".join(one for one in (self.ca, self.certificate, self.key) if one)
            raise CredentialsUnreadable(f"TLS of the metadata store: cannot use {files}: {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class StoreSecurity:
    """What a store needs to be let in. `repr` shows files, never their content."""

    tls: Tls | None = None
    user: str = ""
    password_file: str = ""
    token_file: str = ""

    def check_files(self) -> None:
        """Raises CredentialsUnreadable. Called when a store is opened, so that the reason is seen at once."""
        if self.tls is not None:
            self.tls.context()
        if self.password_file:
            self.password()
        if self.token_file:
            self.token()

    def password(self) -> str:
        return read_secret("password", self.password_file)

    def token(self) -> str:
        return read_secret("token", self.token_file)


NO_SECURITY = StoreSecurity()


def split_options(scheme: str, rest: str) -> tuple[str, StoreSecurity]:
    """What follows the scheme's colon, without its options, and the options. Raises UnknownStore."""
    rest, mark, query = rest.partition("?")
    return rest, parse_options(scheme, query) if mark else NO_SECURITY


def parse_options(scheme: str, query: str) -> StoreSecurity:
    known = OPTIONS[scheme]
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in ("password", "token"):
            raise UnknownStore(f"a metadata URL has no secrets: write the {name} into a file and use {name}-file=FILE")
        if name not in known:
            raise UnknownStore(f"{name!r} is not an option of a {scheme}: URL; it has {', '.join(known)}")
        if name in given:
            raise UnknownStore(f"the option {name!r} of the metadata URL stands there twice")
        if not value:
            raise UnknownStore(f"the option {name!r} of the metadata URL has no value")
        if name in ("ca", "cert", "key", "password-file", "token-file") and not value.startswith("/"):
            # the value is not shown: it may be the secret itself, put here by mistake
            raise UnknownStore(f"the option {name!r} of the metadata URL needs an absolute path")
        given[name] = value
    return _checked(given)


def _checked(given: Mapping[str, str]) -> StoreSecurity:
    for one, other in (("cert", "key"), ("key", "cert"), ("user", "password-file"), ("password-file", "user")):
        if one in given and other not in given:
            raise UnknownStore(f"the option {one!r} of the metadata URL needs {other!r} too")
    if given.get("tls", "true") not in ("true", "false"):
        raise UnknownStore("the option 'tls' of the metadata URL is true or false")
    tls_given = [name for name in TLS_OPTIONS[1:] if name in given]
    if given.get("tls") == "false" and tls_given:
        raise UnknownStore(f"tls=false contradicts the option {tls_given[0]!r} of the metadata URL")
    if ":" in given.get("user", ""):
        raise UnknownStore("the user of a metadata URL has no colon")
    tls = None
    if given.get("tls") == "true" or tls_given:
        tls = Tls(*(given.get(name, "") for name in TLS_OPTIONS[1:]))
    return StoreSecurity(tls, given.get("user", ""), given.get("password-file", ""), given.get("token-file", ""))


def read_secret(what: str, path: str) -> str:
    """The first line of the file. Raises CredentialsUnreadable, with the path and without the content."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(SECRET_BYTES_MAX + 1)
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CredentialsUnreadable(f"the {what} file {path} cannot be read: {reason}") from error
    if len(content) > SECRET_BYTES_MAX or not lines or not lines[0].strip():
        raise CredentialsUnreadable(f"the {what} file {path} has no {what} in its first line")
    return lines[0].strip()
