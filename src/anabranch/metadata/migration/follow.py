"""Opens the store of a cluster by a URL that may be outdated: a store that was moved names its successor."""

from __future__ import annotations

from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.migration.participant import OpenTarget, mark_complete
from anabranch.metadata.migration.record import MigrationRecord, read_record
from anabranch.model.errors import NotAllowed
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

HOPS_MAX = 16


class NotComplete(NotAllowed):
    """The store is the target of a migration that has not completed."""

    code = "metadata-migration-incomplete"


async def open_current(url: str, open_store: OpenTarget, now_ms: int) -> tuple[str, MetadataStore]:
    """The opened store, and its URL. A store that was moved names its target, an incomplete target names its source.

    A cluster may have stopped between the decision in the source and the mark in the target. The mark is then written.
    """
    seen = [url]
    decided: MigrationRecord | None = None
    while True:
        store = open_store(seen[-1])
        try:
            await store.open()
            await store.sync()
            record = await read_record(store)
            if record is not None and record.is_abandoned_target and decided is not None and decided.run == record.run:
                await mark_complete(store, decided, now_ms)
                return seen[-1], store
            follows = successor(record)
            if not follows:
                return seen[-1], store
            if seen.count(follows) > 1 or len(seen) > HOPS_MAX:
                raise NotComplete(f"metadata stores name each other as the one in use: {len(seen)} stores visited")
        except BaseException:
            await store.close()
            raise
        await store.close()
        decided = record
        seen.append(follows)
        log.warning("the metadata of the cluster is in another store; set metadata.url to it")


def successor(record: MigrationRecord | None) -> str:
    """URL of the store to look at next; empty if the store with this record is in use."""
    if record is None:
        return ""
    if record.has_moved:
        return record.target_url
    if record.is_abandoned_target and not record.source_url:
        raise NotComplete("this metadata store is the target of a migration that has not completed")
    return record.source_url if record.is_abandoned_target else ""
