"""Tenants, namespaces and partitioned topics, on the memory store."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.catalog.catalog import Catalog, NamespacePolicies
from anabranch.broker.errors import NamespaceNotFound, TopicNotFound
from anabranch.broker.settings import BrokerSettings
from anabranch.metadata.interface import ABSENT
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.errors import AlreadyExists, BadName, BadRequest, NotAllowed, NotFound
from anabranch.model.names import TopicName
from tests.support.in_memory.topic_log import ManualClock

PLAIN = TopicName.parse("persistent://public/default/plain")
PARTED = TopicName.parse("persistent://public/default/parted")


async def make(settings: BrokerSettings | None = None) -> tuple[Catalog, MemoryStore]:
    store = MemoryStore(ManualClock())
    await store.open()
    catalog = Catalog(store, settings or BrokerSettings())
    await catalog.ensure_defaults()
    return catalog, store


async def exist(store: MemoryStore, topic: TopicName) -> None:
    await store.put(Catalog.topic_key(topic), b"{}", expected=ABSENT)


async def test_ensure_defaults_is_idempotent() -> None:
    catalog, _ = await make()
    await catalog.ensure_defaults()
    assert await catalog.tenants() == ["public"]
    assert await catalog.namespaces("public") == ["public/default"]


async def test_tenants_and_namespaces() -> None:
    catalog, _ = await make()
    await catalog.create_tenant("acme", {})
    with pytest.raises(AlreadyExists):
        await catalog.create_tenant("acme", {})
    await catalog.create_namespace("acme/shop")
    with pytest.raises(AlreadyExists):
        await catalog.create_namespace("acme/shop")
    with pytest.raises(NotFound):
        await catalog.create_namespace("nobody/shop")
    with pytest.raises(NotAllowed):
        await catalog.delete_tenant("acme")
    await catalog.delete_namespace("acme/shop")
    await catalog.delete_tenant("acme")
    with pytest.raises(NotFound):
        await catalog.namespaces("acme")
    with pytest.raises(NotFound):
        await catalog.delete_tenant("acme")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä"])
async def test_invalid_names_are_refused(name: str) -> None:
    catalog, _ = await make()
    with pytest.raises(BadName):
        await catalog.create_tenant(name, {})


async def test_namespace_with_topics_is_not_deleted() -> None:
    catalog, store = await make()
    await exist(store, PLAIN)
    with pytest.raises(NotAllowed):
        await catalog.delete_namespace("public/default")
    with pytest.raises(NamespaceNotFound):
        await catalog.delete_namespace("public/none")


async def test_deduplication_policy() -> None:
    catalog, _ = await make(BrokerSettings(deduplication=False))
    assert not (await catalog.effective_of(PLAIN)).deduplicate
    await catalog.set_deduplication("public/default", True)
    assert (await catalog.effective_of(PLAIN)).deduplicate
    await catalog.set_deduplication("public/default", None)
    assert not (await catalog.effective_of(PLAIN)).deduplicate
    with pytest.raises(NamespaceNotFound):
        await catalog.set_deduplication("public/none", True)


async def test_unknown_policy_keys_are_kept() -> None:
    loaded = NamespacePolicies.load(b'{"deduplicationEnabled": true, "later": {"x": 1}}')
    assert NamespacePolicies.load(loaded.dump()) == loaded
    assert loaded.deduplication is True


async def test_partitioned_topics() -> None:
    catalog, store = await make()
    assert await catalog.partitions(PARTED) == 0
    await catalog.create_partitioned(PARTED, 3)
    assert await catalog.partitions(PARTED) == 3
    assert await catalog.partitioned_topics("public/default", "persistent") == [PARTED]
    with pytest.raises(AlreadyExists):
        await catalog.create_partitioned(PARTED, 3)
    prepared: list[int] = []

    async def prepare(indexes: range) -> None:
        assert await catalog.partitions(PARTED) == 3, "nobody may learn of them before they are ready"
        prepared.extend(indexes)

    await catalog.grow_partitions(PARTED, 5, prepare)
    assert (prepared, await catalog.partitions(PARTED)) == ([3, 4], 5)
    await catalog.grow_partitions(PARTED, 5, prepare)
    with pytest.raises(BadRequest):
        await catalog.grow_partitions(PARTED, 4, prepare)
    for count in (0, -1, 1_000_000):
        with pytest.raises(BadRequest):
            await catalog.create_partitioned(PLAIN, count)
    with pytest.raises(BadRequest):
        await catalog.create_partitioned(PARTED.partition(1), 2)
    await exist(store, PLAIN)
    with pytest.raises(AlreadyExists):
        await catalog.create_partitioned(PLAIN, 2)
    with pytest.raises(TopicNotFound):
        await catalog.grow_partitions(PLAIN, 2, prepare)


async def test_concurrent_creation_succeeds_once() -> None:
    catalog, _ = await make()
    outcomes = await asyncio.gather(
        *(catalog.create_partitioned(PARTED, count) for count in (2, 3)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in outcomes) == ["AlreadyExists", "NoneType"]


@pytest.mark.parametrize("local", ["a/b", "100%", "ünïcode", "a b", "x-partition-", "+"])
async def test_local_names_round_trip_through_store(local: str) -> None:
    catalog, store = await make()
    topic = TopicName.from_parts("persistent", "public", "default", local)
    await exist(store, topic)
    assert await catalog.topics("public/default") == [topic]


async def test_partition_metadata_creates_only_if_policy_allows() -> None:
    catalog, store = await make(BrokerSettings(auto_create_partitions=4))
    with pytest.raises(TopicNotFound):
        await catalog.partitions_or_create(PARTED, False)
    assert await catalog.partitions_or_create(PARTED, True) == 4
    assert await catalog.partitions_or_create(PARTED.partition(1), True) == 0
    await exist(store, PLAIN)
    assert await catalog.partitions_or_create(PLAIN, True) == 0
    with pytest.raises(NamespaceNotFound):
        await catalog.partitions_or_create(TopicName.parse("persistent://public/none/t"), True)


async def test_check_may_load() -> None:
    catalog, store = await make()
    assert not await catalog.check_may_load(PLAIN, True)
    with pytest.raises(TopicNotFound):
        await catalog.check_may_load(PLAIN, False)
    await exist(store, PLAIN)
    assert await catalog.check_may_load(PLAIN, False)
    await catalog.create_partitioned(PARTED, 2)
    assert not await catalog.check_may_load(PARTED.partition(1), False), "promised by its partitioned topic"
    with pytest.raises(TopicNotFound):
        await catalog.check_may_load(PARTED.partition(2), True)
    with pytest.raises(NotAllowed):
        await catalog.check_may_load(PARTED, True)
