"""Shared by the stores on gRPC: channel options, and what a failed call means for the request.

    NOT_SENT   it never left this process: may be sent again, to any server
    UNKNOWN    it may have been executed: repeat reads, never writes
    ANSWERED   the server refused it: the store interprets the answer

Importing this module imports grpc, so it is imported only when a store that needs it is opened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from enum import Enum
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read at import; otherwise failed handshakes are printed to stderr
# A forked child starts gRPC's threads again, and these may end it before it runs its program (a JVM of Spark's, for
# example). Nothing here forks to use gRPC in the child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import grpc
import grpc.aio

from anabranch.metadata.store_security import CredentialsUnreadable, Tls

RECEIVE_BYTES_MAX = 256 * 1024 * 1024
CONNECT_MS_MAX = 2_000

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),  # the server decides
    ("grpc.enable_http_proxy", 0),  # metadata stores are never reached through a web proxy
    ("grpc.use_local_subchannel_pool", 1),  # a new channel to the same address is a new connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),  # also the limit of one connection attempt
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 6_000),  # servers close connections that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
)

_NEVER_LEFT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_TLS_FAILED = ("handshake failed", "SSL_ERROR", "CERTIFICATE_VERIFY_FAILED", "verification check failed")
_LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
    }
)

SETTLE_S_MAX = 2.0
_END_OF_CALL = "_AioCall._handle_status_once_received"  # name of grpc.aio's task that waits for a call's status
_open: WeakKeyDictionary[asyncio.AbstractEventLoop, set[grpc.aio.Channel]] = WeakKeyDictionary()

T = TypeVar("T")


class Fate(Enum):
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"
    ANSWERED = "answered"


class CallFailed(Exception):
    """A failed call. It stays inside an adapter, which translates it to errors of the port."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details = code, details

    @property
    def fate(self) -> Fate:
        return fate(self.code, self.details)

    @property
    def is_tls_failure(self) -> bool:
        """The handshake failed, so nothing was sent."""
        return self.fate is Fate.NOT_SENT and any(part in self.details for part in _TLS_FAILED)


def fate(code: grpc.StatusCode, details: str) -> Fate:
    if code not in _LOST:
        return Fate.ANSWERED
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_LEFT):
        return Fate.NOT_SENT
    return Fate.UNKNOWN


def make_channel(address: str, *options: tuple[str, int | str], tls: Tls | None = None) -> grpc.aio.Channel:
    """A separate connection to one `host:port`. End it with `close_channel`. Raises CredentialsUnreadable."""
    if tls is None:
        channel = grpc.aio.insecure_channel(address, options=(*OPTIONS, *options))
    else:
        name: tuple[tuple[str, int | str], ...] = ()
        if tls.server_name:
            name = (("grpc.ssl_target_name_override", tls.server_name), ("grpc.default_authority", tls.server_name))
        channel = grpc.aio.secure_channel(address, _credentials(tls), options=(*OPTIONS, *name, *options))
    _open.setdefault(asyncio.get_running_loop(), set()).add(channel)
    return channel


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    tls.context()  # gRPC does not say what is wrong with a file
    return grpc.ssl_channel_credentials(
        _pem(tls.ca), private_key=_pem(tls.key), certificate_chain=_pem(tls.certificate)
    )


def _pem(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise CredentialsUnreadable(f"TLS of the metadata store: {path} cannot be read: {error.strerror}") from error


async def close_channel(channel: grpc.aio.Channel, grace_s: float | None = None) -> None:
    """Close the channel. For the last one of this loop, wait until gRPC has finished every call.

    gRPC's poller is shared by all loops of the process. A cancelled call ends slightly later; if its loop is closed by
    then, the poller fails, and the next user of gRPC never receives its answer.
    """
    await channel.close(grace_s)
    loop = asyncio.get_running_loop()
    others = _open.get(loop, set())
    others.discard(channel)
    if others:
        return
    _open.pop(loop, None)
    ends = {task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == _END_OF_CALL}
    if ends:
        await asyncio.wait(ends, timeout=SETTLE_S_MAX)


def closed(error: Exception) -> CallFailed:
    """A call on a closed channel or stream: nothing was sent."""
    return CallFailed(grpc.StatusCode.UNAVAILABLE, f"{_NEVER_LEFT[0]}: {error}")


async def answer(call: Awaitable[T]) -> T:
    """Await a call (or one read or write of a stream); raises CallFailed.

    Closing a channel makes its calls raise CancelledError although the task was not cancelled. This function tells the
    two apart: a real cancellation propagates, the other becomes CallFailed.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise CallFailed(error.code(), error.details() or "") from error
    except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
        raise closed(error) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallFailed(grpc.StatusCode.CANCELLED, "the channel was closed") from error
