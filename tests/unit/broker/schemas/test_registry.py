"""The registry on a store in memory: numbers, identity, policies, deletion and concurrent writers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.broker.admin.schemas import SchemaAdmin
from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.errors import IncompatibleSchema, NamespaceNotFound, SchemaNotFound, TooManySchemas
from anabranch.broker.schemas.compatibility import SchemaTooLarge
from anabranch.broker.schemas.counters import NAMESPACES_MAX, OTHERS, Counts, SchemaCounts
from anabranch.broker.schemas.policy import AUTO_UPDATE, AUTO_UPDATE_STRATEGY, STRATEGY, VALIDATION, SchemaPolicy
from anabranch.broker.schemas.registry import SchemaRegistry, schema_name, version_bytes
from anabranch.broker.schemas.settings import SchemaSettings
from anabranch.broker.settings import BrokerSettings
from anabranch.metadata.interface import Expected, Session, Version
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.errors import BadRequest
from anabranch.model.names import TopicName
from anabranch.model.schema import BadSchema, Schema, SchemaType, Strategy
from anabranch.runtime.settings import SettingsError
from tests.support.in_memory.schema_registry import new_registry
from tests.support.in_memory.topic_log import ManualClock

TOPIC = TopicName.parse("orders")
NAMESPACE = "public/default"
STRING, INT, BYTES = Schema(SchemaType.STRING), Schema(SchemaType.INT32), Schema(SchemaType.NONE)


def avro(*fields: str, **defaults: int) -> Schema:
    made: list[dict[str, Any]] = [{"name": name, "type": "int"} for name in fields]
    made += [{"name": name, "type": "int", "default": value} for name, value in defaults.items()]
    return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": made}).encode(), {"p": "q"})


class World:
    def __init__(self, store: MemoryStore, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.catalog = Catalog(store, BrokerSettings())
        self.registry = self.another()

    def another(self, **settings: Any) -> SchemaRegistry:
        """As in another broker on the same store."""
        return new_registry(self.store, self.catalog, self.clock, **settings)

    async def say(self, policy: str, value: Any) -> None:
        await SchemaAdmin(lambda: pytest.fail("not needed")).set_policy(NAMESPACE, policy, value)

    async def policy(self, **others: Any) -> None:
        await self.catalog.change_policies(NAMESPACE, lambda before: type(before)(before.deduplication, others))

    async def rows(self) -> list[list[Any]]:
        """The live versions as the history has them, whether their definitions are there or not."""
        found = await self.store.get(f"/schemas/{schema_name(TOPIC)}")
        rows: list[list[Any]] = [] if found is None else json.loads(found.value)["versions"]
        return rows

    async def keys(self) -> list[str]:
        return [key async for key, _ in self.store.scan("/schemas")]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = ManualClock()
    async with MemoryStore(clock) as store:
        made = World(store, clock)
        await made.catalog.ensure_defaults()
        yield made


# -- numbers and identity


async def test_versions_start_at_zero_and_are_found(world: World) -> None:
    registry = world.registry
    schemas = [avro("a"), avro("a", b=1), avro("a", b=1, c=2)]
    assert [await registry.register(TOPIC, schema) for schema in schemas] == [0, 1, 2]
    assert [await registry.register(TOPIC, schema) for schema in schemas] == [0, 1, 2]
    assert [await registry.find(TOPIC, schema) for schema in (*schemas, avro("z"))] == [0, 1, 2, None]
    assert [one.version for one in await registry.history(TOPIC)] == [0, 1, 2]
    assert (await registry.get(TOPIC)).version == 2
    found = await registry.get(TOPIC, 1)
    assert (found.version, found.schema, found.registered_ms) == (1, schemas[1], world.clock.now_ms())


async def test_equivalent_definition_has_the_same_version(world: World) -> None:
    await world.registry.register(TOPIC, avro("a"))
    spaced = Schema(SchemaType.AVRO, json.dumps(json.loads(avro("a").data), indent=4).encode())
    assert await world.registry.register(TOPIC, spaced) == 0
    assert (await world.registry.get(TOPIC)).schema.data == avro("a").data  # as it was said first


async def test_partitions_and_segments_share_one_history(world: World) -> None:
    names = [
        "persistent://public/default/x",
        "persistent://public/default/x-partition-7",
        "non-persistent://public/default/x",
        "topic://public/default/x",
        "segment://public/default/x/0000-7fff-1",
    ]
    topics = [TopicName.parse(name) for name in names]
    assert {schema_name(topic) for topic in topics} == {"public/default/x"}
    assert [await world.registry.register(topic, STRING) for topic in topics] == [0] * 5
    assert schema_name(TopicName.parse("persistent://public/default/a/b c")) == "public/default/a%2Fb+c"


async def test_topics_have_separate_histories(world: World) -> None:
    await world.registry.register(TOPIC, STRING)
    assert await world.registry.register(TopicName.parse("orders2"), INT) == 0
    with pytest.raises(SchemaNotFound):
        await world.registry.get(TopicName.parse("persistent://public/default/orders/x"))


async def test_missing_schema_is_not_found(world: World) -> None:
    for version in (None, 0, 7):
        with pytest.raises(SchemaNotFound):
            await world.registry.get(TOPIC, version)
    assert await world.registry.history(TOPIC) == []


def test_versions_on_the_wire() -> None:
    assert version_bytes(None) == b""
    assert version_bytes(258) == b"\0\0\0\0\0\0\1\2"


async def test_a_new_registry_reads_what_an_old_one_wrote(world: World) -> None:
    await world.registry.register(TOPIC, avro("a"))
    assert (await world.another().get(TOPIC)).schema == avro("a")


# -- what is refused


async def test_incompatible_schema_is_refused_and_not_stored(world: World) -> None:
    await world.registry.register(TOPIC, avro("a"))
    with pytest.raises(IncompatibleSchema) as refused:
        await world.registry.register(TOPIC, avro("a", "b"))
    assert refused.value.code == "incompatible-schema"
    assert not refused.value.retryable
    assert [one.version for one in await world.registry.history(TOPIC)] == [0]
    assert len(await world.keys()) == 2  # the history and one definition


async def test_invalid_definition_is_refused(world: World) -> None:
    with pytest.raises(BadSchema):
        await world.registry.register(TOPIC, Schema(SchemaType.AVRO, b"{}"))
    assert await world.keys() == []


async def test_limits(world: World) -> None:
    registry = world.another(versions_max=2, bytes_max=1024)
    with pytest.raises(SchemaTooLarge, match="1024"):
        await registry.register(TOPIC, Schema(SchemaType.EXTERNAL, b"x" * 1025))
    assert [await registry.register(TOPIC, avro("a")), await registry.register(TOPIC, avro("a", b=1))] == [0, 1]
    with pytest.raises(TooManySchemas):
        await registry.register(TOPIC, avro("a", b=1, c=1))
    assert await registry.register(TOPIC, avro("a")) == 0


async def test_largest_definition_fits_into_the_store(world: World) -> None:
    large = Schema(SchemaType.EXTERNAL, b"\xff" * 512 * 1024, {"k": "v" * 60_000})
    assert await world.registry.register(TOPIC, large) == 0
    assert (await world.registry.get(TOPIC)).schema == large


async def test_missing_namespace_is_not_found(world: World) -> None:
    with pytest.raises(NamespaceNotFound):
        await world.registry.register(TopicName.parse("persistent://no/where/x"), STRING)


# -- policies


async def test_strategy_of_namespace_is_applied(world: World) -> None:
    await world.registry.register(TOPIC, avro("a"))
    await world.policy(**{STRATEGY: "FORWARD"})
    assert await world.registry.register(TOPIC, avro("a", "b")) == 1
    await world.policy(**{STRATEGY: "ALWAYS_INCOMPATIBLE"})
    with pytest.raises(IncompatibleSchema):
        await world.registry.register(TOPIC, avro("a", "b", c=1))
    assert await world.registry.register(TOPIC, avro("a")) == 0  # known ones go on
    await world.policy(**{STRATEGY: "ALWAYS_COMPATIBLE"})
    assert await world.registry.register(TOPIC, STRING) == 2
    await world.policy(**{STRATEGY: "BACKWARD_TRANSITIVE"})
    with pytest.raises(IncompatibleSchema):
        await world.registry.register(TOPIC, avro("a", c=1))  # not after the STRING


async def test_no_new_versions_by_clients(world: World) -> None:
    await world.policy(**{AUTO_UPDATE: False})
    with pytest.raises(IncompatibleSchema, match="do not allow clients to add schemas"):
        await world.registry.admit_producer(TOPIC, avro("a"))
    with pytest.raises(IncompatibleSchema, match="do not allow clients to add schemas"):
        await world.registry.admit_consumer(TOPIC, avro("a"), lambda: True)
    assert await world.registry.register(TOPIC, avro("a"), by_administrator=True) == 0
    assert await world.registry.admit_producer(TOPIC, avro("a")) == 0
    with pytest.raises(IncompatibleSchema):
        await world.registry.admit_producer(TOPIC, avro("a", b=1))


async def test_producers_without_a_schema(world: World) -> None:
    registry, schemaless = world.registry, (None, Schema(SchemaType.AUTO_CONSUME))
    await registry.register(TOPIC, avro("a"))
    assert [await registry.admit_producer(TOPIC, schema) for schema in schemaless] == [None] * 2
    await world.policy(**{VALIDATION: True})
    for schema in schemaless:
        with pytest.raises(IncompatibleSchema, match="validation"):
            await registry.admit_producer(TOPIC, schema)
    assert await registry.admit_producer(TopicName.parse("bytes"), None) is None  # it has no schema to keep
    await world.policy()
    with pytest.raises(IncompatibleSchema):
        await world.another(validation_enforced=True).admit_producer(TOPIC, None)


async def test_type_none_is_registered_and_compared_like_any_other(world: World) -> None:
    registry = world.registry
    assert await registry.admit_producer(TOPIC, BYTES) == 0
    assert await registry.admit_producer(TOPIC, Schema(SchemaType.NONE, b"", {"p": "q"})) == 0  # bytes are bytes
    assert (await registry.get(TOPIC)).schema == BYTES
    await registry.admit_consumer(TOPIC, BYTES, lambda: False)
    for refused in (registry.admit_producer(TOPIC, avro("a")), registry.admit_consumer(TOPIC, avro("a"), lambda: True)):
        with pytest.raises(IncompatibleSchema, match="exists schema type NONE, new schema type AVRO"):
            await refused
    other = TopicName.parse("typed")
    await registry.register(other, avro("a"))
    for refused in (registry.admit_producer(other, BYTES), registry.admit_consumer(other, BYTES, lambda: False)):
        with pytest.raises(IncompatibleSchema, match="exists schema type AVRO, new schema type NONE"):
            await refused
    await world.policy(**{STRATEGY: "ALWAYS_COMPATIBLE"})
    assert await registry.admit_producer(other, BYTES) == 1
    assert await registry.admit_producer(TOPIC, avro("a")) == 1


async def test_consumer_of_type_none_fixes_the_schema_of_an_unused_topic(world: World) -> None:
    await world.registry.admit_consumer(TOPIC, BYTES, lambda: True)
    assert (await world.registry.get(TOPIC)).schema.type is SchemaType.NONE


async def test_consumers(world: World) -> None:
    registry = world.registry
    with pytest.raises(IncompatibleSchema, match="but no schema"):
        await registry.admit_consumer(TOPIC, avro("a"), lambda: False)  # bytes are in it already
    await registry.admit_consumer(TOPIC, avro("a"), lambda: True)  # unused: the first one says what will be in it
    assert (await registry.get(TOPIC)).version == 0
    await registry.admit_consumer(TOPIC, avro("a", b=1), lambda: False)
    assert len(await registry.history(TOPIC)) == 1  # reading adds nothing
    with pytest.raises(IncompatibleSchema, match="consumer's schema"):
        await registry.admit_consumer(TOPIC, avro("a", "b"), lambda: True)
    with pytest.raises(IncompatibleSchema, match="exists schema type AVRO, new schema type STRING"):
        await registry.admit_consumer(TOPIC, STRING, lambda: False)
    for schemaless in (None, Schema(SchemaType.AUTO_CONSUME)):
        await registry.admit_consumer(TOPIC, schemaless, lambda: False)
    with pytest.raises(SchemaTooLarge):
        await registry.admit_consumer(TOPIC, Schema(SchemaType.AVRO, b" " * 600_000), lambda: False)
    await world.policy(**{STRATEGY: "ALWAYS_COMPATIBLE"})
    await registry.admit_consumer(TOPIC, STRING, lambda: False)


def test_policies_are_resolved() -> None:
    def resolved(others: dict[str, Any], **settings: Any) -> SchemaPolicy:
        return SchemaPolicy.of(others, SchemaSettings(**settings))

    assert resolved({}) == SchemaPolicy(Strategy.FULL, True, False)
    assert resolved({STRATEGY: "UNDEFINED"}).strategy is Strategy.FULL
    assert resolved({}, compatibility_strategy="BACKWARD").strategy is Strategy.BACKWARD
    assert resolved({AUTO_UPDATE_STRATEGY: "Forward"}).strategy is Strategy.FORWARD
    assert resolved({AUTO_UPDATE_STRATEGY: "Forward", STRATEGY: "FULL"}).strategy is Strategy.FULL
    assert resolved({}, auto_update=False).auto_update is False
    assert resolved({AUTO_UPDATE: True}, auto_update=False).auto_update is True


def test_settings_errors_name_the_setting() -> None:
    with pytest.raises(SettingsError) as complaint:
        SchemaSettings(compatibility_strategy="UNDEFINED", bytes_max=1, versions_max=0)
    assert [text.partition(":")[0] for text in complaint.value.complaints] == [
        "schemas.compatibility_strategy",
        "schemas.bytes_max",
        "schemas.versions_max",
    ]


async def test_unknown_policies_are_refused(world: World) -> None:
    for policy, value in ((STRATEGY, "zzz"), (STRATEGY, 3), (AUTO_UPDATE_STRATEGY, "FULL"), (VALIDATION, "true")):
        with pytest.raises(BadRequest):
            await world.say(policy, value)


# -- deletion


async def test_deletion_takes_a_number_and_hides_earlier_versions(world: World) -> None:
    registry = world.registry
    await registry.register(TOPIC, avro("a"))
    await registry.register(TOPIC, avro("a", b=1))
    assert [await registry.delete(TOPIC), await registry.delete(TOPIC)] == [2, 3]
    for version in (None, 0, 1, 2, 3):
        with pytest.raises(SchemaNotFound):
            await registry.get(TOPIC, version)
    assert await registry.history(TOPIC) == []
    assert await registry.register(TOPIC, STRING) == 4  # another type, too: nothing is left to be compatible with
    assert len(await world.keys()) == 2


async def test_deleting_a_missing_schema(world: World) -> None:
    assert await world.registry.delete(TOPIC) == 0
    assert await world.registry.register(TOPIC, STRING) == 1


async def test_forced_deletion_removes_the_history(world: World) -> None:
    await world.registry.register(TOPIC, avro("a"))
    await world.registry.register(TopicName.parse("orders-of-others"), INT)
    assert await world.registry.delete(TOPIC, force=True) == -1
    assert await world.registry.delete(TOPIC, force=True) == -1
    assert await world.registry.register(TOPIC, STRING) == 0
    assert (await world.registry.get(TopicName.parse("orders-of-others"))).schema == INT


async def test_numbers_continue_if_producers_may_return(world: World) -> None:
    await world.registry.forget_topic(TOPIC, may_return=True)
    assert await world.keys() == []  # nothing to remember of a topic without a schema
    await world.registry.register(TOPIC, STRING)
    await world.registry.forget_topic(TOPIC, may_return=True)
    assert await world.registry.register(TOPIC, INT) == 2
    await world.registry.forget_topic(TOPIC, may_return=False)
    assert await world.keys() == []


async def test_a_namespace_takes_its_schemas_with_it(world: World) -> None:
    for name in ("a", "b/c", "x-partition-1-partition-2"):
        await world.registry.register(TopicName.parse(f"persistent://public/default/{name}"), STRING)
    await world.registry.forget_namespace(NAMESPACE)
    assert await world.keys() == []


# -- several at once


async def test_concurrent_writers_share_one_history(world: World) -> None:
    """Each of eight brokers adds its own field with a default: all are let in, one after the other, none twice."""
    schemas = [avro("a", **{f"f{number}": number}) for number in range(8)]
    versions = await asyncio.gather(*(world.another().register(TOPIC, one) for one in schemas))
    assert sorted(versions) == list(range(8))
    stored = {one.version: one.schema for one in await world.registry.history(TOPIC)}
    assert [stored[version] for version in versions] == schemas


async def test_one_of_two_incompatible_concurrent_schemas_wins(world: World) -> None:
    outcomes = await asyncio.gather(
        world.another().register(TOPIC, STRING), world.another().register(TOPIC, INT), return_exceptions=True
    )
    assert [type(one) for one in outcomes if not isinstance(one, int)] == [IncompatibleSchema]
    assert [one for one in outcomes if isinstance(one, int)] == [0]


class Interrupted(MemoryStore):
    """Runs something else just before it writes or deletes a key."""

    before: Any = None

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        await self._interrupt("put", key)
        return await super().put(key, value, expected=expected, session=session)

    async def delete(self, key: str, *, expected: Expected) -> None:
        await self._interrupt("delete", key)
        await super().delete(key, expected=expected)

    async def _interrupt(self, what: str, key: str) -> None:
        if self.before is not None and self.before[0] == (what, key.count("/")):
            (_, call), self.before = self.before, None
            await call()


HISTORY, DEFINITION = 4, 5  # slashes in the key


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("moment", [("put", HISTORY), ("put", DEFINITION)])
async def test_deletion_during_registration(force: bool, moment: tuple[str, int]) -> None:
    clock = ManualClock()
    async with Interrupted(clock) as store:
        world = World(store, clock)
        await world.catalog.ensure_defaults()
        await world.registry.register(TOPIC, avro("a"))
        store.before = (moment, lambda: world.another().delete(TOPIC, force=force))
        version = await world.registry.register(TOPIC, avro("a", b=1))
        assert store.before is None
        assert (await world.registry.get(TOPIC)).schema == avro("a", b=1)
        assert version == (0 if force else 2)
        assert len(await world.registry.history(TOPIC)) == 1


@pytest.mark.parametrize("force", [True, False])
async def test_deletion_during_first_registration(force: bool) -> None:
    clock = ManualClock()
    async with Interrupted(clock) as store:
        world = World(store, clock)
        await world.catalog.ensure_defaults()
        store.before = (("put", HISTORY), lambda: world.another().delete(TOPIC, force=force))
        await world.registry.register(TOPIC, avro("a"))
        assert store.before is None
        assert [one.schema for one in await world.registry.history(TOPIC)] == [avro("a")]


async def test_two_deletions_and_the_same_schema_again() -> None:
    """The second one finds the history gone, and must leave alone what came after the first."""
    clock = ManualClock()
    async with Interrupted(clock) as store:
        world = World(store, clock)
        await world.catalog.ensure_defaults()
        await world.registry.register(TOPIC, avro("a"))

        async def meanwhile() -> None:
            await world.another().delete(TOPIC, force=True)
            await world.another().register(TOPIC, avro("a"))
            store.before = (("delete", DEFINITION), again)

        async def again() -> None:
            await world.another().register(TOPIC, avro("a"))

        store.before = (("delete", HISTORY), meanwhile)
        await world.registry.delete(TOPIC, force=True)
        left = await world.registry.history(TOPIC)
        assert left == [] or [one.schema for one in left] == [avro("a")]
        assert [one.version for one in left] == [one[0] for one in await world.rows()]


@pytest.mark.parametrize("moment", [("delete", HISTORY), ("delete", DEFINITION)])
async def test_same_schema_registered_during_deletion(moment: tuple[str, int]) -> None:
    clock = ManualClock()
    async with Interrupted(clock) as store:
        world = World(store, clock)
        await world.catalog.ensure_defaults()
        await world.registry.register(TOPIC, avro("a"))
        store.before = (moment, lambda: world.another().register(TOPIC, avro("a", b=1)))
        if moment[1] == DEFINITION:
            store.before = (moment, lambda: world.another().register(TOPIC, avro("a")))
        await world.registry.delete(TOPIC, force=True)
        assert store.before is None
        history = await world.registry.history(TOPIC)
        if moment[1] == DEFINITION:  # it came after the deletion: its definition must be there still
            assert [one.schema for one in history] == [avro("a")]
        else:  # it came before: gone like the rest
            assert history == []
            assert await world.keys() == []


async def test_operations_are_counted_by_namespace(world: World) -> None:
    await world.policy(schema_compatibility_strategy="BACKWARD")
    registry = world.registry
    with pytest.raises(SchemaNotFound):
        await registry.get(TOPIC)
    await registry.register(TOPIC, avro("a"))
    await registry.register(TOPIC, avro("a"))  # known: nothing to compare
    await registry.register(TOPIC, avro("a", b=1))
    with pytest.raises(IncompatibleSchema):
        await registry.register(TOPIC, avro("a", "b", "c"))
    await registry.get(TOPIC)
    await registry.delete(TOPIC)
    assert registry.counts.by_namespace == {
        NAMESPACE: Counts(got=1, got_failed=1, put=3, put_failed=1, deleted=1, compatible=1, incompatible=1)
    }


def test_counts_are_kept_for_a_bounded_number_of_namespaces() -> None:
    counts = SchemaCounts()
    for number in range(NAMESPACES_MAX + 5):
        counts.of(f"t/n{number}").got += 1
    assert len(counts.by_namespace) == NAMESPACES_MAX + 1 and counts.by_namespace[OTHERS].got == 5
