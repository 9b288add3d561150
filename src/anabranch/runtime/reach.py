"""What a port is: whether it accepts connections, whether it expects TLS, and why its TLS refuses a client.

A probe is one attempt, without sending data.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

_ALERTS = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate",
    "UNKNOWN_CA": "it does not know the authority of the client's certificate",
    "CERTIFICATE_EXPIRED": "the client's certificate has expired",
    "CERTIFICATE_REVOKED": "the client's certificate is revoked",
    "BAD_CERTIFICATE": "it does not accept the client's certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept the client's certificate",
    "UNSUPPORTED_CERTIFICATE": "it does not accept the client's certificate",
    "HANDSHAKE_FAILURE": "no common TLS version or cipher, or it requires a client certificate",
}


def is_alert(reason: str) -> bool:
    """The peer refused the TLS handshake, and said why."""
    return "alert" in reason.lower()


def tls_words(reason: str) -> str:
    """The reason of an SSLError for users: alerts about certificates in plain words, others unchanged."""
    if is_alert(reason):
        for name, words in _ALERTS.items():
            if name in reason.upper():
                return words
    return reason


async def is_listening(host: str, port: int, seconds: float) -> bool:
    """False only if the port refuses; a slow or distant peer counts as listening."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.transport.abort()
    return True


async def expects_tls(host: str, port: int, seconds: float) -> bool:
    """Whether a TLS handshake succeeds, with any certificate; False without an answer in time."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=_trusting_all())
    except OSError:  # also ssl.SSLError and TimeoutError
        return False
    writer.transport.abort()
    return True


def expects_tls_blocking(host: str, port: int, seconds: float) -> bool:
    """The same for threads."""
    try:
        with socket.create_connection((host, port), seconds) as plain, _trusting_all().wrap_socket(plain):
            return True
    except OSError:
        return False


def _trusting_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, and the connection is closed at once
    return context
