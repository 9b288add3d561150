"""Conflict of a regular and a scalable topic of one name: if both are created concurrently, exactly one stays.

| regular topic                                   | scalable topic                                                   |
|-------------------------------------------------|------------------------------------------------------------------|
| writes its record                               | writes its record, without a leader term                         |
| then checks for a scalable one:                 | then checks for a regular one, before it is led for the first    |
| without a leader term: deletes that record;     | time: if there is one, deletes its own record;                   |
| with a leader term: deletes its own             | otherwise its leader writes the first term into the record       |

Deleting the scalable topic's record and writing the first term into it are compare-and-sets of one record, so one of
them fails. Both checks come after the own write, so at least one creator sees the other's record.

A creator that crashes between its write and its check leaves both records. The next check applies the same rule: a
regular name is checked on every use (`Catalog.check_regular`, `TopicFactory`), and the leader of a scalable topic
resolves its name each time it starts (`resolve_for_scalable`). A regular topic beside a led scalable one has never
passed its check, so it never admitted a client and is empty; it is deleted. One that an older version admitted clients
to, as its records show, is kept and refused.
"""

from __future__ import annotations

import json

from anabranch.broker.catalog.migrated_topics import migrated_topic
from anabranch.metadata.interface import KeyMissing, MetadataStore, Version, VersionMismatch
from anabranch.model.errors import AlreadyExists
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.runtime.logs import get_logger
from anabranch.storage.topic.topic_record import decode_record

log = get_logger(__name__)


async def resolve_for_regular(store: MetadataStore, topic: TopicName, *, sync: bool = True) -> None:
    """After the regular topic's record is written. Raises AlreadyExists if that record has to be deleted;
    StoreUnavailable. Without `sync` the record must be older than any concurrent creation."""
    while True:
        if sync:
            await store.sync()
        found = await store.get(scalable_topic_key(topic))
        if found is None:
            return
        if migrated_topic(found.value) is not None or int(json.loads(found.value).get("leaderTerm", 0)) > 0:
            raise AlreadyExists(f"{topic.scalable} already exists: a regular topic cannot have its name")
        try:
            await store.delete(scalable_topic_key(topic), expected=found.version)
        except (VersionMismatch, KeyMissing):
            continue  # it got its first term, or was deleted, meanwhile


async def resolve_for_scalable(store: MetadataStore, topic: TopicName, record_key: str, partitioned_key: str) -> None:
    """For a scalable topic that is led: deletes the records of a regular one that never admitted a client. A topic that
    was migrated wraps the regular one's topics; only its number of partitions is obsolete, once it is committed."""
    scalable = await store.get(scalable_topic_key(topic))
    migrated = None if scalable is None else migrated_topic(scalable.value)
    if migrated is not None:
        found = None if migrated.is_running else await store.get(partitioned_key)
        if found is not None:
            await _remove(store, partitioned_key, found.version)
        return
    found = await store.get(record_key)
    if found is not None and decode_record(found.value).epoch == 1:
        await _remove(store, record_key, found.version)
    found = await store.get(partitioned_key)
    if found is not None and not await _has_partitions(store, record_key, int(json.loads(found.value)["partitions"])):
        await _remove(store, partitioned_key, found.version)


async def _has_partitions(store: MetadataStore, record_key: str, count: int) -> bool:
    for number in range(count):
        if await store.get(f"{record_key}-partition-{number}") is not None:
            return True
    return False


async def _remove(store: MetadataStore, key: str, version: Version) -> None:
    try:
        await store.delete(key, expected=version)
    except (VersionMismatch, KeyMissing):
        return  # its creator deleted it, or will do so at its check
    log.info("deleted the record of a regular topic that conflicts with a scalable one", extra={"key": key})
