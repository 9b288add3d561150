"""Schemas of topics and the schema policies of namespaces, for administrators. Definitions are strings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from anabranch.broker.catalog.catalog import NamespacePolicies
from anabranch.broker.errors import IncompatibleSchema
from anabranch.broker.schemas.policy import AUTO_UPDATE, STRATEGY, VALIDATION, check_policy
from anabranch.broker.schemas.registry import StoredSchema
from anabranch.broker.services import Services
from anabranch.model.names import TopicName
from anabranch.model.schema import BadSchema, Schema, SchemaType, Strategy, key_value_data, key_value_parts, parse_json


class SchemaAdmin:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services

    async def get(self, topic: str, version: int | None) -> dict[str, Any]:
        """`version, type, timestamp, data, properties`; NotFound."""
        return _shown(await self._services().schemas.get(TopicName.parse(topic), version))

    async def history(self, topic: str) -> list[dict[str, Any]]:
        """Live versions, oldest first."""
        return [_shown(one) for one in await self._services().schemas.history(TopicName.parse(topic))]

    async def register(self, topic: str, kind: str, definition: str, properties: Mapping[str, str]) -> int:
        """The version of the schema, which is new or not. The topic need not exist."""
        schema = _posted(kind, definition, properties)
        return await self._services().schemas.register(TopicName.parse(topic), schema, by_administrator=True)

    async def check(
        self, topic: str, kind: str, definition: str, properties: Mapping[str, str]
    ) -> tuple[str, str | None]:
        """The strategy in force, and why the schema is not compatible (None if it is)."""
        name, schemas = TopicName.parse(topic), self._services().schemas
        strategy = (await schemas.policy_of(name)).strategy
        try:
            await schemas.check(name, _posted(kind, definition, properties))
        except IncompatibleSchema as error:
            return strategy.value, error.reason
        return strategy.value, None

    async def find(self, topic: str, kind: str, definition: str, properties: Mapping[str, str]) -> int | None:
        return await self._services().schemas.find(TopicName.parse(topic), _posted(kind, definition, properties))

    async def delete(self, topic: str, force: bool) -> int:
        """The number of the deletion; -1 if the whole history was deleted."""
        name = TopicName.parse(topic)
        await self._services().catalog.policies(name.namespace_path)
        return await self._services().schemas.delete(name, force=force)

    async def get_policy(self, namespace: str, policy: str, applied: bool) -> Any:
        """The policy as set, or what Pulsar shows if it is not; with `applied` the one in force."""
        services = self._services()
        said = (await services.catalog.policies(namespace)).other.get(policy)
        holds = await services.schemas.policy(namespace)
        applies = {STRATEGY: holds.strategy.value, VALIDATION: holds.validation_enforced}
        if applied and policy in applies:
            return applies[policy]
        unset = {STRATEGY: Strategy.UNDEFINED.value, VALIDATION: False, AUTO_UPDATE: holds.auto_update}
        return unset.get(policy) if said is None else said

    async def set_policy(self, namespace: str, policy: str, value: Any) -> None:
        """None removes it."""
        check_policy(policy, value)

        def change(before: NamespacePolicies) -> NamespacePolicies:
            others = {name: said for name, said in before.other.items() if name != policy}
            return replace(before, other=others if value is None else {**others, policy: value})

        await self._services().catalog.change_policies(namespace, change)


def _posted(kind: str, definition: str, properties: Mapping[str, str]) -> Schema:
    type_ = SchemaType.named(kind)
    data = _key_value_from_text(definition) if type_ is SchemaType.KEY_VALUE else definition.encode()
    return Schema(type_, data, dict(properties))


def _key_value_from_text(definition: str) -> bytes:
    """`{"key": …, "value": …}`: each an Avro definition as JSON, or "" for types without a definition."""
    parts = parse_json(definition.encode())
    if not isinstance(parts, dict) or not {"key", "value"} <= parts.keys():
        raise BadSchema('a KEY_VALUE definition is an object like {"key": "", "value": {…}}')
    return key_value_data(*(_part_bytes(parts[name]) for name in ("key", "value")))


def _part_bytes(part: Any) -> bytes:
    return b"" if part in ("", None) else json.dumps(part).encode()


def _shown(stored: StoredSchema) -> dict[str, Any]:
    schema = stored.schema
    text = schema.data.decode(errors="replace")
    if schema.type is SchemaType.KEY_VALUE:
        key, value = (_part_shown(part.data) for part in key_value_parts(schema))
        text = json.dumps({"key": key, "value": value}, separators=(",", ":"))
    return {
        "version": stored.version,
        "type": schema.type.name,
        "timestamp": stored.registered_ms,
        "data": text,
        "properties": dict(schema.properties),
    }


def _part_shown(data: bytes) -> Any:
    try:
        return parse_json(data) if data else ""
    except BadSchema:
        return data.decode(errors="replace")
