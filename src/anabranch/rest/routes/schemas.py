"""Schemas of topics under /admin/v2/schemas, and the schema policies of namespaces."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.schemas import SchemaAdmin
from anabranch.model.errors import BadRequest
from anabranch.model.names import TopicName
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.router import Handler, Route
from anabranch.rest.routes.topics import namespace_of, parse_properties
from anabranch.security.permissions import NAMESPACE_ADMIN, TOPIC_ADMIN, TOPIC_LOOKUP

POLICIES = [  # last part of the path, how it is set, its name in the namespace's record, summary
    ("schemaCompatibilityStrategy", "PUT", "schema_compatibility_strategy", "compatibility strategy of schemas"),
    (
        "schemaAutoUpdateCompatibilityStrategy",
        "PUT",
        "schema_auto_update_compatibility_strategy",
        "compatibility strategy by its older names; used if the newer one is not set",
    ),
    ("schemaValidationEnforced", "POST", "schema_validation_enforced", "whether producers must have a schema"),
    ("isAllowAutoUpdateSchema", "POST", "is_allow_auto_update_schema", "whether clients may add schema versions"),
]
NOWHERE = {"ledgerId": -1, "entryId": -1}  # Pulsar stores schemas in ledgers; here they are metadata


def topic_of(request: Request) -> TopicName:
    """The topic that the path names; a schema does not depend on the domain."""
    params = request.params
    return TopicName.from_parts("persistent", params["tenant"], params["namespace"], params["topic"])


def parse_schema(value: Any) -> tuple[str, str, dict[str, str]]:
    """The body of a POST: type, definition as text, properties."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise BadRequest('the body must be an object like {"type": "AVRO", "schema": "…", "properties": {}}')
    definition = value.get("schema")
    if not isinstance(definition, str | None):
        raise BadRequest("the schema must be a string; a definition in JSON is sent as a string that holds JSON")
    return value["type"], definition or "", parse_properties(value.get("properties"))


def parse_version(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise BadRequest(f"a schema version is a number, not {text!r}")
    return int(text)


class SchemaCalls:
    def __init__(self, admin: SchemaAdmin) -> None:
        self._admin = admin

    async def latest(self, request: Request) -> Response:
        return json_response(await self._admin.get(str(topic_of(request)), None))

    async def version(self, request: Request) -> Response:
        return json_response(await self._admin.get(str(topic_of(request)), parse_version(request.params["version"])))

    async def history(self, request: Request) -> Response:
        return json_response({"getSchemaResponses": await self._admin.history(str(topic_of(request)))})

    async def metadata(self, request: Request) -> Response:
        places = [{**NOWHERE, "version": one["version"]} for one in await self._admin.history(str(topic_of(request)))]
        if not places:
            await self._admin.get(str(topic_of(request)), None)  # raises NotFound
        return json_response({"info": places[-1], "index": places})

    async def register(self, request: Request) -> Response:
        version = await self._admin.register(str(topic_of(request)), *parse_schema(request.json()))
        return json_response({"version": {"version": version}})

    async def check(self, request: Request) -> Response:
        strategy, objection = await self._admin.check(str(topic_of(request)), *parse_schema(request.json()))
        answer: dict[str, Any] = {"schemaCompatibilityStrategy": strategy, "compatibility": objection is None}
        if objection is not None:
            answer["reason"] = objection
        return json_response(answer, 202)

    async def find(self, request: Request) -> Response:
        version = await self._admin.find(str(topic_of(request)), *parse_schema(request.json()))
        return json_response({"version": -1 if version is None else version})

    async def delete(self, request: Request) -> Response:
        return json_response({"version": await self._admin.delete(str(topic_of(request)), request.flag("force"))})

    # -- policies of the namespace

    def get_policy(self, policy: str) -> Handler:
        async def call(request: Request) -> Response:
            value = await self._admin.get_policy(namespace_of(request), policy, request.flag("applied"))
            return NO_CONTENT if value is None else json_response(value)

        return call

    def set_policy(self, policy: str) -> Handler:
        async def call(request: Request) -> Response:
            value = request.json()
            if value is None and not request.body.strip():
                raise BadRequest("the body is missing")
            await self._admin.set_policy(namespace_of(request), policy, value)
            return NO_CONTENT

        return call


def schema_routes(admin: SchemaAdmin) -> list[Route]:
    calls = SchemaCalls(admin)
    topic = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
    routes = [
        Route("GET", f"{topic}/schema", calls.latest, "The latest schema of a topic", TOPIC_LOOKUP),
        Route("GET", f"{topic}/schema/{{version}}", calls.version, "One version of a topic's schema", TOPIC_LOOKUP),
        Route("GET", f"{topic}/schemas", calls.history, "All versions of a topic's schema, oldest first", TOPIC_LOOKUP),
        Route("GET", f"{topic}/metadata", calls.metadata, "Numbers of the versions of a topic's schema", TOPIC_LOOKUP),
        Route("POST", f"{topic}/schema", calls.register, "Add a schema; answers with its version", TOPIC_ADMIN),
        Route("POST", f"{topic}/compatibility", calls.check, "Whether a schema would be accepted", TOPIC_LOOKUP),
        Route("POST", f"{topic}/version", calls.find, "The version that a schema has; -1: none", TOPIC_LOOKUP),
        Route("DELETE", f"{topic}/schema", calls.delete, "Delete the schema; ?force=true: with history", TOPIC_ADMIN),
    ]
    for word, method, policy, summary in POLICIES:
        path = f"/admin/v2/namespaces/{{tenant}}/{{namespace}}/{word}"
        routes.append(Route("GET", path, calls.get_policy(policy), summary, NAMESPACE_ADMIN))
        routes.append(Route(method, path, calls.set_policy(policy), f"Set: {summary}", NAMESPACE_ADMIN))
    return routes
