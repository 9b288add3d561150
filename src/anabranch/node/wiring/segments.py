"""The segments of scalable topics on a broker with storage of its own: who makes, seals and buries them, and who lets
clients in. Wiring, no decisions."""

from __future__ import annotations

from contextlib import AsyncExitStack

from anabranch.broker.peers import BrokerPeers
from anabranch.broker.placement import Placement
from anabranch.broker.segment_host.host import ClusterSegmentHost
from anabranch.broker.segment_host.local_segments import LocalSegments
from anabranch.broker.segment_host.segment_guard import SegmentGuard
from anabranch.broker.segment_host.tombstone_sweeper import TombstoneSweeper
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.node.adapters.segment_logs import NodeSegmentLogs
from anabranch.node.adapters.topic_layouts import StoredScalableRecords
from anabranch.node.wiring.stores import Stores


async def open_segments(
    stores: Stores,
    topics: TopicRegistry,
    logs: NodeSegmentLogs,
    records: StoredScalableRecords,
    placement: Placement,
    peers: BrokerPeers | None,
    stack: AsyncExitStack,
) -> ClusterSegmentHost:
    owner = LocalSegments(topics, logs, stores.clock)
    stack.push_async_callback(owner.close)
    owner.start()
    tombstones = TombstoneSweeper(stores.catalog, logs, owner, stores.clock)
    stack.push_async_callback(tombstones.close)
    tombstones.start()
    host = ClusterSegmentHost(owner, placement, peers, stores.clock, records)
    stack.push_async_callback(host.close)
    topics.admit_segment = SegmentGuard(records, owner.wait_made).admit
    return host
