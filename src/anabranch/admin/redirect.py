"""Where a redirect leads, and whether credentials may go there.

A broker of a cluster answers 307 with the address of the one that serves the topic. A token is sent only to hosts of
the same family and never from TLS to plain text, so a forged redirect cannot obtain it.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from anabranch.admin.errors import StrangePlace

_PORTS = {"http": 80, "https": 443}


class Place(NamedTuple):
    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def default_port(scheme: str) -> int:
    return _PORTS[scheme]


def redirected(at: Place, location: str, *, has_secret: bool) -> tuple[Place, str]:
    """The next place and the target there; raises StrangePlace."""
    parts = urlsplit(location)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise StrangePlace(f"{at} redirects to {location!r}, which is not an address")
    there = Place(parts.scheme, parts.hostname, port or default_port(parts.scheme))
    if at.scheme == "https" and there.scheme != "https":
        raise StrangePlace(f"{at} redirects to {there}, which is not encrypted")
    if has_secret and not is_family(at.host, there.host):
        raise StrangePlace(f"{at} redirects to {there}: the token is not sent to a host of another family")
    return there, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def is_family(one: str, other: str) -> bool:
    """The same host; this machine by any of its names; addresses of one kind of private network; names under one
    parent (`b1.pulsar.svc`, `b2.pulsar.svc`), or both without any."""
    if one.lower() == other.lower():
        return True
    first, second = _address(one), _address(other)
    if _is_loopback(one, first) or _is_loopback(other, second):
        return _is_loopback(one, first) and _is_loopback(other, second)
    if first is not None or second is not None:
        return first is not None and second is not None and first.is_private and second.is_private
    return one.lower().partition(".")[2] == other.lower().partition(".")[2]


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str, address: IPv4Address | IPv6Address | None) -> bool:
    return host.lower() == "localhost" if address is None else address.is_loopback
