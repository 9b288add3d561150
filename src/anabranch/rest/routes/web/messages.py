"""Messages of topics without a subscription: the newest, or pages from a time or position on."""

from __future__ import annotations

from anabranch.broker.admin.views.messages import BYTES_MAX, COUNT_MAX, PREVIEW_BYTES, MessageBrowser
from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.params import parse_number, topic_of
from anabranch.rest.router import Route
from anabranch.security.permissions import TOPIC_CONSUME

COUNT = 50


def message_routes(admin: MessageBrowser) -> list[Route]:
    async def newest(request: Request) -> Response:
        count, segment = _bounds(request)
        return json_response(await admin.newest(str(topic_of(request)), count, segment))

    async def page(request: Request) -> Response:
        count, segment = _bounds(request)
        query = request.query
        if len(query.keys() & {"time", "position", "after"}) > 1:
            raise BadRequest("give one of time, position and after")
        time_ms = _time(request)
        preview = parse_number(query.get("preview", str(PREVIEW_BYTES)), "preview")
        if not 1 <= preview <= BYTES_MAX:
            raise BadRequest(f"preview is 1 to {BYTES_MAX} bytes, not {preview}")
        position, after = query.get("position", ""), query.get("after", "")
        found = await admin.page(
            str(topic_of(request)),
            count,
            segment,
            time_ms=time_ms,
            position=position,
            after=after,
            preview=preview,
        )
        return json_response(found)

    async def counted(request: Request) -> Response:
        return json_response(await admin.count(str(topic_of(request)), _bounds(request)[1], _time(request)))

    told = "Messages from a time, position or other page on, the oldest first; nothing is acknowledged"
    ways = (
        ("messages", newest, "Newest messages, the newest first; nothing is acknowledged"),
        ("messages/page", page, told),
        ("messages/count", counted, "How many messages are stored, and how many from a time on"),
    )
    return [
        Route("GET", f"/anabranch/v1/{kind}/{{tenant}}/{{namespace}}/{{topic}}/{path}", handler, summary, TOPIC_CONSUME)
        for kind in ("scalable", "persistent")
        for path, handler, summary in ways
    ]


def _bounds(request: Request) -> tuple[int, int | None]:
    """How many messages, and of which segment."""
    count = parse_number(request.query.get("count", str(COUNT)), "count")
    if not 1 <= count <= COUNT_MAX:
        raise BadRequest(f"count is 1 to {COUNT_MAX}, not {count}")
    return count, parse_number(request.query["segment"], "segment") if "segment" in request.query else None


def _time(request: Request) -> int:
    time_ms = parse_number(request.query.get("time", "0"), "time")
    if time_ms < 0:
        raise BadRequest(f"time is milliseconds since 1970, not {time_ms}")
    return time_ms
