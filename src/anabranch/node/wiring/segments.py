"""The owner side of scalable topics on one broker: segment logs, listener, local segments and the segment host."""

from __future__ import annotations

from contextlib import AsyncExitStack

from anabranch.broker.peers import BrokerPeers
from anabranch.broker.placement import Placement
from anabranch.broker.segment_host.host import ClusterSegmentHost
from anabranch.broker.segment_host.local_segments import LocalSegments
from anabranch.broker.segment_host.seal_notifications import SealNotifications
from anabranch.broker.segment_host.segment_listener import LocalSegmentListener
from anabranch.broker.segment_host.tombstone_sweeper import TombstoneSweeper
from anabranch.broker.segment_load.load_meter import ReportRules
from anabranch.broker.segment_load.load_records import LoadRecords
from anabranch.broker.segment_load.load_reporter import LoadReporter
from anabranch.broker.topic_registry.factory import SegmentSupport
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.controller.service import ScalableTopicService
from anabranch.node.adapters.segment_logs import NodeSegmentLogs
from anabranch.node.adapters.topic_layouts import StoredScalableRecords
from anabranch.node.settings.node import NodeSettings
from anabranch.node.wiring.stores import Stores
from anabranch.runtime.tasks import TaskOwner


class SegmentWiring:
    """In two steps: `support` is given to the registry of topics, then `open` is given that registry."""

    def __init__(
        self, stores: Stores, logs: NodeSegmentLogs, layouts: StoredScalableRecords, placement: Placement
    ) -> None:
        self._stores = stores
        self._logs = logs
        self._layouts = layouts
        self._placement = placement
        self._listener = LocalSegmentListener(layouts, logs, SealNotifications(layouts, placement))
        self.support = SegmentSupport(logs, self._listener)
        self._tasks = TaskOwner("segment load")

    async def open(self, topics: TopicRegistry, peers: BrokerPeers | None, stack: AsyncExitStack) -> ClusterSegmentHost:
        clock = self._stores.clock
        stack.push_async_callback(self._tasks.close)
        owner = LocalSegments(topics, self._logs, self._listener, clock, self._layouts)
        stack.push_async_callback(owner.close)
        owner.start()
        sweeper = TombstoneSweeper(self._stores.catalog, self._logs, owner, clock)
        stack.push_async_callback(sweeper.close)
        sweeper.start()
        host = ClusterSegmentHost(owner, self._placement, peers, clock, self._layouts)
        stack.push_async_callback(host.close)
        return host

    def report_loads(
        self, topics: TopicRegistry, host: ClusterSegmentHost, scaled: ScalableTopicService, settings: NodeSettings
    ) -> None:
        """Starts the load reports of this broker's segments."""
        scalable, broker = settings.scalable_topics, settings.storage.broker_id
        rules = ReportRules(
            int(scalable.load_report_interval_seconds * 1000),
            scalable.load_report_change,
            scalable.load_report_hot_keys,
        )
        records = LoadRecords(self._stores.metadata)
        reporter = LoadReporter(
            topics,
            records,
            scaled.policies,
            host,
            scaled.scaling_totals,
            self._stores.clock,
            broker=broker,
            rules=rules,
        )
        self._tasks.spawn(reporter.run(), "reports")
