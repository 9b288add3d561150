"""The schema registry. A topic, its partitions and its segments share one history with the versions 0, 1, 2 …

Keys: `/schemas/T/N/NAME` is the history, one compare-and-set unit: the next number and the live versions, each with the
digest of its schema and the id of its definition; `/schemas/T/N/NAME/ID` is the definition, written before a history
names it. NAME is the form-url-encoded local name of the topic without partition or segment.

A deletion takes the next number and hides the versions before it. A forced deletion removes the whole history. Ids are
never reused, and a deletion removes only the definitions that its history names, so a concurrent registration keeps
its definition. A crash between the two writes of a registration or a deletion leaves an unreferenced definition.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from anabranch.broker.catalog.catalog import Catalog, NamespacePolicies
from anabranch.broker.errors import IncompatibleSchema, SchemaNotFound, TooManySchemas
from anabranch.broker.schemas.compatibility import check_size, check_valid, must_read_all, objection, reader_objection
from anabranch.broker.schemas.counters import SchemaCounts
from anabranch.broker.schemas.policy import SchemaPolicy
from anabranch.broker.schemas.settings import SchemaSettings
from anabranch.broker.schemas.stale_cache import StaleWhileUnavailableCache
from anabranch.metadata.interface import ABSENT, ANY, Expected, KeyMissing, MetadataStore, Version, VersionMismatch
from anabranch.model.errors import Error, NotReady
from anabranch.model.names import TopicName, encode_component
from anabranch.model.schema import Schema, SchemaType, Strategy
from anabranch.runtime.blocking import Blocking
from anabranch.runtime.clock import Clock

T = TypeVar("T")

CAS_TRIES = 16
VERSION_BYTES = 8
QUICK_BYTES = 16 * 1024  # a definition of this size is parsed in less than a millisecond


@dataclass(frozen=True, slots=True)
class Entry:
    """One live version in a history."""

    version: int
    digest: str
    registered_ms: int
    definition: str


@dataclass(frozen=True, slots=True)
class History:
    """The value of a topic's key. Immutable."""

    next_version: int = 0
    entries: tuple[Entry, ...] = ()

    @classmethod
    def load(cls, value: bytes) -> History:
        record = json.loads(value)
        return cls(record["next"], tuple(Entry(*row) for row in record["versions"]))

    def dump(self) -> bytes:
        rows = [[one.version, one.digest, one.registered_ms, one.definition] for one in self.entries]
        return json.dumps({"next": self.next_version, "versions": rows}, separators=(",", ":")).encode()

    def version_of(self, digest: str) -> int | None:
        return next((one.version for one in self.entries if one.digest == digest), None)

    def with_version(self, digest: str, now_ms: int, definition: str) -> History:
        return History(self.next_version + 1, (*self.entries, Entry(self.next_version, digest, now_ms, definition)))

    def deleted(self) -> History:
        return History(self.next_version + 1)


@dataclass(frozen=True, slots=True)
class StoredSchema:
    version: int
    schema: Schema
    registered_ms: int


class SchemaRegistry:
    def __init__(
        self,
        store: MetadataStore,
        catalog: Catalog,
        blocking: Blocking,
        clock: Clock,
        settings: SchemaSettings,
        new_id: Callable[[], str],
    ) -> None:
        """`new_id` returns names that were never used in the store."""
        self._new_id = new_id
        self._store = store
        self._catalog = catalog
        self._blocking = blocking
        self._clock = clock
        self._settings = settings
        self._one_check = asyncio.Lock()
        # Lets clients of loaded topics reconnect while the store is unavailable. A stale history may miss versions, but
        # a version never changes its meaning. Writers read the store.
        self._histories: StaleWhileUnavailableCache[tuple[History, Version | None]] = StaleWhileUnavailableCache(clock)
        self._policies: StaleWhileUnavailableCache[NamespacePolicies] = StaleWhileUnavailableCache(clock)
        self._topic_records: StaleWhileUnavailableCache[dict[str, Any]] = StaleWhileUnavailableCache(clock)
        self.counts = SchemaCounts()

    # -- for clients

    def use_settings(self, settings: SchemaSettings) -> None:
        """From now on."""
        self._settings = settings

    async def admit_producer(self, topic: TopicName, schema: Schema | None) -> int | None:
        """The version for the producer's messages; None without a schema. A new schema becomes a version."""
        if is_schemaless(schema):
            policy = await self.policy_of(topic)
            if policy.validation_enforced and (await self._history(topic))[0].entries:
                raise IncompatibleSchema(f"{topic.base} accepts no producer without a schema (validation is enforced)")
            return None
        assert schema is not None
        return await self.register(topic, schema)

    async def admit_consumer(self, topic: TopicName, schema: Schema | None, is_unused: Callable[[], bool]) -> None:
        """Checks that the consumer can read what the topic's schema writes. A topic without a schema takes the first
        consumer's as long as it is unused; later the content of the topic is unknown."""
        if is_schemaless(schema):
            return
        assert schema is not None
        check_size(schema, self._settings.bytes_max)
        history, _ = await self._history(topic)
        if not history.entries and is_unused():
            await self.register(topic, schema)
            return
        strategy = (await self.policy_of(topic)).strategy
        if strategy is Strategy.ALWAYS_COMPATIBLE:
            return
        if not history.entries:
            raise IncompatibleSchema(f"{topic.base} has messages or producers, but no schema")
        if await self._digest(schema) == history.entries[-1].digest and not must_read_all(strategy):
            return
        await self._check_valid(schema)
        existing = await self._compared(topic, strategy, history)
        await self._decide(topic, lambda: reader_objection(strategy, schema, existing))

    async def register(self, topic: TopicName, schema: Schema, *, by_administrator: bool = False) -> int:
        """The version of this schema; a new one if the namespace's policy allows it."""
        counts = self.counts.of(topic.namespace_path)
        try:
            version = await self._register(topic, schema, by_administrator)
        except Error:
            counts.put_failed += 1
            raise
        counts.put += 1
        return version

    async def _register(self, topic: TopicName, schema: Schema, by_administrator: bool) -> int:
        known = await self.find(topic, schema)
        if known is not None:
            return known
        await self._check_valid(schema)
        digest = await self._digest(schema)
        written: str | None = None
        for _ in range(CAS_TRIES):
            history, version = await self._load_history(_key(topic))
            known = history.version_of(digest)
            try:
                if known is None:
                    await self._check_new(topic, schema, history, by_administrator)
            except Error:
                await self._discard(topic, written)
                raise
            if known is not None:
                await self._discard(topic, written)
                return known
            if written is None:
                written = self._new_id()
                await self._store.put(_definition_key(topic, written), _dump(schema), expected=ABSENT)
            if await self._save(_key(topic), history.with_version(digest, self._clock.now_ms(), written), version):
                return history.next_version
        await self._discard(topic, written)
        raise _contended(_key(topic))

    async def _check_new(self, topic: TopicName, schema: Schema, history: History, by_administrator: bool) -> None:
        policy = await self.policy_of(topic)
        if not (policy.auto_update or by_administrator):
            raise IncompatibleSchema(
                f"schema is not known, and the policies of {topic.namespace_path} do not allow clients to add schemas"
            )
        if len(history.entries) >= self._settings.versions_max:
            raise TooManySchemas(f"{topic.base} has {len(history.entries)} schema versions already")
        await self._check_follows(topic, policy.strategy, schema, history)

    async def _discard(self, topic: TopicName, written: str | None) -> None:
        """Deletes a definition that no history names: every write that named it was refused."""
        if written is not None:
            await self._remove(_definition_key(topic, written))

    async def get(self, topic: TopicName, version: int | None = None) -> StoredSchema:
        """One live version; the latest by default."""
        counts = self.counts.of(topic.namespace_path)
        history, _ = await self._history(topic)
        wanted = [one for one in history.entries if version in (None, one.version)][-1:]
        found = await self._load(topic, replace(history, entries=tuple(wanted)))
        if not found:
            counts.got_failed += 1
            raise SchemaNotFound("Schema not found")  # Pulsar's text; tools match it
        counts.got += 1
        return found[0]

    # -- for administrators

    async def history(self, topic: TopicName) -> list[StoredSchema]:
        """Live versions, oldest first."""
        return await self._load(topic, (await self._history(topic))[0])

    async def find(self, topic: TopicName, schema: Schema) -> int | None:
        """The version that has this schema; None if there is none."""
        check_size(schema, self._settings.bytes_max)
        digest = await self._digest(schema)
        return (await self._history(topic))[0].version_of(digest)

    async def check(self, topic: TopicName, schema: Schema) -> None:
        """Raises IncompatibleSchema unless this schema could become the next version."""
        await self._check_valid(schema)
        history, _ = await self._history(topic)
        policy = await self.policy_of(topic)
        await self._check_follows(topic, policy.strategy, schema, history)

    async def delete(self, topic: TopicName, *, force: bool = False) -> int:
        """The number of the deletion. `force` removes the whole history and returns -1."""
        counts = self.counts.of(topic.namespace_path)
        try:
            number = await self._delete(_key(topic), force)
        except Error:
            counts.deleted_failed += 1
            raise
        counts.deleted += 1
        return number

    async def _delete(self, key: str, force: bool) -> int:
        for _ in range(CAS_TRIES):
            history, version = await self._load_history(key)
            if force and version is None:
                return -1
            if force and version is not None:
                done = await self._remove(key, expected=version)
            else:
                done = await self._save(key, history.deleted(), version)
            if done:
                for one in history.entries:
                    await self._remove(f"{key}/{one.definition}")
                return -1 if force else history.next_version
        raise _contended(key)

    async def forget_topic(self, topic: TopicName, *, may_return: bool) -> None:
        """Deletes the schema of a deleted topic. With `may_return` producers will reconnect and send messages with old
        version numbers; these must keep their meaning, so counting continues. Otherwise nothing is kept."""
        history, version = await self._load_history(_key(topic))
        if version is None or (may_return and not history.entries):
            return
        await self.delete(topic, force=not may_return)

    async def forget_namespace(self, namespace: str) -> None:
        """Deletes every schema of a deleted namespace, also those of topics that never existed."""
        for encoded in await self._store.children(f"/schemas/{namespace}"):
            await self._delete(f"/schemas/{namespace}/{encoded}", force=True)

    async def policy(self, namespace: str) -> SchemaPolicy:
        """The policies in force for topics that set none."""
        record = await self._policies.recall(namespace, lambda: self._catalog.policies(namespace))
        return SchemaPolicy.of(record.other, self._settings)

    async def policy_of(self, topic: TopicName) -> SchemaPolicy:
        """The same for one topic, which may set its own."""
        record = await self._topic_records.recall(str(topic.base), lambda: self._catalog.record_of(topic))
        return SchemaPolicy.of(record, self._settings)

    # -- the store

    async def _history(self, topic: TopicName) -> tuple[History, Version | None]:
        return await self._read(_key(topic))

    async def _read(self, key: str) -> tuple[History, Version | None]:
        return await self._histories.recall(key, lambda: self._load_history(key))

    async def _load_history(self, key: str) -> tuple[History, Version | None]:
        found = await self._store.get(key)
        return (History(), None) if found is None else (History.load(found.value), found.version)

    async def _load(self, topic: TopicName, history: History) -> list[StoredSchema]:
        found = []
        for one in history.entries:
            record = await self._store.get(_definition_key(topic, one.definition))
            if record is not None:  # deleted since the history was read
                found.append(StoredSchema(one.version, _load_schema(record.value), one.registered_ms))
        return found

    async def _save(self, key: str, history: History, version: Version | None) -> bool:
        """False: another writer was first."""
        try:
            await self._store.put(key, history.dump(), expected=ABSENT if version is None else version)
        except VersionMismatch:
            return False
        return True

    async def _remove(self, key: str, *, expected: Expected = ANY) -> bool:
        """False: it was written or deleted since."""
        try:
            await self._store.delete(key, expected=expected)
        except (VersionMismatch, KeyMissing):
            return False
        return True

    # -- checks

    async def _beside(self, work: Callable[[], T]) -> T:
        """Runs off the event loop, one at a time, so that the other threads stay free for storage."""
        async with self._one_check:
            return await self._blocking.run(work)

    async def _digest(self, schema: Schema) -> str:
        if len(schema.data) <= QUICK_BYTES:
            return schema.digest
        return await self._beside(lambda: schema.digest)

    async def _check_valid(self, schema: Schema) -> None:
        await self._beside(lambda: check_valid(schema, self._settings.bytes_max))

    async def _check_follows(self, topic: TopicName, strategy: Strategy, schema: Schema, history: History) -> None:
        existing = await self._compared(topic, strategy, history)
        if existing:
            await self._decide(topic, lambda: objection(strategy, schema, existing))

    async def _compared(self, topic: TopicName, strategy: Strategy, history: History) -> list[Schema]:
        """The versions that the strategy compares with, oldest first."""
        looks_at_all = strategy.is_transitive or strategy is Strategy.ALWAYS_INCOMPATIBLE
        entries = history.entries if looks_at_all else history.entries[-1:]
        return [one.schema for one in await self._load(topic, replace(history, entries=entries))]

    async def _decide(self, topic: TopicName, question: Callable[[], str | None]) -> None:
        counts, reason = self.counts.of(topic.namespace_path), await self._beside(question)
        if reason is None:
            counts.compatible += 1
        else:
            counts.incompatible += 1
            raise IncompatibleSchema(f"Incompatible schema: {reason}")


def is_schemaless(schema: Schema | None) -> bool:
    """Not compared: no schema at all, or a consumer that takes every one. Type NONE is a schema like any other."""
    return schema is None or schema.type is SchemaType.AUTO_CONSUME


def schema_name(topic: TopicName) -> str:
    """Pulsar's name of a topic's schema."""
    return f"{topic.namespace_path}/{encode_component(topic.scalable.local)}"


def version_bytes(version: int | None) -> bytes:
    """The version as bytes on the wire and in messages; empty for None."""
    return b"" if version is None else version.to_bytes(VERSION_BYTES, "big")


def _key(topic: TopicName) -> str:
    return f"/schemas/{schema_name(topic)}"


def _definition_key(topic: TopicName, definition: str) -> str:
    return f"{_key(topic)}/{definition}"


def _contended(key: str) -> NotReady:
    return NotReady(f"{key} is changed by too many at once")


def _dump(schema: Schema) -> bytes:
    record = {
        "type": schema.type.name,
        "data": base64.b64encode(schema.data).decode(),
        "properties": dict(schema.properties),
    }
    return json.dumps(record, separators=(",", ":")).encode()


def _load_schema(value: bytes) -> Schema:
    record: dict[str, Any] = json.loads(value)
    return Schema(SchemaType[record["type"]], base64.b64decode(record["data"]), record["properties"])
