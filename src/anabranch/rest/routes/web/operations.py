"""The journal of changes: notes the calls that change something, and shows the newest ones."""

from __future__ import annotations

from dataclasses import replace

from anabranch.broker.admin.views.journal import KEPT_MAX, Journal
from anabranch.broker.placement import ServedElsewhere
from anabranch.model.errors import BadRequest, Error
from anabranch.rest.errors import status_of
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.isolation import READS
from anabranch.rest.params import parse_number
from anabranch.rest.router import Handler, Route
from anabranch.security.authorization import Action
from anabranch.security.permissions import SUPERVISE

COUNT = 100
_QUESTIONS = ("/autoscale/try", "/compatibility", "/version", "/analyzeBacklog", "/migration/verify")  # change nothing


def is_change(route: Route) -> bool:
    """Messages are no changes; calls that only ask by POST are none either."""
    is_message = route.need is not None and route.need.action is Action.PRODUCE
    return route.method not in READS and not is_message and not route.pattern.endswith(_QUESTIONS)


def noted(journal: Journal, route: Route) -> Route:
    """The route, whose calls are noted where they are made: not at a broker that only passes them on."""
    return replace(route, handler=_noting(journal, route)) if is_change(route) else route


def _noting(journal: Journal, route: Route) -> Handler:
    async def handle(request: Request) -> Response:
        def note(status: int, error: str = "", reason: str = "") -> None:
            journal.note(
                role=request.role,
                what=route.summary,
                method=request.method,
                path=request.path,
                status=status,
                error=error,
                reason=reason,
                operation_id=request.query.get("operationId", ""),
            )

        try:
            response = await route.handler(request)
        except ServedElsewhere:
            raise
        except Error as error:
            note(status_of(error), error.code, error.reason)
            raise
        note(response.status)
        return response

    return handle


def operation_routes(journal: Journal) -> list[Route]:
    async def newest(request: Request) -> Response:
        count = parse_number(request.query.get("count", str(COUNT)), "count")
        if not 1 <= count <= KEPT_MAX:
            raise BadRequest(f"count is 1 to {KEPT_MAX}, not {count}")
        return json_response(await journal.newest(count))

    summary = "Changes made over HTTP on all brokers, the newest first: what, by whom, when, outcome"
    return [Route("GET", "/anabranch/v1/operations", newest, summary, SUPERVISE)]
