"""Server-sent events: the text of events, and live answers made of them.

A live answer shows the newest state of something, never a queue of states: the next event is made when the client has
taken the last one. `HEARTBEAT` keeps the connection open and tells a broker that the client is gone.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from anabranch.model.errors import Error
from anabranch.rest.http_message import Response

CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEARTBEAT = b":\n\n"
_HEADERS = (("X-Accel-Buffering", "no"),)  # proxies must not gather events


def event(name: str, data: Any, serial: int | None = None) -> bytes:
    """One event. JSON has no line breaks, so one `data` line holds it. `serial` becomes the event's id."""
    number = "" if serial is None else f"id: {serial}\n"
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\n{number}data: {text}\n\n".encode()


def ended(code: str, reason: str) -> bytes:
    """The last event of a stream that the server ends."""
    return event("bye", {"error": code, "reason": reason})


def live_response(events: AsyncIterator[bytes]) -> Response:
    return Response(200, b"", CONTENT_TYPE, _HEADERS, pieces=_with_end(events), is_live=True)


async def _with_end(events: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The events, and a `bye` if they end with an error."""
    async with aclosing(closable(events)) as source:
        try:
            async for one in source:
                yield one
        except Error as error:
            yield ended(error.code, error.reason)


async def closable(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The pieces as a generator that can be closed; closing it closes theirs."""
    try:
        async for piece in pieces:
            yield piece
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
