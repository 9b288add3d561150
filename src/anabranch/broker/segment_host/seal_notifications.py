"""Notifications to producers with our extensions when their segment is sealed: the children, and where they are.

The children are read before the seal begins, so that nothing is read while producers wait. Those of a migration are not
sent: a producer can use them only with the layout that is committed, and each of N partitions has all N of them.
"""

from __future__ import annotations

from collections import OrderedDict

from anabranch.broker.placement import Placement
from anabranch.broker.publish.producer import Producer
from anabranch.broker.segment.owned_segment import OwnedSegment
from anabranch.broker.segment_host.topic_layouts import ScalableTopic, TopicLayouts
from anabranch.controller.segment_host import Seal
from anabranch.model.errors import Error
from anabranch.model.hashrange import HashRange
from anabranch.model.names import Domain, TopicName
from anabranch.model.segment import Segment, backing_topic
from anabranch.protocol.segments import segment_sealed
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

READY_MAX = 1_000


class SealNotifications:
    def __init__(self, records: TopicLayouts, placement: Placement) -> None:
        self._records = records
        self._placement = placement
        self._ready: OrderedDict[TopicName, tuple[Segment, ...]] = OrderedDict()

    async def prepare(self, request: Seal) -> None:
        """Finds the children; reads the record only if this broker has not seen the planned operation."""
        name = request.segment.name
        if name.domain is not Domain.SEGMENT:
            return
        known = self._listed(self._records.remembered(name.scalable), request)
        if known is None:
            try:
                known = self._listed(await self._records.read(name.scalable), request)
            except Error as error:
                log.warning(
                    "record not readable; children of a sealed segment taken from their names",
                    extra={"segment": str(name), "reason": error.reason},
                )
        self._ready[name] = _by_name(request) if known is None else known
        while len(self._ready) > READY_MAX:
            self._ready.popitem(last=False)

    def _listed(self, topic: ScalableTopic | None, request: Seal) -> tuple[Segment, ...] | None:
        """The children in the record; None unless it lists all of them."""
        if topic is None or topic.incarnation != request.segment.incarnation:
            return None
        found = [topic.segment(one.name) for one in request.children]
        listed = tuple(one for one in found if one is not None)
        return listed if len(listed) == len(found) else None

    def ready(self, name: TopicName) -> tuple[Segment, ...]:
        """The children of a segment that is being sealed."""
        return self._ready.get(name, ())

    def notify(self, producer: Producer, segment: OwnedSegment) -> None:
        note = segment.state.sealed
        assert note is not None
        topic, children = segment.name.scalable, self.ready(segment.name)
        named = [(one.segment_id, one.name) for one in note.children]
        named = named or [(one.segment_id, backing_topic(topic, one)) for one in children]
        addresses = ((one, self._placement.owner_address(name)) for one, name in named)
        producer.peer.send(
            segment_sealed(
                producer.producer_id,
                note.operation,
                segment.topic.deduplication.last_sequence(producer.name),
                children,
                [(one, at.service_url, at.service_url_tls) for one, at in addresses if at is not None],
            )
        )


def _by_name(request: Seal) -> tuple[Segment, ...]:
    """Ids and ranges from the names of the children."""
    named = ((one, one.name.segment) for one in request.children)
    return tuple(
        Segment(one.segment_id, HashRange(at.start, at.end), parent_ids=(request.segment.segment_id,))
        for one, at in named
        if at is not None
    )
