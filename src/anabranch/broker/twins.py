"""One name, one topic: when a regular and a scalable one are made at the same moment, exactly one of them stays.

| regular topic                                   | scalable topic                                                 |
|-------------------------------------------------|----------------------------------------------------------------|
| writes its record                               | writes its record, which nobody leads yet                      |
| then looks for a scalable one (`settle`):       | then looks for a regular one, before it is led for the first   |
| not led yet: takes that away, and stays;        | time: if there is one, its record goes;                        |
| led: takes its own back                         | otherwise its leader writes its term into it                   |

Taking the record away and writing the first term into it are compare-and-sets of one record: one of them fails. Both
looks come after the own write, so one of the two sees the other. Knows the store, and of the scalable topic's record
where it is and whether it was ever led.
"""

from __future__ import annotations

import json

from anabranch.metadata.port import KeyMissing, MetadataStore, VersionMismatch
from anabranch.model.errors import AlreadyExists
from anabranch.model.names import TopicName


def scalable_key(topic: TopicName) -> str:
    """Whatever the domain of the name."""
    twin = topic.scalable
    return f"/topics/{twin.namespace_path}/{twin.encoded_local}"


async def settle(store: MetadataStore, topic: TopicName) -> None:
    """After the regular topic's record was written. Raises AlreadyExists when it has to go; StoreUnavailable."""
    while True:
        await store.sync()
        found = await store.get(scalable_key(topic))
        if found is None:
            return
        if int(json.loads(found.value).get("leaderTerm", 0)) > 0:
            raise AlreadyExists(f"{topic.scalable} already exists: a regular topic cannot have its name")
        try:
            await store.delete(scalable_key(topic), expected=found.version)
        except (VersionMismatch, KeyMissing):
            continue  # it was led, or gave way, at this moment
