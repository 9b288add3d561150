"""Opens the store of a cluster by a URL that may be outdated: a store that was moved names its successor."""

from __future__ import annotations

from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.migration.participant import OpenTarget
from anabranch.metadata.migration.record import MIGRATION, MigrationRecord, Phase, Role
from anabranch.model.errors import NotAllowed
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

HOPS_MAX = 16


class NotComplete(NotAllowed):
    """The store is the target of a migration that has not completed."""

    code = "metadata-migration-incomplete"


async def open_current(url: str, open_store: OpenTarget) -> tuple[str, MetadataStore]:
    """The opened store, and its URL. Raises NotComplete for a target that is still being copied to."""
    seen = [url]
    while True:
        store = open_store(seen[-1])
        await store.open()
        try:
            found = await store.get(MIGRATION)
            record = None if found is None else MigrationRecord.from_bytes(found.value)
            if record is not None and record.role is Role.TARGET and record.phase is not Phase.COMPLETED:
                raise NotComplete("this metadata store is the target of a migration that has not completed")
            if record is None or not record.has_moved:
                return seen[-1], store
            if record.target_url in seen or len(seen) > HOPS_MAX:
                raise NotComplete(f"metadata stores name each other as successors: {len(seen)} stores visited")
        except BaseException:
            await store.close()
            raise
        await store.close()
        seen.append(record.target_url)
        log.warning("metadata has moved to another store; set metadata.url to it")
