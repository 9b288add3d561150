"""Isolation from foreign web pages: which requests of a browser are served.

A web page of another site can make its reader's browser send requests to this port. Three rules refuse them.

1. `Host` is an IP address, a loopback name, a name of this broker or one of `http.hosts`. With DNS rebinding the page's
   own name is made to resolve to this broker, so that the browser sees one origin; `Host` then is that name.
2. `Sec-Fetch-Site` is `same-origin` or `none`: no other page may make requests, also not to read (`<img>`, `<script>`,
   `fetch`). Navigation to an open page is allowed.
3. `Origin` of a change is the host that the request was sent to, for browsers without `Sec-Fetch-Site`.

Programs send neither `Origin` nor `Sec-Fetch-Site`. The first rule does not apply to a request that has credentials in
its `Authorization` header at a broker that checks them: a foreign page does not have these. It also does not apply to
open pages of such a broker, because they hold no data of users. Functions only; no I/O.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.model.errors import Error
from anabranch.rest.http_message import Request
from anabranch.rest.router import Route
from anabranch.security.permissions import OPEN

ANY_HOST = "*"
READS = ("GET", "HEAD", "OPTIONS")
OWN_SITES = ("same-origin", "none")


class ForeignHost(Error):
    """The request names a host that is not a name of this broker."""

    code = "foreign-host"


class ForeignOrigin(Error):
    """The request comes from a web page of another origin."""

    code = "forbidden"


class ReadOnly(Error):
    """This HTTP port serves no changes."""

    code = "read-only"


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names under which the port is reached, in lower case; `*.example.com` stands for all names below it."""

    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str]) -> HostNames:
        return cls(frozenset(name.strip().lower().rstrip(".") for name in names if name.strip()))

    def includes(self, authority: str) -> bool:
        """Whether a `Host` header names this broker. The port is not compared: it may be mapped."""
        host = host_of(authority)
        if ANY_HOST in self.names or host in self.names:
            return True
        if host == "localhost" or host.endswith(".localhost") or _is_address(host):
            return True
        parents = host.split(".")[1:]
        return any(f"*.{'.'.join(parents[start:])}" in self.names for start in range(len(parents)))


@dataclass(frozen=True, slots=True)
class IsolationRules:
    hosts: HostNames | None = None  # None: `Host` is not checked
    is_read_only: bool = False

    def check(self, request: Request, route: Route | None, *, authenticates: bool) -> None:
        """Raises ForeignHost, ForeignOrigin or ReadOnly. `authenticates`: the broker checks credentials."""
        is_open = route is not None and route.need == OPEN
        has_credentials = authenticates and ("authorization" in request.headers or is_open)
        if self.hosts is not None and not has_credentials:
            _check_host(request, self.hosts)
        _check_site(request, is_open)
        _check_origin(request)
        if self.is_read_only and request.method not in READS:
            raise ReadOnly(f"{request.method} is not served: this broker has http.read_only")


def host_of(authority: str) -> str:
    """The host of `host:port`, in lower case, without the brackets of an IPv6 address."""
    text = authority.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(host: str) -> bool:
    """A page cannot make its own origin an address of another machine, so addresses are safe."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_host(request: Request, hosts: HostNames) -> None:
    authority = request.headers.get("host")
    if authority is not None and not hosts.includes(authority):
        raise ForeignHost(
            f"{host_of(authority)!r} is not a name of this broker: use its address, or add the name to http.hosts"
        )


def _check_site(request: Request, is_open: bool) -> None:
    site = request.headers.get("sec-fetch-site")
    if site is None or site.lower() in OWN_SITES:
        return
    is_navigation = request.headers.get("sec-fetch-mode") == "navigate" and request.method in ("GET", "HEAD")
    if not (is_open and is_navigation and request.headers.get("sec-fetch-dest") == "document"):
        raise ForeignOrigin("requests from pages of other sites are not served")


def _check_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return
    if origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise ForeignOrigin(f"changes are not accepted from pages of {origin}")
