"""Ledgers on Apache BookKeeper: where their copies are, what is wrong with them, orphans."""

from __future__ import annotations

from typing import Any

from anabranch.admin.group import Group

ROOT = "/anabranch/v1/ledgers"


class Ledgers(Group):
    async def list(self, *, after: int = -1, limit: int = 100) -> dict[str, Any]:
        """`ledgers` with ids above `after`, and `next`, which continues the list."""
        return await self._object("GET", ROOT, query={"limit": limit, **({"after": after} if after >= 0 else {})})

    async def show(self, ledger: int) -> dict[str, Any]:
        """With its topic, and with `replicas`: what each bookie answered about the last entry it should have."""
        return await self._object("GET", f"{ROOT}/{ledger}")

    async def check(self, *, orphan_age_s: int = 3600) -> dict[str, Any]:
        """Reads the metadata of all ledgers and all topic records: `underReplicated`, `orphans`, `missing`."""
        return await self._object("GET", f"{ROOT}/check", query={"orphanAgeSeconds": orphan_age_s})

    async def recover(self, ledger: int) -> dict[str, Any]:
        """Closes the ledger, which fences its writer; the topic continues in a new one."""
        return await self._object("POST", f"{ROOT}/{ledger}/recover")

    async def delete_orphans(self, *, dry_run: bool = True, orphan_age_s: int = 3600) -> dict[str, Any]:
        """Deletes ledgers of this cluster that no topic record names; with `dry_run` it only lists them."""
        query = {"dryRun": dry_run, "orphanAgeSeconds": orphan_age_s}
        return await self._object("DELETE", f"{ROOT}/orphans", query=query)
