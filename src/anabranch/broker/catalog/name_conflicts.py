"""One name, one topic: when a regular and a scalable one are made at the same moment, exactly one of them stays.

| regular topic                                   | scalable topic                                                 |
|-------------------------------------------------|----------------------------------------------------------------|
| writes its record                               | writes its record, which nobody leads yet                      |
| then looks for a scalable one (`settle`):       | then looks for a regular one, before it is led for the first   |
| not led yet: takes that away, and stays;        | time: if there is one, its record goes;                        |
| led: takes its own back                         | otherwise its leader writes its term into it                   |

Taking the record away and writing the first term into it are compare-and-sets of one record: one of them fails. Both
looks come after the own write, so one of the two sees the other.

Whoever dies between its write and its look leaves both. Then the same rule is applied by the next one who looks: a
regular name is looked at so whenever it is used (`Catalog.check_regular`, `TopicFactory`), and the leader of a scalable
topic clears its name (`clear`) whenever it begins. A regular topic beside a scalable one that is led never passed its
own look, so nobody was ever let in: nothing is in it, and it can go. (One that an older version let clients into all
the same, which shows in its records, is kept and refused.)

Knows the store, and of the scalable topic's record where it is and whether it was ever led.
"""

from __future__ import annotations

import json
import logging

from anabranch.metadata.interface import KeyMissing, MetadataStore, Version, VersionMismatch
from anabranch.model.errors import AlreadyExists
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.storage.topic.topic_record import decode_record

log = logging.getLogger(__name__)


async def settle(store: MetadataStore, topic: TopicName, *, sync: bool = True) -> None:
    """The regular topic's record is there. Raises AlreadyExists when it has to go; StoreUnavailable. Without `sync` the
    record must have been there for a while."""
    while True:
        if sync:
            await store.sync()
        found = await store.get(scalable_topic_key(topic))
        if found is None:
            return
        if int(json.loads(found.value).get("leaderTerm", 0)) > 0:
            raise AlreadyExists(f"{topic.scalable} already exists: a regular topic cannot have its name")
        try:
            await store.delete(scalable_topic_key(topic), expected=found.version)
        except (VersionMismatch, KeyMissing):
            continue  # it was led, or gave way, at this moment


async def clear(store: MetadataStore, record_key: str, partitioned_key: str) -> None:
    """The scalable topic is led: what the making of a regular one left at these keys goes, if nobody ever came in."""
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
        return  # whoever made it has withdrawn it, or is about to: it looks after its write
    log.info("regular topic beside a scalable one removed", extra={"key": key})
