"""Why a broker cannot be connected: classifies errors of TLS, and asks a port that hangs up which protocol it has.

A port that closes during the handshake is a broker that stops, or a port with another protocol. Only the second is
final, so the port is asked: a plain port answers a CONNECT, a TLS port answers a TLS handshake.
"""

from __future__ import annotations

import asyncio
import ssl

from anabranch.client.connection.address import Address
from anabranch.client.connection.connection_state import ConnectionState
from anabranch.client.errors import ClientError, TlsFailed, Unreachable, WrongPort
from anabranch.runtime.reach import expects_tls, tls_words

_ENDS = ("EOF", "SYSCALL", "ZERO_RETURN")
_FRAME_START_BYTES = 9  # two lengths, and the first byte of a command


async def refused_dial(address: Address, error: OSError | Unreachable, probe_s: float) -> ClientError:
    """The error for a failed attempt to connect."""
    if isinstance(error, ssl.SSLError) and not _is_end(error):
        return TlsFailed(f"TLS with {address} failed: {_words(error)}")
    is_ended = isinstance(error, Unreachable | ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
    if is_ended and address.is_tls and await _expects_plain(address, probe_s):
        return WrongPort(f"{address}: this port does not use TLS; connect with pulsar://")
    if is_ended and not address.is_tls and await expects_tls(address.host, address.port, probe_s):
        return WrongPort(f"{address}: this port expects TLS; connect with pulsar+ssl://")
    if isinstance(error, Unreachable):
        return error
    return Unreachable(f"cannot connect to {address}: {_words(error)}")


def _is_end(error: ssl.SSLError) -> bool:
    """The connection ended within the handshake, as it does when a broker stops."""
    return isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError) or any(
        one in (error.reason or "") for one in _ENDS
    )


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return tls_words(error.reason or str(error))
    return error.strerror or str(error) or type(error).__name__


async def _expects_plain(address: Address, probe_s: float) -> bool:
    """Whether a CONNECT without credentials is answered, with CONNECTED or ERROR."""
    try:
        async with asyncio.timeout(probe_s):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(ConnectionState().start(0.0))
                start = await reader.readexactly(_FRAME_START_BYTES)
            finally:
                writer.transport.abort()
    except (OSError, EOFError):  # also TimeoutError
        return False
    return start[:1] == b"\x00" and start[8:] == b"\x08"
