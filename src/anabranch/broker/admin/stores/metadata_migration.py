"""Migration of the metadata store (PIP-454), for administrators."""

from __future__ import annotations

from typing import Any

from anabranch.metadata.migration.service import MetadataMigration
from anabranch.model.errors import NotReady


class MetadataMigrationAdmin:
    def __init__(self, migration: MetadataMigration | None) -> None:
        """None: the process has no store that can be moved, as in tests without a node."""
        self._migration = migration

    @property
    def _here(self) -> MetadataMigration:
        if self._migration is None:
            raise NotReady("this broker cannot move its metadata")
        return self._migration

    async def start(self, target_url: str, *, rate: int | None, purge_target: bool) -> None:
        """`rate`: records per second, 0 for no limit, None to yield to the clients of the broker."""
        await self._here.start(target_url, rate=rate, purge_target=purge_target)

    async def status(self) -> dict[str, Any]:
        return await self._here.status()

    async def abort(self) -> None:
        await self._here.abort()

    async def verify(self) -> dict[str, Any]:
        return await self._here.verify()

    def gauges(self) -> dict[str, float]:
        return {} if self._migration is None else self._migration.gauges()
