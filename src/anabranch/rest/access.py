"""Authentication and authorization of a request.

The decision is `AccessControl`'s. Paths that are not served need authentication too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from anabranch.model.errors import BadRequest, Error
from anabranch.model.names import TopicName, check_subscription_name, check_tenant, parse_namespace
from anabranch.rest.event_stream import closable, ended
from anabranch.rest.http_message import Request
from anabranch.rest.params import topic_of
from anabranch.rest.router import Route
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.security.access_control import AccessControl
from anabranch.security.authentication import Identity, http_credentials
from anabranch.security.authorization import BROKER, Action, Resource, Unauthorized
from anabranch.security.permissions import SIGNED_IN, SUPERVISE, Need, Scope

log = get_logger(__name__)

METRICS = "/metrics"
RECHECK_MS = 2_000


class AccessFilter:
    def __init__(self, guard: AccessControl, clock: Clock, *, metrics_open: bool = True) -> None:
        """`metrics_open`: `/metrics` needs no authentication, as with Pulsar."""
        self._guard = guard
        self._clock = clock
        self._metrics_open = metrics_open

    async def admit(self, request: Request, route: Route | None) -> str | None:
        """The caller's role. Raises unless the caller may use the route. Without a route: unless it may learn that the
        path is not served."""
        need = SIGNED_IN if route is None else route.need or SUPERVISE
        if route is not None and route.pattern == METRICS and not self._metrics_open:
            need = SIGNED_IN
        if need.action is Action.OPEN:
            return None
        identity = await self._identify(request)
        role = None if identity is None else identity.role
        if not self._guard.authorizes:
            return role
        try:
            for one in _needs(request, route, need):
                for resource in resources(request, one.scope):
                    await self._guard.check(identity, one.action, resource)
        except Unauthorized as error:
            log.warning(
                "request not authorized", extra={"method": request.method, "path": request.path, "reason": error.reason}
            )
            raise
        return role

    async def refusals(self, request: Request, calls: Sequence[tuple[Route, Request]]) -> tuple[str | None, list[str]]:
        """The caller's role, and for each call why the caller may not make it; empty: it may. Nothing is logged or
        counted, because nothing is refused. Raises what makes the caller unknown."""
        identity = await self._identify(request)
        role = None if identity is None else identity.role
        return role, [await self._refusal(identity, route, call) for route, call in calls]

    async def _refusal(self, identity: Identity | None, route: Route, call: Request) -> str:
        need = route.need or SUPERVISE
        if need.action is Action.OPEN or not self._guard.authorizes:
            return ""
        try:
            for one in _needs(call, route, need):
                for resource in resources(call, one.scope):
                    decision = await self._guard.decide(identity, one.action, resource)
                    if not decision.allowed:
                        return decision.reason
        except Error as error:  # the call names something impossible
            return error.reason
        return ""

    async def while_admitted(
        self, request: Request, route: Route, pieces: AsyncIterator[bytes]
    ) -> AsyncGenerator[bytes]:
        """The pieces of a live answer, as long as the caller may use the route: credentials expire, and permissions
        are revoked. They are checked again before a piece when `RECHECK_MS` have passed."""
        checked_ms = self._clock.now_ms()
        async with aclosing(closable(pieces)) as source:
            async for piece in source:
                if (now_ms := self._clock.now_ms()) - checked_ms >= RECHECK_MS:
                    try:
                        await self.admit(request, route)
                    except Error as error:
                        yield ended(error.code, error.reason)
                        return
                    checked_ms = now_ms
                yield piece

    async def _identify(self, request: Request) -> Identity | None:
        if not self._guard.authenticates:
            return None
        try:
            credentials = http_credentials(
                request.headers.get("authorization"), request.certificate_name, self._guard.certificates_count
            )
            return await self._guard.sign_in(credentials, self._clock.now_ms())
        except Error as error:
            log.warning(
                "authentication failed", extra={"method": request.method, "path": request.path, "reason": error.reason}
            )
            raise


def _needs(request: Request, route: Route | None, need: Need) -> list[Need]:
    """The need of the route, and those of the flags that are given."""
    flagged = () if route is None else route.flag_needs
    return [need, *(further for flag, further in flagged if request.flag(flag))]


def resources(request: Request, scope: Scope) -> Iterator[Resource]:
    """The resources that a request names in its path or body; raises BadName or BadRequest."""
    params = request.params
    match scope:
        case Scope.BROKER:
            yield BROKER
        case Scope.TENANT:
            yield Resource(check_tenant(params["tenant"]))
        case Scope.NAMESPACE:
            namespace = f"{params['tenant']}/{params['namespace']}"
            parse_namespace(namespace)
            yield Resource.of_namespace(namespace)
        case Scope.TOPIC:
            yield Resource.of_topic(topic_of(request))
        case Scope.SUBSCRIPTION:
            yield Resource.of_topic(topic_of(request), check_subscription_name(params["subscription"]))
        case Scope.BODY_TOPICS:
            for topic in body_topics(request.json()):
                yield Resource.of_topic(topic)


def body_topics(value: Any) -> list[TopicName]:
    """The topics of a list like `[{"topic": "persistent://t/n/x", …}]`; at least one."""
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise BadRequest(
            'the body must be a list like [{"topic": "persistent://t/n/x", "role": "r", "actions": [...]}]'
        )
    if not all(isinstance(one.get("topic"), str) for one in value):
        raise BadRequest("every entry of the body must name its topic")
    return [TopicName.parse(one["topic"]) for one in value]
