"""The whole table of routes. The place to look for what the HTTP port serves."""

from __future__ import annotations

from dataclasses import replace

from anabranch.rest.face import BrokerFace
from anabranch.rest.http_message import Request, Response
from anabranch.rest.openapi.document import openapi_routes
from anabranch.rest.router import Handler, Router
from anabranch.rest.routes.brokers import broker_routes
from anabranch.rest.routes.clusters import cluster_routes
from anabranch.rest.routes.lookup import lookup_routes
from anabranch.rest.routes.namespaces import namespace_routes
from anabranch.rest.routes.permissions import permission_routes
from anabranch.rest.routes.policies import policy_routes
from anabranch.rest.routes.publish import publish_routes
from anabranch.rest.routes.scalable_topics import scalable_routes
from anabranch.rest.routes.schemas import schema_routes
from anabranch.rest.routes.subscriptions import subscription_routes
from anabranch.rest.routes.tenants import tenant_routes
from anabranch.rest.routes.topic_maintenance import topic_care_routes
from anabranch.rest.routes.topics import topic_routes
from anabranch.rest.topic_path import topic_of


def make_router(face: BrokerFace, version: str) -> Router:
    routes = [
        *lookup_routes(face),
        *topic_routes(face),
        *topic_care_routes(face.care),
        *subscription_routes(face.cursors, face.care),
        *cluster_routes(face.policies),
        *tenant_routes(face),
        *namespace_routes(face),
        *policy_routes(face.policies),
        *permission_routes(face),
        *schema_routes(face.schemas),
        *scalable_routes(face.scalable),
        *publish_routes(face.publishing),
        *broker_routes(face, version),
    ]
    routes = [replace(route, handler=_at_owner(face, route.handler)) if route.call_owner else route for route in routes]
    return Router([*routes, *openapi_routes(routes, version)])


def _at_owner(face: BrokerFace, handler: Handler) -> Handler:
    """Only where the topic of the path is served."""

    async def handle(request: Request) -> Response:
        await face.check_served(str(topic_of(request)))
        return await handler(request)

    return handle
