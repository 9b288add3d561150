"""The blocking form of `anabranch.admin.ledgers`. Written by scripts/generate_blocking_admin.py; edit
that module, not this one."""

from __future__ import annotations

from typing import Any

from anabranch.admin.blocking.group import Group

ROOT = "/anabranch/v1/ledgers"


class Ledgers(Group):
    def list(self, *, after: int = -1, limit: int = 100) -> dict[str, Any]:
        """`ledgers` with ids above `after`, and `next`, which continues the list."""
        return self._object("GET", ROOT, query={"limit": limit, **({"after": after} if after >= 0 else {})})

    def show(self, ledger: int) -> dict[str, Any]:
        """With its topic, and with `replicas`: what each bookie answered about the last entry it should have."""
        return self._object("GET", f"{ROOT}/{ledger}")

    def check(self, *, orphan_age_s: int = 3600) -> dict[str, Any]:
        """Reads the metadata of all ledgers and all topic records: `underReplicated`, `orphans`, `missing`."""
        return self._object("GET", f"{ROOT}/check", query={"orphanAgeSeconds": orphan_age_s})

    def recover(self, ledger: int) -> dict[str, Any]:
        """Closes the ledger, which fences its writer; the topic continues in a new one."""
        return self._object("POST", f"{ROOT}/{ledger}/recover")

    def delete_orphans(self, *, dry_run: bool = True, orphan_age_s: int = 3600) -> dict[str, Any]:
        """Deletes ledgers of this cluster that no topic record names; with `dry_run` it only lists them."""
        query = {"dryRun": dry_run, "orphanAgeSeconds": orphan_age_s}
        return self._object("DELETE", f"{ROOT}/orphans", query=query)
