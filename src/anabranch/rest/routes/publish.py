"""Publishing of a few messages over HTTP."""

from __future__ import annotations

import base64
import json
from typing import Any

from anabranch.broker.admin.publish import Outgoing, PublishAdmin
from anabranch.model.errors import BadRequest
from anabranch.model.position import Position
from anabranch.model.schema import Schema, SchemaType
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.params import topic_of
from anabranch.rest.router import Route
from anabranch.rest.routes.lookup import TOPIC_PARAMS
from anabranch.security.permissions import TOPIC_PRODUCE

_FORM = '{"messages": [{"payload": "hello", "key": "k", "properties": {"a": "b"}}]}'
TIME_MS_MAX = 1 << 62
REFUSED = 1  # any error number; the text has the reason


def parse_messages(body: Any) -> list[Outgoing]:
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise BadRequest(f"the body must be an object like {_FORM}")
    return [_message(one) for one in body["messages"]]


def _message(value: Any) -> Outgoing:
    if not isinstance(value, dict):
        raise BadRequest(f"a message is an object, as in {_FORM}")
    key, properties = value.get("key"), value.get("properties") or {}
    if not isinstance(key, str | None):
        raise BadRequest("key must be a string")
    if not isinstance(properties, dict) or not all(isinstance(one, str) for one in properties.values()):
        raise BadRequest("properties must be an object of strings")
    try:
        return Outgoing(
            _payload(value),
            key,
            {_utf8(name): _utf8(one) for name, one in properties.items()},
            _time(value, "eventTime"),
            _time(value, "deliverAt"),
        )
    except UnicodeEncodeError as error:
        raise BadRequest("strings must be Unicode without lone surrogates") from error


def _payload(value: dict[str, Any]) -> bytes:
    """`payload` is text, or any JSON; `payloadBase64` gives bytes that are neither."""
    if "payloadBase64" in value:
        try:
            return base64.b64decode(value["payloadBase64"], validate=True)
        except (TypeError, ValueError) as error:
            raise BadRequest("payloadBase64 must be base64") from error
    payload = value.get("payload", "")
    return (payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)).encode()


def _utf8(text: str) -> str:
    text.encode()
    return text


def _time(value: dict[str, Any], name: str) -> int:
    try:
        number = int(value.get(name) or 0)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{name} is milliseconds since 1970") from error
    if not 0 <= number <= TIME_MS_MAX:
        raise BadRequest(f"{name} is milliseconds since 1970")
    return number


def parse_schema(text: Any) -> Schema | None:
    """An object as JSON text, or the object itself, as with Pulsar."""
    if text is None or text == "":
        return None
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        raise BadRequest(f"valueSchema is not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise BadRequest('valueSchema is like {"type": "STRING"}')
    definition = value.get("schema") or ""
    if not isinstance(definition, str):
        definition = json.dumps(definition)
    return Schema(SchemaType.named(value["type"]), definition.encode())


class PublishCalls:
    def __init__(self, admin: PublishAdmin) -> None:
        self._admin = admin

    async def publish(self, request: Request) -> Response:
        body = request.json()
        messages = parse_messages(body)
        name = body.get("producerName") or ""
        if not isinstance(name, str) or len(name) > 1_024:
            raise BadRequest("producerName must be a string of at most 1024 characters")
        schema = parse_schema(body.get("valueSchema"))
        done = await self._admin.publish(str(topic_of(request)), messages, schema, name)
        version = -1 if done.schema_version is None else done.schema_version
        shown = [_result(one, version) for one in done.results]
        return json_response({"messagePublishResults": shown, "schemaVersion": version})

    async def publish_scalable(self, request: Request) -> Response:
        messages = parse_messages(request.json())
        return json_response({"results": await self._admin.publish_scalable(str(topic_of(request)), messages)})


def _result(one: Position | str, version: int) -> dict[str, Any]:
    if isinstance(one, str):
        return {"messageId": None, "errorCode": REFUSED, "errorMsg": one, "schemaVersion": version}
    return {"messageId": f"{one.ledger}:{one.entry}:-1", "errorCode": 0, "schemaVersion": version}


def publish_routes(admin: PublishAdmin) -> list[Route]:
    calls = PublishCalls(admin)
    return [
        Route(
            "POST",
            f"/topics/{TOPIC_PARAMS}",
            calls.publish,
            "Publish messages whose payload is text",
            TOPIC_PRODUCE,
            at_owner=True,
        ),
        Route(
            "POST",
            "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/messages",
            calls.publish_scalable,
            "Publish messages to the segments of their keys; the answer has segment and position of each",
            TOPIC_PRODUCE,
        ),
    ]
