"""Migration of regular topics to scalable topics (PIP-475), for administrators.

The broker that leads the topic's name checks and starts it. Facts about partitions come from their owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from anabranch.broker.admin.migration_check import (
    MigrationBlocked,
    TopicFacts,
    blockers,
    check_kinds,
    report,
)
from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.partition_hashes import PartitionHashes
from anabranch.broker.admin.scalable_topics import led, scalable_name
from anabranch.broker.catalog.partition_holds import DELETING
from anabranch.broker.catalog.policies import LOCAL_CLUSTER
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.segment.adopted_topic import facts_of
from anabranch.broker.segment.segment_state import PROPERTY
from anabranch.broker.segment_host.request_codec import answer_json, read_answer
from anabranch.broker.services import Services
from anabranch.broker.topic.topic import Topic
from anabranch.controller.interface import ScalableTopics, TopicRecord
from anabranch.controller.segment_host import Adopted
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import Error, NotAllowed, NotFound
from anabranch.model.names import Domain, TopicName
from anabranch.model.replacement import OperationKind
from anabranch.model.routing import MOD_N, Routing, RoutingKind
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

PROGRESS_SECONDS = 1.0
"""Status waits no longer for the leader of a migration."""


class TopicMigrationAdmin:
    def __init__(self, services: Callable[[], Services], hashes: PartitionHashes) -> None:
        self._services = services
        self._routing = OwnerRouting(services)
        self._hashes = hashes

    def _topics(self) -> ScalableTopics:
        found = self._services().scalable
        if found is None or not found.is_enabled:
            raise NotAllowed("scalable topics are switched off on this broker")
        return found

    def _check_switch(self) -> None:
        if not self._topics().can_migrate:
            raise NotAllowed("migrations are switched off (scalable_topics.migration_enabled)")

    async def check(self, topic: str, *, force: bool, kinds: Mapping[str, str]) -> dict[str, Any]:
        """What a migration would do and what blocks it; nothing is changed. TopicNotFound."""
        facts = await self._facts(topic)
        return report(facts, str(scalable_name(topic)), force=force, kinds=check_kinds(kinds))

    async def migrate(self, topic: str, *, force: bool, kinds: Mapping[str, str]) -> None:
        """The topic is scalable when this returns. TopicNotFound; MigrationBlocked, MigrationUndone: unchanged."""
        self._check_switch()
        found = blockers(TopicFacts(topic, 0, is_partition=_is_partition(topic)), force=force, kinds={})
        if found:
            raise MigrationBlocked(found[0].text)
        await self._routing.call_owner(
            scalable_name(topic),
            self.migrate_at_leader,
            force=force,
            kinds=check_kinds(kinds),
            operation_id=self._topics().new_id(),
        )

    async def status(self, topic: str) -> dict[str, Any]:
        """`phase` NONE, the phases of an operation, UNDO or DONE; NotFound if no topic has the name. While it runs also
        `progress`, if the topic's leader answers."""
        name = scalable_name(topic)
        try:
            record = await self._topics().record(name)
        except NotFound:
            await self._regular(topic)
            return {"topic": str(name), "phase": "NONE"}
        found = _status(name, record)
        if record.is_migrating and (step := await self._step(name)) is not None:
            found["progress"] = step
        return found

    async def _step(self, name: TopicName) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(PROGRESS_SECONDS):
                step: dict[str, Any] | None = await self._routing.call_owner(name, self.step_at_leader)
        except (TimeoutError, Error):  # between two leaders: the record has the phase
            return None
        return step

    @peer_call("migration.step")
    async def step_at_leader(self, topic: str) -> dict[str, Any] | None:
        step = self._topics().migration_step(scalable_name(topic))
        return None if step is None else {"step": step.name, "done": step.done, "total": step.total}

    @peer_call("migration.start")
    async def migrate_at_leader(self, topic: str, force: bool, kinds: Mapping[str, str], operation_id: str) -> None:
        running = await self._running(topic)
        if running != operation_id:
            facts = await self._facts(topic)
            found = blockers(facts, force=force, kinds=kinds)
            if found:
                raise MigrationBlocked("; ".join(one.text for one in found))
            self._check_switch()
            routing = await self._routing_of(topic)
        else:
            facts, routing = TopicFacts(topic, 0), MOD_N  # planned already: they are in the record

        async def start(name: TopicName) -> None:
            await self._topics().migrate(
                name,
                _regular_name(topic),
                facts.partitions,
                operation_id,
                routing=routing,
                force=force,
                kinds=kinds,
                properties=facts.properties,
            )

        await led(topic, start)

    async def _running(self, topic: str) -> str | None:
        try:
            record = await self._topics().record(scalable_name(topic))
        except NotFound:
            return None
        return record.operation.operation_id if record.is_migrating and record.operation is not None else None

    async def _routing_of(self, topic: str) -> Routing:
        found = await self._hashes.report(_regular_name(topic))
        if found.partition_hash is None:
            return MOD_N
        return Routing(RoutingKind.MOD_N, partition_hash=found.partition_hash)

    async def _regular(self, topic: str) -> int:
        """Number of partitions, 0 for a topic without; TopicNotFound."""
        catalog, name = self._services().catalog, _regular_name(topic)
        count = await catalog.partitions(name)
        if not count and not await catalog.exists(name):
            raise TopicNotFound(f"Topic {name} not found")
        return count

    async def _facts(self, topic: str) -> TopicFacts:
        catalog, name = self._services().catalog, _regular_name(topic)
        if _is_partition(topic):
            return TopicFacts(topic, 0, is_partition=True)
        try:
            record = await self._topics().record(name.scalable)
        except NotFound:
            pass
        else:
            return TopicFacts(str(name), 0, is_scalable=not record.is_migrating, is_migrating=record.is_migrating)
        count = await self._regular(topic)
        parts = [name.partition(index) for index in range(count)] or [name]
        answers = await self._routing.call_each(parts, self.partition_facts)
        policies, partitioned = await catalog.record_of(name), await catalog.partitioned_record(name)
        clusters = [str(one) for one in policies.get("replication_clusters") or () if one != LOCAL_CLUSTER]
        effective = await catalog.effective_of(name)
        return TopicFacts(
            str(name),
            count,
            [found for one in answers if isinstance(found := read_answer(one["facts"]), Adopted)],
            [str(part) for part, one in zip(parts, answers, strict=True) if one["terminated"]],
            replication_clusters=clusters,
            compaction_threshold=effective.compaction_threshold_bytes,
            partition_hash=(await self._hashes.report(name)).as_json() if count > 1 else {},
            is_being_deleted=bool(partitioned.get(DELETING)),
            properties=partitioned.get("properties", {}) if count else answers[0].get("properties", {}),
        )

    @peer_call("migration.facts")
    async def partition_facts(self, topic: str) -> dict[str, Any]:
        services, name = self._services(), TopicName.parse(topic)
        unused = {"facts": answer_json(Adopted()), "terminated": False}
        if services.topics.loaded(name) is None and not await services.catalog.exists(name):
            return unused  # opening it would create it
        try:
            found = await services.topics.get(name, create=False)
        except NotFound:
            return unused
        if not isinstance(found, Topic):
            raise NotAllowed(f"{name} is not persistent")
        properties = {key: text for key, text in found.log.properties.items() if key != PROPERTY}
        return {
            "facts": answer_json(facts_of(found)),
            "terminated": found.log.is_terminated,
            "properties": properties,
        }


def _is_partition(topic: str) -> bool:
    return TopicName.parse(topic).partition_index >= 0


def _regular_name(topic: str) -> TopicName:
    name = scalable_name(topic)
    return TopicName(Domain.PERSISTENT, name.tenant, name.namespace, name.local)


def _status(name: TopicName, record: TopicRecord) -> dict[str, Any]:
    running, origin, last = record.operation, record.migrated_from, record.last_operation
    value: dict[str, Any] = {"topic": str(name), "phase": "NONE"}
    if origin is not None:
        value["migratedFrom"] = {"topic": origin.topic, "partitions": origin.partitions, "atMs": origin.at_ms}
        value["phase"] = "DONE"
    if record.is_migrating and running is not None:
        value["phase"] = "UNDO" if record.is_deleting else running.phase.value
        value["operation"], value["startedAtMs"] = running.operation_id, running.started_at_ms
        if record.is_deleting:
            value["reason"] = running.reason
    elif last is not None and last.kind is OperationKind.MIGRATION:
        value["finishedAtMs"] = last.finished_at_ms
    return value
