"""The blocking form of `anabranch.admin.schemas`. Written by scripts/generate_blocking_admin.py; edit
that module, not this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.admin.blocking.group import Group, Objects
from anabranch.admin.paths import schema_url


class Schemas(Group):
    """One history per topic, whatever its domain. A schema has `type`, `schema` (its definition) and `properties`."""

    def get(self, topic: str, *, version: int | None = None) -> dict[str, Any]:
        """The latest, or one version."""
        return self._object(
            "GET", schema_url(topic, "schema") if version is None else schema_url(topic, "schema", str(version))
        )

    def versions(self, topic: str) -> Objects:
        """All of them, oldest first."""
        found = self._object("GET", schema_url(topic, "schemas"))
        return list(found.get("getSchemaResponses", []))

    def metadata(self, topic: str) -> dict[str, Any]:
        """Numbers of the versions of the schema."""
        return self._object("GET", schema_url(topic, "metadata"))

    def upload(self, topic: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Returns its version; adds it if it is new."""
        return self._object("POST", schema_url(topic, "schema"), dict(schema))

    def compatible(self, topic: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Would it be accepted? Changes nothing."""
        return self._object("POST", schema_url(topic, "compatibility"), dict(schema))

    def versionschema_url(self, topic: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The number it has; -1 for none."""
        return self._object("POST", schema_url(topic, "version"), dict(schema))

    def delete(self, topic: str, *, force: bool = False) -> dict[str, Any]:
        """`force`: with its history."""
        return self._object("DELETE", schema_url(topic, "schema"), query={"force": force})
