"""What HTTP may ask about schemas. Names come decoded and full, definitions as text, policies under Pulsar's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class SchemaFace(Protocol):
    async def get(self, topic: str, version: int | None) -> dict[str, Any]:
        """version, type, timestamp, data, properties; NotFound when there is none."""

    async def history(self, topic: str) -> list[dict[str, Any]]:
        """Live versions, oldest first."""

    async def register(self, topic: str, kind: str, definition: str, properties: Mapping[str, str]) -> int:
        """The version it has now. The topic need not exist."""

    async def check(
        self, topic: str, kind: str, definition: str, properties: Mapping[str, str]
    ) -> tuple[str, str | None]:
        """The strategy that holds, and why the schema does not fit (None when it does)."""

    async def find(self, topic: str, kind: str, definition: str, properties: Mapping[str, str]) -> int | None: ...

    async def delete(self, topic: str, force: bool) -> int:
        """The number the deletion takes; -1 when the whole history went."""

    async def get_policy(self, namespace: str, policy: str, applied: bool) -> Any:
        """None: never set."""

    async def set_policy(self, namespace: str, policy: str, value: Any) -> None:
        """None takes it away."""
