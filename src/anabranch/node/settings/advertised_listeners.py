"""`network.advertised_listeners` as values: names under which a broker gives its addresses to clients. Pure.

    internal:pulsar://10.0.0.5:6650, external:pulsar://broker1.example.com:6650, external:pulsar+ssl://…:6651

As in Pulsar, a client that asks for a listener gets its addresses. All others get those of the internal listener, which
is the first one unless `network.internal_listener` names another.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from anabranch.broker.placement import Listener

_NAME = re.compile(r"[A-Za-z0-9_-]+")
PLAIN, TLS = "pulsar", "pulsar+ssl"


def parse_listeners(written: str) -> tuple[Listener, ...]:
    """In the order in which they are named first. ValueError says what is wrong."""
    found: dict[str, dict[str, str]] = {}
    for part in filter(None, (one.strip() for one in written.split(","))):
        name, colon, url = part.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise ValueError(f"{part!r} is not NAME:pulsar://HOST:PORT")
        scheme = _scheme(url)
        urls = found.setdefault(name, {})
        if scheme in urls:
            raise ValueError(f"listener {name} has two addresses with {scheme}://")
        urls[scheme] = url
    return tuple(Listener(name, urls.get(PLAIN), urls.get(TLS)) for name, urls in found.items())


def complaint_about(written: str, internal: str, *, is_tls_on: bool, is_tls_only: bool) -> str:
    """What is wrong with the two settings; empty: nothing."""
    try:
        listeners = parse_listeners(written)
    except ValueError as error:
        return str(error)
    names = [one.name for one in listeners]
    if internal and internal not in names:
        return f"network.internal_listener is {internal}, which is not among the listeners: {', '.join(names) or '-'}"
    for one in listeners:
        if one.service_url_tls is not None and not is_tls_on:
            return f"listener {one.name} has a pulsar+ssl:// address, and TLS is off: set tls.cert_file, tls.key_file"
        if one.service_url is None and not is_tls_only:
            return f"listener {one.name} has no pulsar:// address"
        if one.service_url is not None and is_tls_only:
            return f"listener {one.name} has a pulsar:// address, and tls.only is set"
    return ""


def _scheme(url: str) -> str:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in (PLAIN, TLS) or not parts.hostname or not port or parts.path or parts.query:
        raise ValueError(f"{url!r} is not an address such as pulsar://HOST:PORT or pulsar+ssl://HOST:PORT")
    return parts.scheme
