"""Terms of office: a leader of a topic takes one before it does anything, and nobody else ever has the same.

A term is a number in a record of its own, raised by compare-and-set; only who got that write confirmed leads with it
(one whose fate is unknown is never used). It is kept apart from the topic's record because terms grow per topic *name*:
what a deleted topic's leader still has under way must be refused by the segments of the topic created after it.

When a topic is deleted its term goes into one common floor, and then its own record goes: nothing is left behind per
name, and the next topic of that name begins above the floor.
"""

from __future__ import annotations

import json

from anabranch.controller.records.keys import TERM_FLOOR, term_key
from anabranch.metadata.interface import ABSENT, KeyMissing, MetadataStore, OutcomeUnknown, VersionMismatch
from anabranch.model.errors import Busy
from anabranch.model.names import TopicName

TRIES = 16


class TermContended(Busy):
    """Others take the office of this topic at the same time, again and again."""

    code = "not-leader"


class LeaderTerms:
    """`holder` is written down for people: who took the term."""

    def __init__(self, store: MetadataStore, holder: str) -> None:
        self._store, self._holder = store, holder

    async def acquire(self, topic: TopicName, above: int) -> int:
        """A term that is higher than all before, and than `above`. Raises StoreUnavailable; then none was taken."""
        key = term_key(topic)
        for _ in range(TRIES):
            found = await self._store.get(key)
            last = await self._floor() if found is None else _number(found.value)
            term = max(last, above) + 1
            value = json.dumps({"term": term, "holder": self._holder}).encode()
            try:
                await self._store.put(key, value, expected=ABSENT if found is None else found.version)
            except (VersionMismatch, OutcomeUnknown):  # if it is ours after all nobody ever leads with it
                await self._store.sync()
                continue
            if found is None:
                # The last one may have been taken, used and laid down between our look at the floor and our write.
                await self._store.sync()
                if await self._floor() >= term:
                    continue
            return term
        raise TermContended(f"the term of {topic} is taken by others")

    async def raise_floor(self, term: int) -> None:
        """Before a topic's record goes: no successor of its name gets a term that it had."""
        for _ in range(TRIES):
            found = await self._store.get(TERM_FLOOR)
            if found is not None and _number(found.value) >= term:
                return
            try:
                value = json.dumps({"term": term}).encode()
                await self._store.put(TERM_FLOOR, value, expected=ABSENT if found is None else found.version)
                return
            except (VersionMismatch, OutcomeUnknown):
                await self._store.sync()
        raise TermContended("the floor of terms is raised by too many at once")

    async def release(self, topic: TopicName, term: int) -> None:
        """After the record is gone: the memory of its terms goes, unless somebody has taken the next one already."""
        found = await self._store.get(term_key(topic))
        if found is None or _number(found.value) != term:
            return
        try:
            await self._store.delete(term_key(topic), expected=found.version)
        except (VersionMismatch, KeyMissing):
            return

    async def _floor(self) -> int:
        found = await self._store.get(TERM_FLOOR)
        return 0 if found is None else _number(found.value)


def _number(value: bytes) -> int:
    return int(json.loads(value)["term"])
