"""Extents of topics on Apache Pulsar: from readers over the binary protocol, and from internal stats with `adminUrl`.

| question              | binary protocol                                     | with `adminUrl`                       |
|-----------------------|-----------------------------------------------------|---------------------------------------|
| oldest entry          | what a reader at the earliest entry has consumed    | the first ledger                      |
| newest entry          | GET_LAST_MESSAGE_ID                                 | the same                              |
| first entry of a time | SEEK of a reader                                    | the same                              |
| entries and bytes     | –                                                   | ledgers                               |
| messages              | –                                                   | entries, by the mean of the next ones |
| deduplication         | –                                                   | the cursor that it keeps              |

A reader per topic stays open, so that the end of a topic is one question. It is opened again when the end is in another
ledger than before, because the oldest entry may have changed then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from anabranch.admin.admin import Admin
from anabranch.admin.errors import AdminError, Refused
from anabranch.client.connection.connection import Connection
from anabranch.client.errors import ClientError, NotReady
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.runtime.chance import secret_bytes
from anabranch.runtime.clock import Clock
from anabranch.spark.client.extents import PULSAR, PULSAR_ADMIN, Capabilities, ClusterCannot, Extent
from anabranch.spark.client.pulsar_probe import Probe
from anabranch.spark.offsets import pulsar_topic as shape
from anabranch.spark.offsets.pulsar_topic import EmptyRun, Heads
from anabranch.spark.offsets.topic_view import LedgerSum

SAMPLED_ENTRIES = 16
SAMPLED_MESSAGES = 2_000
EMPTY_WITHIN_S = 120.0  # between two looks at an empty topic, a restart of its broker included: in less time a ledger
# is not filled, closed, deleted, and the next one closed without an entry
ENTRY_WITHIN_S = 2.0  # until a reader has the first entry, where there is one
STATS_EVERY_S = 1.0  # while nothing is retained
DEDUPLICATION_CURSOR = "pulsar.dedup"
NOT_FOUND = 404
UNAVAILABLE = 500

Serving = Callable[[str], Awaitable[Connection]]


class Listed(NamedTuple):
    """Internal stats of a topic, as of a moment."""

    ledgers: tuple[LedgerSum, ...]
    confirmed: Position
    cursors: frozenset[str]
    asked_at: float


@dataclass(slots=True)
class Watched:
    """What is kept of a topic: its reader, and where it was found to begin."""

    probe: Probe
    first: Position
    ledger: int  # of the last entry then


class PulsarExtents:
    def __init__(self, serving: Serving, clock: Clock, timeout_s: float, admin: Admin | None) -> None:
        self.capabilities: Capabilities = PULSAR if admin is None else PULSAR_ADMIN
        self._serving = serving
        self._clock = clock
        self._timeout_s = timeout_s
        self._admin = admin
        self._watched: dict[str, Watched] = {}
        self._listed: dict[str, Listed] = {}
        self._deleted: dict[str, Position] = {}  # the last entry there was, where a reader got none
        self._empty: dict[str, EmptyRun | None] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def extent(self, topic: str, fields: Mapping[str, Any]) -> Extent:
        async with self._turns[topic]:
            heads = await self._heads(topic)
        listed = await self._stats(topic, heads, is_fresh=bool(fields))
        ledgers: tuple[LedgerSum, ...] = ()
        if listed is not None:
            ledgers = shape.grown(listed.ledgers, heads.last)
            heads = Heads(heads.first, heads.last, max(heads.confirmed, listed.confirmed))
        run = shape.empty_run(self._empty.get(topic), heads, self._clock.monotonic(), EMPTY_WITHIN_S)
        self._empty[topic] = run
        first, end, trimmed_to = shape.bounds(heads, ledgers, None if run is None else run.since)
        known = Extent(first, end, trimmed_to, ledgers=ledgers, is_trim_exact=False)
        return await self._counted(topic, known, fields) if fields else known

    async def _counted(self, topic: str, known: Extent, fields: Mapping[str, Any]) -> Extent:
        ledgers, end = known.ledgers, known.end
        start = max(position_of(fields["start"]), known.first) if "start" in fields else known.first
        at_time = EARLIEST
        if "publish_time" in fields:
            at_time = min(await self._at_time(topic, fields["publish_time"]), max(end, known.first))
        if not ledgers and "start" in fields:
            raise ClusterCannot(
                f"the cluster has no internal stats of {topic}, so it cannot count its messages and bytes: leave out "
                "options that limit or count them"
            )
        if "start" not in fields:
            return replace(known, at_time=at_time)
        entries = shape.entries_between(ledgers, start, end)
        mean = await self._messages_per_entry(topic, start, entries) if entries else 1.0
        upto = EARLIEST
        if "messages_max" in fields:
            upto = shape.after_entries(ledgers, start, int(fields["messages_max"] / mean))
        return replace(
            known,
            at_time=at_time,
            upto=upto,
            messages=round(entries * mean),
            bytes=shape.bytes_between(ledgers, start, end),
            messages_to_time=round(shape.entries_between(ledgers, start, at_time) * mean),
            ledgers=tuple(LedgerSum(one.ledger, one.entries, round(one.entries * mean), one.bytes) for one in ledgers),
        )

    async def deduplicates(self, topic: str) -> bool:
        if self._admin is None:
            raise ClusterCannot(
                "delivery=effectively-once needs a topic that deduplicates, and Apache Pulsar does not say over its "
                "binary protocol whether it does: give adminUrl, or choose delivery=at-least-once"
            )
        found = await self._asked(topic)
        if found is None:  # it is created by the first producer
            await self._touch(topic)
            found = await self._asked(topic)
        return found is not None and DEDUPLICATION_CURSOR in found.cursors

    async def kept_from(self, subscription: str, topic: str) -> Position:
        """The first entry that a durable subscription has not consumed; it is made at the end if it is missing."""
        probe = Probe(await self._serving(topic), topic, subscription, self._timeout_s)
        await probe.open(
            LATEST, subType=pb.CommandSubscribe.Shared, durable=True, initialPosition=pb.CommandSubscribe.Latest
        )
        try:
            return shape.after((await probe.heads())[1])
        finally:
            await probe.close()

    async def close(self) -> None:
        if self._admin is not None:
            await self._admin.close()

    # -- readers

    async def _heads(self, topic: str) -> Heads:
        watched = self._watched.get(topic)
        if watched is not None and not watched.probe.is_over:
            last, consumed = await watched.probe.heads()
            if last.ledger == watched.ledger and last != EARLIEST:
                watched.first = max(watched.first, shape.after(consumed))
                return Heads(watched.first, last, last)
            await watched.probe.close()
        probe = await self._opened(topic, EARLIEST)
        last, consumed = await probe.heads()
        first = shape.after(consumed)
        self._watched[topic] = Watched(probe, first, last.ledger)
        if last != EARLIEST:
            return Heads(first, last, last)
        confirmed = await self._confirmed(topic)
        if confirmed >= first and self._deleted.get(topic) != confirmed:
            # Either all of it is deleted, or the broker is about to say something else: a reader decides.
            if await probe.has_entry(ENTRY_WITHIN_S):
                raise NotReady(f"{topic} has entries that the broker does not report yet")
            self._deleted[topic] = confirmed
        return Heads(first, last, confirmed)

    async def _confirmed(self, topic: str) -> Position:
        """A reader at the latest entry has consumed up to the last one there ever was."""
        probe = await self._opened(topic, LATEST)
        try:
            return (await probe.heads())[1]
        finally:
            await probe.close()

    async def _opened(self, topic: str, start: Position) -> Probe:
        name = f"spark-{secret_bytes(8).hex()}"
        probe = Probe(await self._serving(topic), topic, name, self._timeout_s)
        await probe.open(start)
        return probe

    async def _at_time(self, topic: str, time_ms: int) -> Position:
        """SEEK closes the reader, and keeps its position for the next one of this name."""
        probe = await self._opened(topic, EARLIEST)
        await probe.seek(time_ms=time_ms)
        await probe.open(EARLIEST)
        try:
            return shape.after((await probe.heads())[1])
        finally:
            await probe.close()

    async def _messages_per_entry(self, topic: str, start: Position, entries: int) -> float:
        probe = await self._opened(topic, start)
        try:
            found = await probe.sample(min(entries, SAMPLED_ENTRIES), SAMPLED_MESSAGES)
        except TimeoutError as cause:
            raise NotReady(f"{topic}: no entry came from {start} on within {self._timeout_s:g} s") from cause
        finally:
            await probe.close()
        return found.messages / max(found.entries, 1)

    async def _touch(self, topic: str) -> None:
        """A producer comes and goes, so that a missing topic is created if the cluster allows it."""
        connection = await self._serving(topic)
        producer_id = connection.new_id()
        await connection.ask(BaseCommand.PRODUCER, self._timeout_s, topic=topic, producer_id=producer_id)
        await connection.ask(BaseCommand.CLOSE_PRODUCER, self._timeout_s, producer_id=producer_id)

    # -- internal stats

    async def _stats(self, topic: str, heads: Heads, *, is_fresh: bool) -> Listed | None:
        if self._admin is None:
            return None
        known, now = self._listed.get(topic), self._clock.monotonic()
        if known is not None and known.ledgers and not is_fresh:
            is_same = known.ledgers[-1].ledger == heads.last.ledger and known.ledgers[0].ledger >= heads.first.ledger
            if is_same or (heads.last == EARLIEST and now - known.asked_at < STATS_EVERY_S):
                return known
        found = await self._asked(topic)
        if found is not None:
            self._listed[topic] = found
        return found

    async def _asked(self, topic: str) -> Listed | None:
        """None where the cluster has no stats of it: it does not exist, or is a segment."""
        assert self._admin is not None
        if TopicName.parse(topic).domain is not Domain.PERSISTENT:
            return None
        now = self._clock.monotonic()
        try:
            stats = await self._admin.topics.internal_stats(topic)
        except Refused as error:
            if error.status == NOT_FOUND:
                return None
            raise _admin_failure(error, error.status >= UNAVAILABLE) from error
        except AdminError as error:
            raise _admin_failure(error, error.retryable) from error
        confirmed = shape.read_position(str(stats["lastConfirmedEntry"]))
        return Listed(shape.read_ledgers(stats), confirmed, frozenset(stats["cursors"]), now)


def _admin_failure(error: AdminError, is_retryable: bool) -> ClientError | ClusterCannot:
    text = f"adminUrl does not answer: {error.reason}"
    return NotReady(text) if is_retryable else ClusterCannot(text)
