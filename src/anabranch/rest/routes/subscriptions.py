"""Subscriptions of a topic: create, delete, seek, skip, expire, peek."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.admin.topic_maintenance import TopicMaintenance
from anabranch.model.errors import BadRequest
from anabranch.model.names import check_subscription_name
from anabranch.model.position import LATEST
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.params import parse_number, parse_position, topic_of
from anabranch.rest.router import Route
from anabranch.rest.routes.lookup import TOPIC_PARAMS
from anabranch.rest.routes.message_response import view
from anabranch.rest.routes.policies import body_of
from anabranch.rest.routes.topics import parse_properties
from anabranch.security.permissions import SUBSCRIPTION_CONSUME, TOPIC_ADMIN, TOPIC_CONSUME


def name_of(request: Request) -> str:
    return check_subscription_name(request.params["subscription"])


def both(request: Request) -> tuple[str, str]:
    """Topic and subscription of a path, checked."""
    return str(topic_of(request)), name_of(request)


class SubscriptionCalls:
    def __init__(self, admin: SubscriptionAdmin, topics: TopicMaintenance) -> None:
        self._admin = admin
        self._topics = topics

    async def list_all(self, request: Request) -> Response:
        return json_response(await self._admin.names(str(topic_of(request))))

    async def create(self, request: Request) -> Response:
        """Body: empty, "latest", "earliest", or a message id as an object, with optional `properties`."""
        topic, name, value = *both(request), request.json()
        properties = parse_properties(value.get("properties") if isinstance(value, dict) else None)
        await self._admin.create(topic, name, LATEST if value is None else parse_position(value), properties)
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        await self._admin.delete(*both(request), request.flag("force"))
        return NO_CONTENT

    # -- properties

    async def properties(self, request: Request) -> Response:
        return json_response(await self._admin.properties(*both(request)))

    async def set_properties(self, request: Request) -> Response:
        await self._admin.set_properties(*both(request), parse_properties(body_of(request)))
        return NO_CONTENT

    # -- position

    async def skip(self, request: Request) -> Response:
        await self._admin.skip(*both(request), parse_number(request.params["count"], "the number of messages"))
        return NO_CONTENT

    async def skip_all(self, request: Request) -> Response:
        await self._admin.skip_all(*both(request))
        return NO_CONTENT

    async def reset_to_time(self, request: Request) -> Response:
        await self._admin.reset_to_time(*both(request), parse_number(request.params["timestamp"], "the time in ms"))
        return NO_CONTENT

    async def reset_to(self, request: Request) -> Response:
        value = body_of(request)
        excluded = value.get("excluded", False) if isinstance(value, dict) else False
        if not isinstance(excluded, bool):
            raise BadRequest("excluded must be true or false")
        await self._admin.reset_to(*both(request), parse_position(value), excluded)
        return NO_CONTENT

    async def expire_older(self, request: Request) -> Response:
        await self._admin.expire_older(*both(request), _seconds(request))
        return NO_CONTENT

    async def expire_everywhere(self, request: Request) -> Response:
        await self._admin.expire_older(str(topic_of(request)), None, _seconds(request))
        return NO_CONTENT

    async def expire_up_to(self, request: Request) -> Response:
        await self._admin.expire_up_to(*both(request), parse_position(body_of(request)))
        return NO_CONTENT

    # -- reading

    async def analyze(self, request: Request) -> Response:
        value: Any = request.json()
        start = None if value is None else parse_position(value)
        return json_response(await self._admin.analyze(*both(request), start))

    async def peek(self, request: Request) -> Response:
        return view(await self._topics.peek(*both(request), parse_number(request.params["number"], "the position")))

    async def replicated(self, request: Request) -> Response:
        return json_response(await self._admin.replicated(*both(request)))

    async def set_replicated(self, request: Request) -> Response:
        if not isinstance(wanted := body_of(request), bool):
            raise BadRequest("the body must be true or false")
        await self._admin.replicated(*both(request))
        if wanted:
            raise BadRequest("there is no second cluster to replicate the subscription to")
        return NO_CONTENT


def _seconds(request: Request) -> int:
    seconds = parse_number(request.params["seconds"], "the age in seconds")
    if seconds < 0:
        raise BadRequest("the age in seconds must be 0 or more")
    return seconds


def subscription_routes(admin: SubscriptionAdmin, topics: TopicMaintenance) -> list[Route]:
    calls = SubscriptionCalls(admin, topics)
    topic = f"/admin/v2/{TOPIC_PARAMS}"
    one = f"{topic}/subscription/{{subscription}}"
    table = [
        ("PUT", "", calls.create, "Create a subscription"),
        ("DELETE", "", calls.delete, "Delete a subscription"),
        ("GET", "/properties", calls.properties, "Properties of a subscription"),
        ("PUT", "/properties", calls.set_properties, "Replace the properties of a subscription"),
        ("POST", "/skip/{count}", calls.skip, "Pass over the next entries"),
        ("POST", "/skip_all", calls.skip_all, "Pass over the whole backlog"),
        ("POST", "/resetcursor/{timestamp}", calls.reset_to_time, "Go to a time (ms)"),
        ("POST", "/resetcursor", calls.reset_to, "Go to a message"),
        ("POST", "/expireMessages/{seconds}", calls.expire_older, "Expire messages older than an age"),
        ("POST", "/expireMessages", calls.expire_up_to, "Expire messages up to one"),
        ("POST", "/analyzeBacklog", calls.analyze, "Read the backlog and count"),
        ("GET", "/position/{number}", calls.peek, "The n-th message of the backlog; changes nothing"),
        ("GET", "/replicatedSubscriptionStatus", calls.replicated, "Is the subscription replicated?"),
        ("POST", "/replicatedSubscriptionStatus", calls.set_replicated, "Replicate the subscription, or not"),
    ]
    return [
        Route(
            "GET", f"{topic}/subscriptions", calls.list_all, "Subscriptions of a topic", TOPIC_CONSUME, at_owner=True
        ),
        Route(
            "POST",
            f"{topic}/all_subscription/expireMessages/{{seconds}}",
            calls.expire_everywhere,
            "Expire messages older than an age for every subscription",
            TOPIC_ADMIN,
            at_owner=True,
        ),
        *(Route(verb, one + path, call, text, SUBSCRIPTION_CONSUME, at_owner=True) for verb, path, call, text in table),
    ]
