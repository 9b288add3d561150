"""All routes of the HTTP port."""

from __future__ import annotations

from dataclasses import replace

from anabranch.broker.admin.service import BrokerAdmin
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.rest.access import AccessFilter
from anabranch.rest.http_message import Request, Response
from anabranch.rest.openapi.document import openapi_routes
from anabranch.rest.params import topic_of
from anabranch.rest.router import Handler, Route, Router
from anabranch.rest.routes.auto_scale import auto_scale_routes
from anabranch.rest.routes.brokers import broker_routes
from anabranch.rest.routes.clusters import cluster_routes
from anabranch.rest.routes.lookup import lookup_routes
from anabranch.rest.routes.namespaces import namespace_routes
from anabranch.rest.routes.permissions import permission_routes
from anabranch.rest.routes.policies import policy_routes
from anabranch.rest.routes.publish import publish_routes
from anabranch.rest.routes.scalable_topics import scalable_routes
from anabranch.rest.routes.schemas import schema_routes
from anabranch.rest.routes.stores.ledgers import ledger_routes
from anabranch.rest.routes.stores.metadata_migration import metadata_migration_routes
from anabranch.rest.routes.subscriptions import subscription_routes
from anabranch.rest.routes.tenants import tenant_routes
from anabranch.rest.routes.topic_maintenance import topic_maintenance_routes
from anabranch.rest.routes.topic_migration import topic_migration_routes
from anabranch.rest.routes.topic_policies import topic_policy_routes
from anabranch.rest.routes.topics import topic_routes
from anabranch.rest.routes.web.allowed_calls import AllowedCalls, access_routes
from anabranch.rest.routes.web.messages import message_routes
from anabranch.rest.routes.web.operations import noted, operation_routes
from anabranch.rest.routes.web.pages import static_routes
from anabranch.rest.routes.web.timeline import timeline_routes
from anabranch.rest.static_files import StaticFiles


def make_router(
    admin: BrokerAdmin,
    version: str,
    *,
    console: bool = True,
    access: AccessFilter | None = None,
    is_read_only: bool = False,
) -> Router:
    """`console`: serve the web console at `/`. `access` and `is_read_only` are what callers may ask about."""
    files = StaticFiles()
    allowed = AllowedCalls(lambda: router, access, is_read_only=is_read_only)
    routes = [
        *static_routes(files, console=console),
        *lookup_routes(admin.topics, admin.namespaces),
        *topic_routes(admin.topics, admin.maintenance),
        *topic_maintenance_routes(admin.maintenance),
        *topic_policy_routes(admin.topic_policies),
        *subscription_routes(admin.subscriptions, admin.maintenance),
        *cluster_routes(admin.namespaces, admin.brokers),
        *tenant_routes(admin.tenants, admin.namespaces),
        *namespace_routes(admin),
        *policy_routes(admin.namespaces),
        *permission_routes(admin.tenants, admin.topics),
        *schema_routes(admin.schemas),
        *scalable_routes(admin.scalable_topics),
        *timeline_routes(admin.timeline),
        *access_routes(allowed),
        *operation_routes(admin.journal),
        *message_routes(admin.messages),
        *topic_migration_routes(admin.topic_migration),
        *auto_scale_routes(admin.auto_scale),
        *publish_routes(admin.publishing),
        *metadata_migration_routes(admin.metadata_migration),
        *ledger_routes(admin.ledgers),
        *broker_routes(admin, version),
    ]
    routes = [
        replace(route, handler=_at_owner(admin.topics, route.handler)) if route.at_owner else route for route in routes
    ]
    routes = [
        replace(route, handler=_not_migrated(admin.topics, route.handler)) if _names_regular(route) else route
        for route in routes
    ]
    routes = [noted(admin.journal, route) for route in routes]
    router = Router([*routes, *openapi_routes(routes, version, files)])
    return router


def _names_regular(route: Route) -> bool:
    return "{topic}" in route.pattern and "persistent" in route.pattern


def _not_migrated(topics: TopicAdmin, handler: Handler) -> Handler:
    """410 for the old name of a topic that was migrated, on every broker."""

    async def handle(request: Request) -> Response:
        await topics.check_not_migrated(str(topic_of(request)))
        return await handler(request)

    return handle


def _at_owner(topics: TopicAdmin, handler: Handler) -> Handler:
    """Redirects to the owner unless this broker serves the topic of the path."""

    async def handle(request: Request) -> Response:
        await topics.check_served(str(topic_of(request)))
        return await handler(request)

    return handle
