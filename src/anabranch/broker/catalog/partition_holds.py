"""A migration against growth and deletion of the same partitioned topic. The record of its partitions decides.

| call | writes first | then looks for |
|---|---|---|
| migration | the scalable topic's record | the mark of a deletion, another number of partitions: it is undone |
| deletion | the mark of the deletion | the scalable topic's record: it removes the mark and is refused |
| growth | nothing before its end | a record that it has read and that has changed since: it is refused |

Each of the first two sees the other, or is seen by it, so never do both go on. The migration also writes the record
again as it is, which makes a growth fail that has begun before. The mark of a deletion that was interrupted stays:
some partitions may be gone, so the deletion must be repeated.
"""

from __future__ import annotations

import json

from anabranch.metadata.interface import KeyMissing, MetadataStore, VersionMismatch
from anabranch.model.errors import NotAllowed

CAS_TRIES = 16
DELETING = "deleting"
"""Field of the record: the partitions are being deleted."""


async def hold(store: MetadataStore, key: str, count: int) -> bool:
    """Called when a migration is planned. False if the topic has another number of partitions (0: it has none), or its
    deletion has begun."""
    for _ in range(CAS_TRIES):
        await store.sync()
        found = await store.get(key)
        if found is None:
            return not count
        record = json.loads(found.value)
        if record["partitions"] != count or record.get(DELETING):
            return False
        try:
            await store.put(key, found.value, expected=found.version)
        except (VersionMismatch, KeyMissing):
            continue
        return True
    return False


async def mark_deletion(store: MetadataStore, key: str, *, is_deleting: bool) -> None:
    for _ in range(CAS_TRIES):
        found = await store.get(key)
        if found is None:
            return
        record = json.loads(found.value)
        changed = {name: value for name, value in record.items() if name != DELETING}
        changed |= {DELETING: True} if is_deleting else {}
        if changed == record:
            return
        try:
            await store.put(key, json.dumps(changed).encode(), expected=found.version)
        except (VersionMismatch, KeyMissing):
            continue
        return
    raise NotAllowed("the partitions of the topic have too many concurrent changes; try again")
