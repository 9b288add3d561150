"""Subscriptions of a topic. Knows HTTP only through values."""

from __future__ import annotations

from typing import Any

from anabranch.broker.permissions import SUBSCRIPTION_CONSUME, TOPIC_CONSUME
from anabranch.model.errors import BadRequest
from anabranch.model.names import check_subscription_name
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.rest.face import BrokerFace
from anabranch.rest.message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.router import Route
from anabranch.rest.routes_lookup import TOPIC_PARAMS, topic_of

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


def parse_position(value: Any) -> Position:
    """Where a new subscription begins: nothing or "latest", "earliest", or a message id as an object."""
    if value is None:
        return LATEST
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if isinstance(value, dict):
        if value.get("properties"):
            raise BadRequest("properties of a subscription are given by the consumer in this release")
        ledger, entry = value.get("ledgerId", -1), value.get("entryId", -1)
        if all(isinstance(number, int) and not isinstance(number, bool) for number in (ledger, entry)):
            return Position(ledger, entry)
    raise BadRequest('the body is "earliest", "latest" or {"ledgerId": …, "entryId": …}')


class SubscriptionCalls:
    def __init__(self, face: BrokerFace) -> None:
        self._face = face

    async def list_all(self, request: Request) -> Response:
        return json_response(await self._face.list_subscriptions(str(topic_of(request))))

    async def create(self, request: Request) -> Response:
        name = check_subscription_name(request.params["subscription"])
        await self._face.create_subscription(str(topic_of(request)), name, parse_position(request.json()))
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        name = check_subscription_name(request.params["subscription"])
        await self._face.delete_subscription(str(topic_of(request)), name, request.flag("force"))
        return NO_CONTENT


def subscription_routes(face: BrokerFace) -> list[Route]:
    calls = SubscriptionCalls(face)
    topic = f"/admin/v2/{TOPIC_PARAMS}"
    one = f"{topic}/subscription/{{subscription}}"
    return [
        Route("GET", f"{topic}/subscriptions", calls.list_all, "Subscriptions of a topic", TOPIC_CONSUME),
        Route("PUT", one, calls.create, "Create a subscription", SUBSCRIPTION_CONSUME),
        Route("DELETE", one, calls.delete, "Delete a subscription", SUBSCRIPTION_CONSUME),
    ]
