"""The controller's records in the metadata store. Each effect of a state machine is one call, its event the result.

Reads are linearizable (`sync` first). A write that lost a race or whose outcome is unknown is *doubtful*: the machine
reads again and decides, so a write is never repeated blindly.

A topic with unfinished work (an operation, garbage, consumers) is *pending*: a key marks it before the first such
record is written. So its next leader finds it and continues without a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from anabranch.controller.autoscale.scaling_records import ScalingRecords
from anabranch.controller.group.group_events import (
    GroupDoubtful,
    GroupSaved,
    GroupSeen,
    GroupUnread,
    SaveGroup,
)
from anabranch.controller.group.group_record import GroupRecord
from anabranch.controller.interface import TopicExists
from anabranch.controller.records.keys import PENDING_TOPICS, group_key, groups_key, pending_key, registry_key
from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.records.subscription_registry import Registry, SubscriptionState
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.records.topic_record_codec import decode_record, encode_record
from anabranch.controller.topic.leader_terms import LeaderTerms
from anabranch.controller.topic.operation_events import (
    RecordDoubtful,
    RecordRemoved,
    RecordSaved,
    RecordSeen,
    RecordUnread,
    RemoveRecord,
    SaveRecord,
)
from anabranch.controller.topic.subscription_events import (
    RegistryDoubtful,
    RegistrySaved,
    RegistrySeen,
    RegistryUnread,
    SaveRegistry,
)
from anabranch.metadata.interface import ABSENT, ANY, KeyMissing, MetadataStore, VersionMismatch
from anabranch.model.errors import Error
from anabranch.model.metadata_keys import scalable_namespace_key, scalable_topic_at, scalable_topic_key
from anabranch.model.names import TopicName, parse_namespace
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

NOW = 0
"""Mark of a topic that needs a leader at once."""


class RecordStore:
    """All topics of one store."""

    def __init__(self, store: MetadataStore, terms: LeaderTerms, cache: RecordCache) -> None:
        self._store, self._terms, self._cache = store, terms, cache
        self.scaling = ScalingRecords(store)

    # topics -----------------------------------------------------------------------------------------------------------
    async def find(self, topic: TopicName, *, sync: bool = True) -> TopicRecord | None:
        """Raises StoreUnavailable, BadTopicRecord."""
        if sync:
            await self._store.sync()
        key = scalable_topic_key(topic)
        found = await self._store.get(key)
        return None if found is None else self._cache.decode(key, found.value)

    async def create(self, topic: TopicName, record: TopicRecord) -> None:
        try:
            await self._store.put(scalable_topic_key(topic), encode_record(record), expected=ABSENT)
        except VersionMismatch as taken:
            raise TopicExists(f"{topic} exists already") from taken

    async def give_way(self, topic: TopicName, record: TopicRecord) -> None:
        """Deletes a record that was never led, if it is unchanged since it was read. Raises StoreUnavailable."""
        found = await self._store.get(scalable_topic_key(topic))
        if found is None or decode_record(found.value) != record:
            return
        try:
            await self._store.delete(scalable_topic_key(topic), expected=found.version)
        except (VersionMismatch, KeyMissing):
            return

    async def all_of(self, namespace: str) -> dict[TopicName, TopicRecord]:
        """All scalable topics of the namespace, by name. Raises StoreUnavailable."""
        parse_namespace(namespace)
        found: dict[TopicName, TopicRecord] = {}
        async for page in self._store.bulk_scan(scalable_namespace_key(namespace)):
            for key, stored in page:
                topic = scalable_topic_at(key)
                if topic is not None:
                    found[topic] = decode_record(stored.value)
        return dict(sorted(found.items(), key=lambda item: str(item[0])))

    async def load(self, topic: TopicName) -> RecordSeen | RecordUnread:
        try:
            await self._store.sync()
            found = await self._store.get(key := scalable_topic_key(topic))
            if found is None:
                return RecordSeen(None, 0)
            return RecordSeen(self._cache.decode(key, found.value), found.version)
        except Error as error:
            log.warning("topic record could not be read", extra={"topic": str(topic), "reason": error.reason})
            return RecordUnread()

    async def save(self, topic: TopicName, effect: SaveRecord) -> RecordSaved | RecordDoubtful:
        try:
            data = self._cache.encode(key := scalable_topic_key(topic), effect.record)
            return RecordSaved(await self._store.put(key, data, expected=effect.expected))
        except Error as error:
            _doubt(topic, "topic record", error)
            return RecordDoubtful()

    async def remove(self, topic: TopicName, term: int, effect: RemoveRecord) -> RecordRemoved | RecordDoubtful:
        """Deletes the groups and registry of this incarnation, then the record. Safe to repeat after each step."""
        try:
            await self._terms.raise_floor(term)
            root = groups_key(topic, effect.incarnation)
            for name in await self._store.children(root):
                await self._forget(f"{root}/{name}")
            found = await self._store.get(registry_key(topic))
            if found is not None and Registry.decode(found.value).incarnation == effect.incarnation:
                await self._store.delete(registry_key(topic), expected=found.version)
            await self.scaling.forget(topic)
            await self._store.delete(scalable_topic_key(topic), expected=effect.expected)
        except KeyMissing:
            return RecordDoubtful()  # deleted concurrently: the next read decides
        except Error as error:
            _doubt(topic, "removal of the topic record", error)
            return RecordDoubtful()
        self._cache.forget(scalable_topic_key(topic))
        try:
            await self._forget(pending_key(topic))
            await self._terms.release(topic, term)
        except Error as error:  # harmless: a few bytes stay until the name is used again
            log.warning(
                "keys of a deleted topic could not be removed", extra={"topic": str(topic), "reason": error.reason}
            )
        return RecordRemoved()

    # subscriptions ----------------------------------------------------------------------------------------------------
    async def load_registry(self, topic: TopicName) -> RegistrySeen | RegistryUnread:
        try:
            await self._store.sync()
            found = await self._store.get(registry_key(topic))
            if found is None:
                return RegistrySeen(None, None)
            return RegistrySeen(Registry.decode(found.value), found.version)
        except Error as error:
            log.warning("subscription registry could not be read", extra={"topic": str(topic), "reason": error.reason})
            return RegistryUnread()

    async def save_registry(self, topic: TopicName, effect: SaveRegistry) -> RegistrySaved | RegistryDoubtful:
        expected = ABSENT if effect.expected is None else effect.expected
        try:
            data = effect.registry.encode()
            return RegistrySaved(await self._store.put(registry_key(topic), data, expected=expected))
        except Error as error:
            _doubt(topic, "registry", error)
            return RegistryDoubtful()

    # groups -----------------------------------------------------------------------------------------------------------
    async def group_names(self, topic: TopicName, incarnation: int) -> list[str]:
        """Encoded names of subscriptions with a group record. Raises StoreUnavailable."""
        return await self._store.children(groups_key(topic, incarnation))

    async def load_group(self, topic: TopicName, incarnation: int, subscription: str) -> GroupSeen | GroupUnread:
        try:
            await self._store.sync()
            found = await self._store.get(group_key(topic, incarnation, subscription))
            return GroupSeen(None, None) if found is None else GroupSeen(GroupRecord.decode(found.value), found.version)
        except Error as error:
            log.warning("consumer group record could not be read", extra={"topic": str(topic), "reason": error.reason})
            return GroupUnread()

    async def save_group(
        self, topic: TopicName, incarnation: int, subscription: str, effect: SaveGroup
    ) -> GroupSaved | GroupDoubtful:
        expected = ABSENT if effect.expected is None else effect.expected
        try:
            key = group_key(topic, incarnation, subscription)
            return GroupSaved(await self._store.put(key, effect.record.encode(), expected=expected))
        except Error as error:
            _doubt(topic, f"group of {subscription}", error)
            return GroupDoubtful()

    async def forget_group(self, topic: TopicName, incarnation: int, subscription: str) -> None:
        """The subscription was deleted. Raises StoreUnavailable."""
        await self._forget(group_key(topic, incarnation, subscription))

    # pending topics ---------------------------------------------------------------------------------------------------
    async def mark_pending(self, topic: TopicName, at_ms: int) -> None:
        """The topic needs a leader from `at_ms` on. Raises StoreUnavailable."""
        await self._store.put(pending_key(topic), str(at_ms).encode(), expected=ANY)

    async def clear_pending_mark(self, topic: TopicName) -> None:
        await self._forget(pending_key(topic))

    async def pending_topics(self) -> AsyncIterator[tuple[TopicName, int]]:
        """All pending topics of the cluster, with their times."""
        async for key, found in self._store.scan(PENDING_TOPICS):
            topic = scalable_topic_at(key, PENDING_TOPICS)
            if topic is not None:
                yield topic, int(found.value)

    async def _forget(self, key: str) -> None:
        try:
            await self._store.delete(key, expected=ANY)
        except KeyMissing:
            return


def is_unfinished(record: TopicRecord) -> bool:
    """The topic needs a leader even without requests."""
    return record.operation is not None or record.is_deleting or bool(record.garbage)


def has_intents(registry: Registry) -> bool:
    """A subscription is being created, moved or deleted."""
    found = registry.subscriptions.values()
    return any(one.state is not SubscriptionState.READY or one.move is not None for one in found)


def _doubt(topic: TopicName, what: str, error: Error) -> None:
    log.info(
        "outcome of a metadata write is unknown, reading again",
        extra={"topic": str(topic), "record": what, "reason": error.reason},
    )
