"""Topics, catalog and subscriptions of a broker in memory: no sockets, no files, a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.publish.producer import Producer, Publish, Window
from anabranch.broker.publish.producer_access import AccessMode
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.subscription.consumer import Consumer, ConsumerSpec, KeySharedPolicy, SubscribeRequest
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.node.adapters.metadata_records import MetadataRecords
from anabranch.node.adapters.store_events import StoreEvents
from anabranch.protocol.entry import build_entry, publish_time_of
from anabranch.storage.interface import StorageError, StoredEntry
from anabranch.storage.ledger.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog
from tests.support.in_memory.broker_fakes import RecordingPeer
from tests.support.in_memory.topic_log import ManualClock
from tests.support.models.memory_ledger_store import MemoryLedgerStore

NAME = TopicName.parse("persistent://public/default/t")


class SlowLedgers(MemoryLedgerStore):
    """Reads take a turn of the loop, like those of a disk, and can fail."""

    fail_reads: StorageError | None = None
    fail_ledger: int | None = None  # only this one; None: all

    def take_over(self, before: MemoryLedgerStore) -> None:
        self._durable = before.crashed()._durable

    async def read(self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        await asyncio.sleep(0)
        if self.fail_reads is not None and self.fail_ledger in (None, ledger_id):
            raise self.fail_reads
        return await super().read(ledger_id, first, end, entries_max, bytes_max)

    def read_cached(self, ledger_id: int, first: int, entries_max: int, bytes_max: int) -> list[StoredEntry] | None:
        if ledger_id in self.uncached:
            return None
        return super().read_cached(ledger_id, first, entries_max, bytes_max)


class BrokerWorld:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.settings = BrokerSettings(**settings)
        self.store = MemoryStore(self.clock)
        self.ledgers = SlowLedgers(publish_time_of=publish_time_of)
        self.catalog = Catalog(self.store, self.settings)
        self.opened: list[TopicLog] = []
        self.fail_open: Exception | None = None
        self.topics = self._topics()
        self._ids = 0

    def _topics(self) -> TopicRegistry:
        topics = TopicRegistry(
            self.catalog, self._open_log, settings=self.settings, clock=self.clock, check_writable=self._check_writable
        )
        self.ledgers.start(StoreEvents(topics, fenced=lambda: None, may_confirm=None, batches=None))
        return topics

    def _check_writable(self) -> None:
        if self.ledgers.refusal is not None:
            raise self.ledgers.refusal

    async def _open_log(self, name: TopicName) -> TopicLog:
        if self.fail_open is not None:
            raise self.fail_open
        records = MetadataRecords(self.store)
        opened = await TopicLog.open(
            self.catalog.topic_key(name),
            ledgers=self.ledgers,
            metadata=records,
            ids=LedgerIds(records),
            clock=self.clock,
        )
        self.opened.append(opened)
        return opened

    async def start(self) -> BrokerWorld:
        await self.store.open()
        await self.catalog.ensure_defaults()
        self.topics.start()
        return self

    async def crash(self) -> None:
        """Only what was durable is left; a fresh set of topics serves it."""
        await self.topics._tasks.close()
        before, self.ledgers = self.ledgers, SlowLedgers(publish_time_of=publish_time_of)
        self.ledgers.take_over(before)
        self.topics = self._topics()

    async def topic(self, name: TopicName = NAME) -> Topic:
        found = await self.topics.get(name, create=True)
        assert isinstance(found, Topic)
        return found

    def producer(
        self,
        name: str = "p",
        *,
        peer: RecordingPeer | None = None,
        mode: AccessMode = AccessMode.SHARED,
        epoch: int = 0,
        producer_id: int | None = None,
        credits: bool = False,
    ) -> Producer:
        self._ids += 1
        return Producer(
            peer or RecordingPeer(f"peer:{self._ids}"),
            producer_id=self._ids if producer_id is None else producer_id,
            request_id=1_000 + self._ids,
            name=name,
            partition=-1,
            epoch=epoch,
            mode=mode,
            metadata={},
            window=Window(1 << 20, 1_000),
            grants_credits=credits,
            connected_ms=0,
        )

    def request(
        self, subscription: str = "s", kind: SubscriptionType = SubscriptionType.SHARED, **options: Any
    ) -> SubscribeRequest:
        self._ids += 1
        spec = ConsumerSpec(
            consumer_id=self._ids,
            name=f"c{self._ids}",
            type=kind,
            priority=0,
            partition=-1,
            metadata={},
            key_shared=KeySharedPolicy(),
            epoch=options.pop("epoch", None),
            nacks_messages=options.pop("nacks_messages", False),
        )
        defaults: dict[str, Any] = {
            "durable": True,
            "from_earliest": True,
            "start": None,
            "rollback_seconds": 0,
            "create": True,
            "properties": {},
        }
        return SubscribeRequest(name=subscription, spec=spec, **{**defaults, **options})

    async def subscribe(
        self,
        topic: Topic,
        subscription: str = "s",
        kind: SubscriptionType = SubscriptionType.SHARED,
        *,
        peer: RecordingPeer | None = None,
        permits: int = 1_000,
        **options: Any,
    ) -> tuple[Subscription, Consumer]:
        found, consumer = await topic.subscribe(
            self.request(subscription, kind, **options), peer or RecordingPeer(f"peer:{self._ids}")
        )
        found.flow(consumer, permits)
        return found, consumer

    async def publish(self, topic: Topic, *sequences: int, producer: Producer | None = None) -> list[Position]:
        """Publish and wait until it is durable; answers where it went."""
        producer = producer or self.producer("filler")
        before = topic.log.total_messages
        for sequence in sequences:
            payload = build_entry(b"%d" % sequence, producer_name=producer.name, sequence_id=sequence)
            topic.publish(Publish(producer, sequence, 0, sequence, 1, payload, True))
        await self.settle(lambda: producer.is_idle)
        last = topic.log.last_position
        count = topic.log.total_messages - before
        return [Position(last.ledger, last.entry - count + 1 + n) for n in range(count)]

    async def settle(self, condition: Callable[[], bool] = lambda: False, turns: int = 100) -> None:
        for _ in range(turns):
            if condition():
                return
            await asyncio.sleep(0)
