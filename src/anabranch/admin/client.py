"""Blocking client of the admin REST API, on `http.client`.

It does not share `runtime.http_client`, which needs an event loop: this client is used by threads and by short CLI
processes that have none.

with AdminClient("http://localhost:8080") as admin:
    admin.put("/admin/v2/tenants/acme", {"adminRoles": [], "allowedClusters": ["standalone"]})
    admin.get("/admin/v2/tenants")            # ["acme", "public"]
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from anabranch.admin.errors import (
    AdminError,
    BadTls,
    BadUrl,
    CannotSignIn,
    Refused,
    StrangeAnswer,
    TlsFailed,
    TokenUnreadable,
    Unreachable,
    WrongPort,
)
from anabranch.admin.redirect import Place, default_port, redirected
from anabranch.runtime.credentials import (
    BadTlsFile,
    Credentials,
    NoCredentials,
    Tls,
    tls_context,
    token_credentials,
)
from anabranch.runtime.reach import expects_tls_blocking, tls_words

DEFAULT_URL = "http://localhost:8080"
TIMEOUT_SECONDS = 60.0
REDIRECTS_MAX = 6
PROBE_SECONDS = 2.0  # for the question whether a port that hangs up expects TLS
SEGMENT_IDS_HEADER = "x-anabranch-segment-ids"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")

    @property
    def value(self) -> Any:
        """The body as JSON; None if it is empty; the text itself if a bare string was sent as JSON."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            return self.text


@dataclass(frozen=True, slots=True)
class Origin:
    """The broker that gets the first request, and the prefix of every path."""

    place: Place
    prefix: str
    url: str

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Raises BadUrl."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadUrl(f"{url!r} is not an admin URL")
        try:
            port = parts.port
        except ValueError as error:
            raise BadUrl(f"{url!r}: {error}") from error
        place = Place(parts.scheme, parts.hostname, port or default_port(parts.scheme))
        return cls(place, parts.path.rstrip("/"), f"{parts.scheme}://{parts.netloc}")


def checked_tls(tls: Tls | ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Raises BadTls."""
    try:
        return tls_context(tls)
    except BadTlsFile as error:
        raise BadTls(f"the TLS files are not usable: {error}") from error


def request_of(
    origin: Origin,
    method: str,
    path: str,
    body: Any,
    query: Mapping[str, Any] | None,
    credentials: Credentials | None,
) -> tuple[str, bytes | None, dict[str, str]]:
    """Target, data and headers of a request. Bytes are sent unchanged, anything else but None as JSON."""
    target = origin.prefix + path
    if asked := {name: _spelled(value) for name, value in (query or {}).items() if value is not None}:
        target += "?" + urlencode(asked, doseq=True)
    headers = {"Accept": "application/json"}
    try:
        if credentials is not None and (shown := credentials.header()) is not None:
            headers["Authorization"] = shown
    except NoCredentials as error:
        kind = CannotSignIn if error.retryable else TokenUnreadable
        raise kind(str(error)) from error
    data = None
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    if data is not None or method in ("PUT", "POST"):
        headers["Content-Type"] = "application/json"
    return target, data, headers


class AdminClient:
    """Keep-alive connections, opened when first used. Not for use by two threads at once."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | Path | Callable[[], str] | None = None,
        auth: Credentials | None = None,
        trust_file: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """`token`: sent as a bearer token. `trust_file`: certificates to trust in addition to the system's (https);
        ignored if `tls` is given."""
        self._origin = Origin.parse(url)
        self._credentials = auth or token_credentials(token)
        self._timeout = timeout_seconds
        self._tls = tls
        if tls is None and self._origin.place.scheme == "https":
            self._tls = checked_tls(Tls(trust_file=trust_file))
        self._open: dict[Place, http.client.HTTPConnection] = {}

    @property
    def url(self) -> str:
        return self._origin.url

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self.call("GET", path, query=query).value

    def put(self, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        return self.call("PUT", path, body, query=query).value

    def post(self, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        return self.call("POST", path, body, query=query).value

    def delete(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self.call("DELETE", path, query=query).value

    def call(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Answer:
        """`path` is encoded. Bytes are sent unchanged, anything else but None as JSON. Raises AdminError."""
        target, data, headers = request_of(self._origin, method, path, body, query, self._credentials)
        answer = self._follow(method, target, data, headers)
        if answer.status >= 300:
            raise refusal(answer)
        return answer

    def _follow(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Follows redirects to the broker that serves the topic."""
        at = self._origin.place
        for _ in range(REDIRECTS_MAX):
            answer = self._exchange(at, method, target, data, headers)
            if answer.status not in (307, 308):
                return answer
            at, target = redirected(at, answer.headers.get("location", ""), has_secret="Authorization" in headers)
        raise Unreachable(f"{self.url}: too many redirects")

    def _connection(self, at: Place) -> http.client.HTTPConnection:
        """One connection per broker, kept open. If the broker has closed it, the next request reconnects."""
        if at not in self._open:
            if at.scheme == "https":
                tls = self._tls = self._tls or ssl.create_default_context()
                self._open[at] = http.client.HTTPSConnection(at.host, at.port, timeout=self._timeout, context=tls)
            else:
                self._open[at] = http.client.HTTPConnection(at.host, at.port, timeout=self._timeout)
        found = self._open[at]
        if found.sock is not None and _is_closed_by_peer(found.sock):
            found.close()
        return found

    def _exchange(self, at: Place, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> Answer:
        connection = self._connection(at)
        url = self.url if at == self._origin.place else str(at)
        try:
            connection.request(method, target, data, dict(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, response.read(), found)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            is_closed = isinstance(error, http.client.RemoteDisconnected)
            if is_closed and at.scheme == "http" and expects_tls_blocking(at.host, at.port, PROBE_SECONDS):
                raise tls_expected(url) from error
            raise failed_exchange(url, error) from error


def failed_exchange(url: str, error: Exception) -> AdminError:
    """The error for a request without an answer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"TLS with {url} failed: the broker's certificate is not accepted: {error.verify_message}")
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return TlsFailed(f"TLS with {url} failed: {tls_words(error.reason or str(error))}")
    if isinstance(error, http.client.BadStatusLine) and str(error).startswith("\x15\x03"):  # a TLS alert
        return tls_expected(url)
    return Unreachable(f"no answer from {url}: {_words(error)}")


def tls_expected(url: str) -> AdminError:
    return WrongPort(f"{url}: this port expects TLS; use https://")


def _is_closed_by_peer(idle: socket.socket) -> bool:
    """Between two requests the socket is readable only when the broker has closed it."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))


def refusal(answer: Answer) -> AdminError:
    """The error that a status of 300 or more means."""
    value = answer.value
    if isinstance(value, dict):
        reason = value.get("reason") or value.get("message") or ""
        code = value.get("error") or value.get("code")  # brokers of an earlier version say `code`
    else:
        reason, code = answer.text, None
    words = " ".join(str(reason).split()) or http.client.responses.get(answer.status, "refused")
    if code == WrongPort.code:
        return WrongPort(words)
    return Refused(answer.status, words[:500], code if isinstance(code, str) else f"http-{answer.status}")


def segment_ids(answer: Answer) -> tuple[int, ...]:
    """Ids of the segments that a split or merge has made, in ring order; empty if the broker does not tell them."""
    text = answer.headers.get(SEGMENT_IDS_HEADER, "")
    try:
        return tuple(int(word) for word in text.split(",") if word)
    except ValueError as error:
        raise StrangeAnswer(f"{SEGMENT_IDS_HEADER} is a list of segment ids like 1,2, not {text!r}") from error


def _spelled(value: Any) -> str | list[str]:
    """As a query parameter; a list becomes several parameters."""
    if isinstance(value, list):
        return [str(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, http.client.RemoteDisconnected):
        return "closed before the answer"
    if isinstance(error, http.client.IncompleteRead):
        return "closed before the answer was complete"
    if isinstance(error, http.client.HTTPException):
        return "the answer is not HTTP/1.1"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
