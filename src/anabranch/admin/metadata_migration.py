"""Migration of the metadata store: start, status, abort, verify."""

from __future__ import annotations

from typing import Any

from anabranch.admin.group import Group

ROOT = "/admin/v2/metadata/migration"


class MetadataMigration(Group):
    async def start(self, target_url: str, *, rate: int | None = None, purge_target: bool = False) -> None:
        """Begins to move all metadata to the store of `target_url`; `status` tells how far it is.

        `rate` limits the copy in records per second: 0 is unlimited, None yields to the clients of the broker.
        `purge_target` allows to delete what an earlier migration has left in the target.
        """
        body: dict[str, Any] = {"targetUrl": target_url, "purgeTarget": purge_target}
        if rate is not None:
            body["rate"] = rate
        await self._done("POST", f"{ROOT}/start", body)

    async def status(self) -> dict[str, Any]:
        """With `phase`, `targetUrl`, `counts`, `participants`, `error`; `allSwitched` once it has completed."""
        return await self._object("GET", f"{ROOT}/status")

    async def abort(self) -> None:
        """Ends a migration that is not decided; the store in use stays."""
        await self._done("POST", f"{ROOT}/abort")

    async def verify(self) -> dict[str, Any]:
        """Compares both stores of the last migration: number of records, keys that differ."""
        return await self._object("POST", f"{ROOT}/verify")
