"""Starts the migration of a regular topic: writes the first record of the scalable topic, then waits for its outcome.

The record is the plan. The topic's leader does everything else (`topic.operation_workflow`), also after a crash of the
broker that has written it. No copy of the record in memory is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.controller.events import TopicGone
from anabranch.controller.record_store import NOW, RecordStore
from anabranch.controller.records.topic_record import (
    MigratedFrom,
    MigrationOptions,
    NoSuchOperation,
    TopicRecord,
    migration_planned,
)
from anabranch.controller.topic.operation_events import MigrationCall, MigrationUndone
from anabranch.controller.topic.topic_controller import TopicController
from anabranch.controller.topic_controllers import TopicControllers
from anabranch.model.names import TopicName
from anabranch.model.routing import Routing
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)


class Migrations:
    def __init__(self, records: RecordStore, controllers: TopicControllers, clock: Clock, chance: Chance) -> None:
        self._records, self._controllers = records, controllers
        self._clock, self._chance = clock, chance

    async def start(
        self,
        topic: TopicName,
        old_name: TopicName,
        partitions: int,
        operation_id: str,
        *,
        routing: Routing,
        force: bool,
        kinds: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        """Returns when the topic is a scalable one. Safe to repeat with the same id. Raises MigrationUndone,
        TopicExists, LedElsewhere."""
        await self._controllers.check_placed_here(topic)
        known = await self._records.find(topic)
        if known is None or known.operation is None or known.operation.operation_id != operation_id:
            now_ms = self._clock.now_ms()
            origin = MigratedFrom(str(old_name), partitions, now_ms)
            record = migration_planned(
                origin,
                operation_id,
                incarnation=(now_ms << 10) | int(self._chance.random() * 1024),
                epoch=0,  # as every layout session of a regular topic has it (`regular_topics`)
                routing=routing,
                options=MigrationOptions(force, dict(kinds)),
                properties=properties,
            )
            await self._records.mark_pending(topic, NOW)
            await self._records.create(topic, record)
            known = record
            log.info("migration of a regular topic planned", extra={"topic": str(topic), "partitions": partitions})

        async def work(controller: TopicController) -> None:
            await controller.ask(MigrationCall(operation_id))

        try:
            await self._controllers.call(topic, work)
        except NoSuchOperation:
            if not await self._is_done(topic, known):  # else another operation has come after it
                raise
        except TopicGone as gone:
            raise MigrationUndone(f"the migration to {topic} was undone; its leader has logged why") from gone
        await self._controllers.clear_name(topic)

    async def _is_done(self, topic: TopicName, planned: TopicRecord) -> bool:
        found = await self._records.find(topic)
        return (
            found is not None
            and found.incarnation == planned.incarnation
            and found.migrated_from is not None
            and not found.is_migrating
        )
