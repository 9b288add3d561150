"""What every store behind gRPC shares: how a channel is set up, and what a failed call means. Knows no store.

The one question that matters after a failure is whether the request may have been carried out:

    NOT_SENT   it never left this process: send it again, elsewhere too
    UNKNOWN    it may have been carried out: repeat reads, never writes
    ANSWERED   the server said no: the store's own words decide

Importing this module imports grpc: do it only when a store that needs it is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from enum import Enum
from typing import TypeVar
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

RECEIVE_BYTES_MAX = 256 * 1024 * 1024
CONNECT_MS_MAX = 2_000

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),  # the server has the say
    ("grpc.enable_http_proxy", 0),  # stores are near; a proxy meant for the web must not see them
    ("grpc.use_local_subchannel_pool", 1),  # a new channel to the same address is a new connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),  # also how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 6_000),  # servers resent pings more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
)

_NEVER_LEFT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
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
_END_OF_CALL = "_AioCall._handle_status_once_received"  # what grpc.aio calls its task that waits for a call's status
_open: WeakKeyDictionary[asyncio.AbstractEventLoop, set[grpc.aio.Channel]] = WeakKeyDictionary()

T = TypeVar("T")


class Fate(Enum):
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"
    ANSWERED = "answered"


class CallFailed(Exception):
    """A call that did not end well. Stays inside an adapter, which translates it into errors of the port."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details = code, details

    @property
    def fate(self) -> Fate:
        return fate(self.code, self.details)


def fate(code: grpc.StatusCode, details: str) -> Fate:
    if code not in _LOST:
        return Fate.ANSWERED
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_LEFT):
        return Fate.NOT_SENT
    return Fate.UNKNOWN


def make_channel(address: str, *options: tuple[str, int | str]) -> grpc.aio.Channel:
    """A connection of its own to one `host:port`. End it with `close_channel`."""
    channel = grpc.aio.insecure_channel(address, options=(*OPTIONS, *options))
    _open.setdefault(asyncio.get_running_loop(), set()).add(channel)
    return channel


async def close_channel(channel: grpc.aio.Channel, grace_s: float | None = None) -> None:
    """Close it; with the last one of this loop, wait until gRPC has heard the end of every call.

    gRPC's poller is shared by all loops of the process. A cancelled call ends a moment later; if its loop is closed by
    then, the poller stumbles and whoever uses gRPC next waits in vain for an answer that has come.
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
    """A call on a channel or stream that was closed before: nothing was sent."""
    return CallFailed(grpc.StatusCode.UNAVAILABLE, f"{_NEVER_LEFT[0]}: {error}")


async def answer(call: Awaitable[T]) -> T:
    """Await a call (or one read or write of a stream); whatever goes wrong is a CallFailed.

    A call on a channel that somebody closes ends in CancelledError although nobody cancelled this task: that is told
    apart here, so that a real cancellation travels on and the other kind does not kill the caller.
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
