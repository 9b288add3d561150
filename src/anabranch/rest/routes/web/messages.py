"""The newest messages of topics, without a subscription."""

from __future__ import annotations

from anabranch.broker.admin.messages import COUNT_MAX, MessageBrowser
from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.params import parse_number, topic_of
from anabranch.rest.router import Route
from anabranch.security.permissions import TOPIC_CONSUME

COUNT = 50


def message_routes(admin: MessageBrowser) -> list[Route]:
    async def newest(request: Request) -> Response:
        count = parse_number(request.query.get("count", str(COUNT)), "count")
        if not 1 <= count <= COUNT_MAX:
            raise BadRequest(f"count is 1 to {COUNT_MAX}, not {count}")
        segment = parse_number(request.query["segment"], "segment") if "segment" in request.query else None
        return json_response(await admin.newest(str(topic_of(request)), count, segment))

    summary = "Newest messages, the newest first; nothing is acknowledged"
    return [
        Route(
            "GET", f"/anabranch/v1/{kind}/{{tenant}}/{{namespace}}/{{topic}}/messages", newest, summary, TOPIC_CONSUME
        )
        for kind in ("scalable", "persistent")
    ]
