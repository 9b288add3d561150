"""What the scalers of all topics share: records, policies and the placement of segments."""

from __future__ import annotations

from collections.abc import Collection

from anabranch.controller.autoscale.policies import EffectivePolicies
from anabranch.controller.autoscale.scaling_records import ScalingRecords
from anabranch.controller.autoscale.scaling_totals import ScalingTotals
from anabranch.controller.autoscale.topic_scaler import ScaledTopic, TopicScaler
from anabranch.controller.placement import Place
from anabranch.controller.record_store import RecordStore
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.model.names import TopicName
from anabranch.model.segment import backing_topic
from anabranch.runtime.clock import Clock


class AutoScaling:
    def __init__(
        self, records: RecordStore, policies: EffectivePolicies, place: Place, clock: Clock, *, interval_seconds: float
    ) -> None:
        """`interval_seconds`: every led topic is evaluated at least that often."""
        self.interval_seconds = interval_seconds
        self._records, self._policies, self._place, self._clock = records, policies, place, clock
        self.totals = ScalingTotals()

    @property
    def records(self) -> ScalingRecords:
        return self._records.scaling

    async def changed_namespaces(self, namespaces: Collection[str]) -> set[str]:
        return await self._policies.changed_namespaces(namespaces)

    def scaler(self, leader: ScaledTopic) -> TopicScaler:
        topic = leader.topic

        def unowned(record: TopicRecord) -> list[int]:
            return [
                one.segment_id
                for one in record.layout.active
                if self._place.owner_address(backing_topic(topic, one)) is None
            ]

        return TopicScaler(
            leader,
            self.records,
            lambda record: self._policies.of_record(topic, record),
            unowned,
            self.totals,
            self._clock,
        )

    async def merge_due_at_ms(self, topic: TopicName, since_ms: int) -> int | None:
        """When the topic can be merged, if one of its segments has been cold since then; None: never."""
        record = await self._records.find(topic, sync=False)
        policy = None if record is None else await self._policies.of_record(topic, record)
        if record is None or policy is None or not policy.enabled or len(record.layout.active) <= policy.min_segments:
            return None
        return since_ms + policy.merge_window_seconds * 1000
