"""Leader terms: a leader acquires one before anything else, and each term is issued once per topic name.

A term is a number in a separate record, raised by compare-and-set. A leader uses it only if the write was confirmed; a
term whose write has an unknown outcome is never used. The record is separate from the topic's because terms grow per
topic *name*: segments of a re-created topic must refuse late requests of the deleted topic's leader.

When a topic is deleted, its term raises one common minimum (the floor), and then its term record is deleted. So nothing
is left per name, and the next topic of that name starts above the floor.
"""

from __future__ import annotations

import json

from anabranch.controller.records.keys import TERM_FLOOR, term_key
from anabranch.metadata.interface import ABSENT, KeyMissing, MetadataStore, OutcomeUnknown, VersionMismatch
from anabranch.model.errors import Busy
from anabranch.model.names import TopicName
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

TRIES = 16


class TermContended(Busy):
    """Other brokers acquire terms of this topic at the same time, repeatedly."""

    code = "not-leader"


class LeaderTerms:
    """`holder` is stored for information: the broker that acquired the term."""

    def __init__(self, store: MetadataStore, holder: str) -> None:
        self._store, self._holder = store, holder

    async def acquire(self, topic: TopicName, above: int) -> int:
        """A term above all earlier ones and above `above`. Raises StoreUnavailable; then none was acquired."""
        key = term_key(topic)
        for _ in range(TRIES):
            found = await self._store.get(key)
            last = await self._floor() if found is None else _number(found.value)
            term = max(last, above) + 1
            value = json.dumps({"term": term, "holder": self._holder}).encode()
            try:
                await self._store.put(key, value, expected=ABSENT if found is None else found.version)
            except (VersionMismatch, OutcomeUnknown):  # if the write succeeded, its term is never used
                await self._store.sync()
                continue
            if found is None:
                # The last term may have been acquired, used and released between the read of the floor and this write.
                await self._store.sync()
                if await self._floor() >= term:
                    continue
            elif (before := _holder(found.value)) != self._holder:
                log.info(
                    "leadership of a topic taken over from another broker",
                    extra={"topic": str(topic), "term": term, "broker": before},
                )
            return term
        raise TermContended(f"other brokers acquire terms of {topic} at the same time; try again")

    async def raise_floor(self, term: int) -> None:
        """Called before a topic's record is deleted, so that a later topic of its name gets no term that it had."""
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
        raise TermContended("the minimum of leader terms is raised by too many brokers at once; try again")

    async def release(self, topic: TopicName, term: int) -> None:
        """Called after the topic's record is deleted: deletes the term record, unless the next term is acquired."""
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


def _holder(value: bytes) -> str:
    return str(json.loads(value).get("holder", ""))
