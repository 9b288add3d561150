"""What producers of our own kind are told when their segment is sealed: the children and where they are. Knows records
and placement.

Who the children are is read before the seal begins, so that nothing is asked while producers wait.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from anabranch.broker.placement import Placement
from anabranch.broker.producer import Producer
from anabranch.broker.scalable_records import ScalableRecords
from anabranch.broker.segment_topic import SegmentTopic
from anabranch.controller.host import Seal
from anabranch.model.errors import Error
from anabranch.model.hashrange import HashRange
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment
from anabranch.protocol.segments import segment_sealed

log = logging.getLogger(__name__)

READY_MAX = 1_000


class SealedNotices:
    def __init__(self, records: ScalableRecords, placement: Placement) -> None:
        self._records = records
        self._placement = placement
        self._ready: OrderedDict[TopicName, tuple[Segment, ...]] = OrderedDict()

    async def prepare(self, request: Seal) -> None:
        """Read what will be told."""
        name = request.segment.name
        try:
            topic = await self._records.read(name.scalable)
        except Error as error:  # ids and ranges are in the names
            log.warning("children told by name only", extra={"segment": str(name), "reason": error.reason})
            topic = None
        known = {} if topic is None else {one.segment_id: one for one in topic.planned} | dict(topic.layout.segments)
        named = ((one, one.name.segment) for one in request.children)
        self._ready[name] = tuple(
            known.get(one.segment_id)
            or Segment(one.segment_id, HashRange(at.start, at.end), parent_ids=(request.segment.segment_id,))
            for one, at in named
            if at is not None
        )
        while len(self._ready) > READY_MAX:
            self._ready.popitem(last=False)

    def tell(self, producer: Producer, topic: SegmentTopic) -> None:
        note = topic.facts.sealed
        assert note is not None
        addresses = ((one.segment_id, self._placement.whereabouts(one.name)) for one in note.children)
        producer.peer.send(
            segment_sealed(
                producer.producer_id,
                note.operation,
                topic.last_sequence(producer.name),
                self._ready.get(topic.name, ()),
                [(one, at.service_url, at.service_url_tls) for one, at in addresses if at is not None],
            )
        )
