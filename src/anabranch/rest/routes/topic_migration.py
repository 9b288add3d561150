"""Migration of a regular topic to a scalable topic (PIP-475), under the paths of Pulsar and of the proposal.

204: migrated. 404: no such topic. 409: something blocks it, and the reason names what and who. `?check=true` answers
what a migration would do and what blocks it, and changes nothing.
"""

from __future__ import annotations

from anabranch.broker.admin.topic_migration import TopicMigrationAdmin
from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.params import topic_of
from anabranch.rest.router import Route
from anabranch.security.permissions import TOPIC_ADMIN, TOPIC_LOOKUP, TOPIC_PRODUCE

_SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
_PROPOSED = "/admin/v2/scalable-topics/{tenant}/{namespace}/{topic}"


def parse_kinds(texts: list[str]) -> dict[str, str]:
    """`SUBSCRIPTION:stream` or `SUBSCRIPTION:queue`; the subscription may have a colon itself."""
    kinds: dict[str, str] = {}
    for text in texts:
        name, colon, kind = text.rpartition(":")
        if not name or not colon:
            raise BadRequest(f"subscriptionType is like SUBSCRIPTION:queue, not {text!r}")
        kinds[name] = kind
    return kinds


class TopicMigrationCalls:
    def __init__(self, admin: TopicMigrationAdmin) -> None:
        self._admin = admin

    async def migrate(self, request: Request) -> Response:
        topic, force = str(topic_of(request)), request.flag("force")
        kinds = parse_kinds(request.texts("subscriptionType"))
        if request.flag("check"):
            return json_response(await self._admin.check(topic, force=force, kinds=kinds))
        await self._admin.migrate(topic, force=force, kinds=kinds)
        return NO_CONTENT

    async def status(self, request: Request) -> Response:
        return json_response(await self._admin.status(str(topic_of(request))))


def topic_migration_routes(admin: TopicMigrationAdmin) -> list[Route]:
    calls, routes = TopicMigrationCalls(admin), list[Route]()
    for path, verb in ((_SCALABLE, "migrate"), (_PROPOSED, "migrate-to-scalable")):
        routes += [
            Route(
                "POST",
                f"{path}/{verb}",
                calls.migrate,
                "Migrate a regular topic to a scalable topic, in place",
                TOPIC_PRODUCE,
                at_owner=True,
                flag_needs=(("force", TOPIC_ADMIN),),
            ),
            Route("GET", f"{path}/migration", calls.status, "Phase of the migration of a topic", TOPIC_LOOKUP),
        ]
    return routes
