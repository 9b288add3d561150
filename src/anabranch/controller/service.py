"""The scalable topics of one broker: what it leads (`controllers`) and the layouts that are watched on it (`watches`).

Implements `face.ScalableTopics`. Knows no broker; the ports it needs are given by who wires it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from anabranch.controller.controllers import Controllers
from anabranch.controller.interface import LayoutListener, LedTopic
from anabranch.controller.layout_watches import TopicActivation, Watcher, Watches, check_watchable
from anabranch.controller.namespace_rules import Rules
from anabranch.controller.operation_metrics import OperationCounts, Totals
from anabranch.controller.placement import Place
from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import SegmentHost
from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.controller.topic.topic_controller import Step, no_step
from anabranch.controller.topic_status import led_topic
from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.write_gate import WriteGate
from anabranch.model.names import TopicName
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock


class ScalableService(Controllers):
    """`async with ScalableService(…)`: leading and watching inside."""

    def __init__(
        self,
        store: MetadataStore,
        place: Place,
        segments: SegmentHost,
        rules: Rules,
        births: TopicActivation,
        *,
        broker: str,
        settings: ScalableTopicsSettings,
        clock: Clock,
        chance: Chance,
        step: Step = no_step,
        gate: WriteGate | None = None,
        memo: RecordCache | None = None,
    ) -> None:
        super().__init__(
            store,
            place,
            segments,
            rules,
            broker=broker,
            settings=settings,
            clock=clock,
            chance=chance,
            step=step,
            gate=gate,
            memo=memo,
        )
        self.watches = Watches(store, self.records, place, births, clock)
        self.counts = OperationCounts()
        self.told = self._said

    def _said(self, topic: TopicName, record: TopicRecord | None) -> None:
        self.counts.saw(topic, record)
        self.watches.said(topic, record)

    @property
    def totals(self) -> Totals:
        return self.counts.totals

    def led(self) -> list[LedTopic]:
        leaders = self.leaders
        self.counts.keep(leaders)
        return [found for leader in leaders.values() if (found := led_topic(leader)) is not None]

    def watch(self, topic: TopicName, listener: LayoutListener, *, create: bool) -> Watcher:
        """Raises NotAllowed, TopicGone for names that can have no layout."""
        check_watchable(topic)
        return self.watches.watch(topic, listener, create=create)

    def placement_changed(self, *, has_gained: bool) -> None:
        super().placement_changed(has_gained=has_gained)
        self.watches.placement_changed()

    async def __aenter__(self) -> Self:
        await self.watches.__aenter__()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await self.watches.__aexit__(kind, error, trace)
