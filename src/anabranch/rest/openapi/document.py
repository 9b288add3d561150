"""The OpenAPI document of the HTTP port, made from the routes, and the page that shows it.

Paths, methods and summaries come from the routes. Query parameters and bodies are in the tables here; a test compares
them with the routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.broker.catalog.policy_fields import RULES
from anabranch.broker.catalog.topic_policies import TOPIC_POLICIES
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.openapi import topic_migration_schemas as topic_migration
from anabranch.rest.openapi.auto_scale_schemas import OVERRIDE
from anabranch.rest.openapi.result_schemas import EVENTS, FLAG, NUMBER, RESULTS, TEXT, TEXTS, WORDS, Schema
from anabranch.rest.router import Route
from anabranch.rest.static_files import StaticFiles
from anabranch.security.permissions import OPEN, SIGNED_IN

_PART = re.compile(r"\{(\w+)(?::([^}]*))?\}")
NUMBERS = {"timestamp", "count", "seconds", "number", "ledger", "entry", "version", "segment", "other"}
ANYTHING: Schema = {}
POSITION: Schema = {
    "oneOf": [
        {"type": "string", "enum": ["earliest", "latest"]},
        {"type": "object", "properties": {"ledgerId": NUMBER, "entryId": NUMBER}},
    ]
}
SCHEMA: Schema = {"type": "object", "properties": {"type": TEXT, "schema": TEXT, "properties": WORDS}}
TENANT: Schema = {"type": "object", "properties": {"adminRoles": TEXTS, "allowedClusters": TEXTS}}
OUTGOING: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"payload": TEXT, "payloadBase64": TEXT, "key": TEXT, "properties": WORDS},
    },
}
CLUSTER: Schema = {"type": "object", "properties": {"serviceUrl": TEXT, "brokerServiceUrl": TEXT}}
GRANTS: Schema = {"type": "array", "items": {"type": "object", "properties": {"topic": TEXT, "role": TEXT}}}
STATS = {
    "getPreciseBacklog": FLAG,
    "subscriptionBacklogSize": FLAG,
    "getEarliestTimeInBacklog": FLAG,
    "excludePublishers": FLAG,
    "excludeConsumers": FLAG,
}

QUERY: dict[tuple[str, str], dict[str, Schema]] = {
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"): {"authoritative": FLAG, "listenerName": TEXT},
    ("DELETE", "{topic}"): {"force": FLAG},
    ("DELETE", "{topic}/partitions"): {"force": FLAG},
    ("GET", "{topic}/partitions"): {"checkAllowAutoCreation": FLAG},
    ("GET", "{topic}/stats"): STATS,
    ("GET", "{topic}/partitioned-stats"): {**STATS, "perPartition": FLAG},
    ("DELETE", "{topic}/properties"): {"key": TEXT},
    ("GET", "{topic}/examinemessage"): {
        "initialPosition": {"type": "string", "enum": ["earliest", "latest"]},
        "messagePosition": NUMBER,
    },
    ("DELETE", "{topic}/subscription/{subscription}"): {"force": FLAG},
    ("DELETE", "{topic}/schema"): {"force": FLAG},
    ("DELETE", "/admin/v2/tenants/{tenant}"): {"force": FLAG},
    ("DELETE", "/admin/v2/namespaces/{tenant}/{namespace}"): {"force": FLAG},
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics"): {
        "mode": {"type": "string", "enum": ["PERSISTENT", "NON_PERSISTENT", "ALL"]}
    },
    ("POST", "{namespace}/backlogQuota"): {
        "backlogQuotaType": {"type": "string", "enum": ["destination_storage", "message_age"]}
    },
    ("DELETE", "{namespace}/backlogQuota"): {
        "backlogQuotaType": {"type": "string", "enum": ["destination_storage", "message_age"]}
    },
    ("PUT", "{bundle}/unload"): {"destinationBroker": TEXT},
    ("GET", "/anabranch/v1/ledgers"): {"after": NUMBER, "limit": NUMBER},
    ("GET", "/ledgers/check"): {"orphanAgeSeconds": NUMBER},
    ("DELETE", "/ledgers/orphans"): {"dryRun": FLAG, "orphanAgeSeconds": NUMBER},
    ("PUT", "{bundle}/split"): {"unload": FLAG, "splitAlgorithmName": TEXT},
}
"""Query parameters by method and end of the path."""

BODIES: dict[tuple[str, str], Schema] = {
    ("PUT", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"): WORDS,
    ("PUT", "{topic}/partitions"): NUMBER,
    ("POST", "{topic}/partitions"): NUMBER,
    ("PUT", "{topic}/properties"): WORDS,
    ("PUT", "{topic}/backlogSize"): POSITION,
    ("PUT", "/subscription/{subscription}"): POSITION,
    ("PUT", "/subscription/{subscription}/properties"): WORDS,
    ("POST", "/subscription/{subscription}/resetcursor"): POSITION,
    ("POST", "/subscription/{subscription}/expireMessages"): POSITION,
    ("POST", "/subscription/{subscription}/analyzeBacklog"): POSITION,
    ("POST", "/replicatedSubscriptionStatus"): FLAG,
    ("PUT", "/admin/v2/tenants/{tenant}"): TENANT,
    ("POST", "/admin/v2/tenants/{tenant}"): TENANT,
    ("PUT", "/admin/v2/clusters/{cluster}"): CLUSTER,
    ("POST", "/admin/v2/clusters/{cluster}"): CLUSTER,
    ("PUT", "/admin/v2/namespaces/{tenant}/{namespace}"): {"type": "object"},
    ("PUT", "{namespace}/properties"): WORDS,
    ("POST", "{namespace}/backlogQuota"): {"type": "object"},
    ("POST", "{namespace}/replication"): TEXTS,
    ("POST", "{namespace}/allowedClusters"): TEXTS,
    ("POST", "{namespace}/antiAffinity"): TEXT,
    ("POST", "/permissions/{role}"): TEXTS,
    ("POST", "/permissions/subscription/{subscription}"): TEXTS,
    ("POST", "{namespace}/subscriptionAuthMode"): TEXT,
    ("POST", "/namespaces/grantPermissionsOnTopics"): GRANTS,
    ("POST", "/namespaces/revokePermissionsOnTopics"): GRANTS,
    ("POST", "{topic}/schema"): SCHEMA,
    ("POST", "{topic}/compatibility"): SCHEMA,
    ("POST", "{topic}/version"): SCHEMA,
    ("PUT", "{namespace}/schemaCompatibilityStrategy"): TEXT,
    ("PUT", "{namespace}/schemaAutoUpdateCompatibilityStrategy"): TEXT,
    ("POST", "{namespace}/schemaValidationEnforced"): FLAG,
    ("POST", "{namespace}/isAllowAutoUpdateSchema"): FLAG,
    **{(rule.verb, f"{{namespace}}/{rule.path}"): ANYTHING for rule in RULES},
}

BODIES |= {
    ("POST", "/topics/{domain}/{tenant}/{namespace}/{topic}"): {
        "type": "object",
        "required": ["messages"],
        "properties": {
            "producerName": TEXT,
            "valueSchema": TEXT,
            "messages": OUTGOING,
        },
    },
    ("POST", "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/messages"): {
        "type": "object",
        "required": ["messages"],
        "properties": {"messages": OUTGOING},
    },
}

_SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}"
_OPERATION = {"operationId": TEXT}

QUERY |= {
    ("GET", _SCALABLE): {"property": TEXTS},
    ("PUT", f"{_SCALABLE}/{{topic}}"): {"numInitialSegments": NUMBER},
    ("DELETE", f"{_SCALABLE}/{{topic}}"): {"force": FLAG},
    ("GET", f"{_SCALABLE}/{{topic}}/stats"): {},
    ("POST", "{topic}/split/{segment}"): {"into": NUMBER, "at": TEXT, **_OPERATION},
    ("POST", "{topic}/merge/{segment}/{other}"): _OPERATION,
    ("POST", "{topic}/merge"): {"segments": TEXT, **_OPERATION},
    ("PUT", "{topic}/subscriptions/{subscription}"): {
        "type": {"type": "string", "enum": ["STREAM", "QUEUE", "CHECKPOINT"]},
        "start": {"type": "string", "enum": ["earliest", "latest"]},
    },
    ("DELETE", "{topic}/subscriptions/{subscription}"): {"force": FLAG},
    ("POST", "{topic}/subscriptions/{subscription}/seek"): {"timestamp": NUMBER},
}
BODIES |= {("PUT", f"{_SCALABLE}/{{topic}}"): WORDS}
QUERY["GET", "{topic}/messages"] = {"count": NUMBER, "segment": NUMBER}
QUERY["GET", "/anabranch/v1/operations"] = {"count": NUMBER}
QUERY["GET", "/anabranch/v1/access"] = {"call": TEXTS}
QUERY["GET", "{topic}/messages/count"] = {"segment": NUMBER, "time": NUMBER}
QUERY["GET", "{topic}/messages/page"] = {
    **QUERY["GET", "{topic}/messages"],
    "time": NUMBER,
    "position": TEXT,
    "after": TEXT,
    "preview": NUMBER,
}
QUERY["GET", "{topic}/timeline"] = QUERY["GET", "{topic}/events"] = {"since": NUMBER}
QUERY["POST", "{topic}/migrate"] = QUERY["POST", "{topic}/migrate-to-scalable"] = topic_migration.QUERY
QUERY["POST", "/metadata/migration/start"] = {"target": TEXT, "rate": NUMBER, "purgeTarget": FLAG}
BODIES["POST", "/metadata/migration/start"] = {
    "type": "object",
    "properties": {"targetUrl": TEXT, "rate": NUMBER, "purgeTarget": FLAG},
}
for _policy in ("{topic}/autoScalePolicy", "{namespace}/scalableTopicAutoScalePolicy"):
    QUERY["GET", _policy] = {"applied": FLAG}
    BODIES["POST", _policy] = OVERRIDE
BODIES["POST", "{topic}/autoscale/try"] = OVERRIDE
QUERY["GET", "{topic}/autoscaler-metric"] = {"subscription": TEXT}

for _row in TOPIC_POLICIES:
    _shown, _changed = f"{{topic}}/{_row.path}", f"{{topic}}/{_row.entries_path or _row.path}"
    _part = {"isGlobal": FLAG}
    if _row.entries_path:
        _part[_row.entry] = {"type": "string", "enum": ["destination_storage", "message_age"]}
    QUERY["GET", _shown] = {"applied": FLAG, "isGlobal": FLAG}
    QUERY[_row.rule.verb, _changed] = {**_part, **({_row.query: NUMBER} if _row.query else {})}
    QUERY["DELETE", _changed] = _part
    BODIES[_row.rule.verb, _changed] = ANYTHING

HEADERS: dict[tuple[str, str], dict[str, str]] = {
    (method, path): {"X-Anabranch-Segment-Ids": "ids of the new segments in ring order: 1,2"}
    for method, path in (
        ("POST", "{topic}/split/{segment}"),
        ("POST", "{topic}/merge/{segment}/{other}"),
        ("POST", "{topic}/merge"),
    )
}
"""Headers of successful answers by method and end of the path."""
HEADERS |= {
    ("GET", f"{{topic}}/{row.path}"): {
        "X-Anabranch-Policy-Level": "with applied=true: topic, topic-global, namespace or broker"
    }
    for row in TOPIC_POLICIES
}

ERROR: Schema = {
    "type": "object",
    "required": ["reason", "error"],
    "properties": {"reason": TEXT, "error": TEXT},
}


def shown_path(pattern: str) -> str:
    """`/x/{domain:a|b}` as `/x/{domain}`."""
    return _PART.sub(lambda match: f"{{{match[1]}}}", pattern)


def entry_for(table: Mapping[tuple[str, str], Any], method: str, path: str) -> Any:
    """The table's longest matching end of the path; None."""
    ends = [end for verb, end in table if verb == method and path.endswith(end)]
    return table[method, max(ends, key=len)] if ends else None


def describe(routes: Iterable[Route], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = shown_path(route.pattern)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Anabranch",
            "version": version,
            "description": "Pulsar's admin REST API as this broker serves it. Errors are {reason, error}.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(route: Route, path: str) -> dict[str, Any]:
    query: Mapping[str, Schema] = entry_for(QUERY, route.method, path) or {}
    operation: dict[str, Any] = {
        "operationId": _identity(route.method, path),
        "summary": route.summary,
        "tags": [_tag(path)],
        "parameters": [
            *(_path_parameter(match[1], match[2]) for match in _PART.finditer(route.pattern)),
            *({"name": name, "in": "query", "required": False, "schema": schema} for name, schema in query.items()),
        ],
        "responses": {
            "2XX": _success(entry_for(RESULTS, route.method, path), entry_for(HEADERS, route.method, path) or {}),
            "4XX": _failure("refused: the reason says why"),
            "5XX": _failure("not possible now"),
        },
    }
    if route.at_owner:
        operation["responses"]["307"] = {"description": "in a cluster: the broker that serves the topic (Location)"}
    body = entry_for(BODIES, route.method, path)
    if body is not None:
        operation["requestBody"] = {"required": False, "content": {"application/json": {"schema": body}}}
    if route.need is not None and route.need != OPEN:
        operation["security"] = [{"token": []}, {"password": []}, {}]
    return operation


def _path_parameter(name: str, choice: str | None) -> dict[str, Any]:
    schema: Schema = NUMBER if name in NUMBERS else TEXT
    if choice:
        schema = {"type": "string", "enum": choice.split("|")}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _success(schema: Schema | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """Without a schema: nothing, bytes, or a policy that may be unset (then the body is empty)."""
    found: dict[str, Any] = {"description": "done, or what was asked for"}
    if schema is not None:
        kind = "text/event-stream" if schema is EVENTS else "application/json"
        found["content"] = {kind: {"schema": schema}}
    if headers:
        found["headers"] = {name: {"description": text, "schema": TEXT} for name, text in headers.items()}
    return found


def _failure(text: str) -> dict[str, Any]:
    return {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }


def _identity(method: str, path: str) -> str:
    return method.lower() + "_" + re.sub(r"\W+", "_", path).strip("_")


def _tag(path: str) -> str:
    """The noun of the path, as in `anabranch admin`."""
    parts = path.strip("/").split("/")
    if "subscription" in parts or parts[-1] == "subscriptions":
        return "subscriptions"
    if parts[0] == "anabranch":
        return "console" if parts[2] in ("me", "overview") else parts[2]
    if parts[0] == "admin":
        return {"{domain}": "topics", "broker-stats": "brokers"}.get(parts[2], parts[2])
    return parts[0] if parts[0] in ("lookup", "topics") else "port"


def openapi_routes(routes: list[Route], version: str, files: StaticFiles) -> list[Route]:
    """The description of the routes given and of itself."""
    described: dict[str, Any] = {}

    async def document(request: Request) -> Response:
        return json_response(described)

    async def page(request: Request) -> Response:
        return files.response(request, "docs.html")

    own = [
        Route("GET", "/openapi.json", document, "This description", SIGNED_IN),
        Route("GET", "/docs", page, "A page to read and try it", OPEN),
    ]
    described.update(describe([*routes, *own], version))
    return own
