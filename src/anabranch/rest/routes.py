"""The whole table of routes. The place to look for what the HTTP port serves."""

from __future__ import annotations

from anabranch.rest.face import BrokerFace
from anabranch.rest.openapi import openapi_routes
from anabranch.rest.router import Router
from anabranch.rest.routes_broker import broker_routes
from anabranch.rest.routes_clusters import cluster_routes
from anabranch.rest.routes_lookup import lookup_routes
from anabranch.rest.routes_namespaces import namespace_routes
from anabranch.rest.routes_permissions import permission_routes
from anabranch.rest.routes_policies import policy_routes
from anabranch.rest.routes_schemas import schema_routes
from anabranch.rest.routes_subscriptions import subscription_routes
from anabranch.rest.routes_tenants import tenant_routes
from anabranch.rest.routes_topic_care import topic_care_routes
from anabranch.rest.routes_topics import topic_routes


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
        *broker_routes(face, version),
    ]
    return Router([*routes, *openapi_routes(routes, version)])
