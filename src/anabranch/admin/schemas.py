"""Schemas of topics: versions and compatibility."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.admin.group import Group, Objects
from anabranch.admin.paths import schema_url


class Schemas(Group):
    """One history per topic, whatever its domain. A schema has `type`, `schema` (its definition) and `properties`."""

    async def get(self, topic: str, *, version: int | None = None) -> dict[str, Any]:
        """The latest, or one version."""
        return await self._object(
            "GET", schema_url(topic, "schema") if version is None else schema_url(topic, "schema", str(version))
        )

    async def versions(self, topic: str) -> Objects:
        """All of them, oldest first."""
        found = await self._object("GET", schema_url(topic, "schemas"))
        return list(found.get("getSchemaResponses", []))

    async def metadata(self, topic: str) -> dict[str, Any]:
        """Numbers of the versions of the schema."""
        return await self._object("GET", schema_url(topic, "metadata"))

    async def upload(self, topic: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Returns its version; adds it if it is new."""
        return await self._object("POST", schema_url(topic, "schema"), dict(schema))

    async def compatible(self, topic: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Would it be accepted? Changes nothing."""
        return await self._object("POST", schema_url(topic, "compatibility"), dict(schema))

    async def versionschema_url(self, topic: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The number it has; -1 for none."""
        return await self._object("POST", schema_url(topic, "version"), dict(schema))

    async def delete(self, topic: str, *, force: bool = False) -> dict[str, Any]:
        """`force`: with its history."""
        return await self._object("DELETE", schema_url(topic, "schema"), query={"force": force})
