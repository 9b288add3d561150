"""What a producer that opens a segment must know: the segment's ancestors, and the last sequence id of each for it.

The owners of the ancestors are asked, here or on other brokers. The answer of a sealed ancestor never changes and is
cached.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from anabranch.broker.publish.sequence_ids import Last
from anabranch.broker.segment.key_range_check import KeyRangeCheck
from anabranch.broker.segment_host.topic_layouts import ScalableTopic, TopicLayouts, find_segment
from anabranch.model.names import TopicName
from anabranch.model.routing import RoutingKind
from anabranch.model.segment import Segment, backing_topic
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.segments import ancestor_sequence

KNOWN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LastSequence:
    last: Last
    is_final: bool


_Key = tuple[TopicName, int, str]
"""Segment, incarnation of its topic (names are reused), producer."""

AskSequence = Callable[[TopicName, str], Awaitable[LastSequence | None]]
"""Asks the owner of a segment for the last sequence id of a producer; None: no such segment."""


class AncestorSequences:
    def __init__(self, records: TopicLayouts, ask: AskSequence) -> None:
        self._records = records
        self._ask = ask
        self._known: OrderedDict[_Key, Last] = OrderedDict()

    async def topic(self, name: TopicName) -> tuple[ScalableTopic, Segment]:
        """The topic's record and the segment in it; TopicNotFound when it does not list the segment."""
        return await find_segment(self._records, name)

    def proof(self, topic: ScalableTopic, segment: Segment) -> KeyRangeCheck | None:
        """The check of a producer's keys; None where keys are not routed by range."""
        routing = topic.layout.routing
        if routing.kind is not RoutingKind.RANGE:
            return None
        return KeyRangeCheck(segment.hash_range, routing.ring_hash)

    async def ancestors(
        self, topic: ScalableTopic, segment: Segment, producer: str, since: int | None = None
    ) -> list[pb.AncestorSequence]:
        """With `since`: every ancestor with this sequence id or a later one, and its note; former partitions of a
        regular topic always, because their number matters for routing. Raises what `ask` raises, because without an
        answer it is unknown what was stored."""
        found = topic.ancestors(segment)
        keys = [(backing_topic(topic.name, one), topic.incarnation, producer) for one in found]
        lasts = [self._remembered(key) for key in keys]
        unknown = [index for index, last in enumerate(lasts) if last is None]
        answers = await asyncio.gather(*(self._last(keys[index]) for index in unknown))
        for index, answer in zip(unknown, answers, strict=True):
            lasts[index] = answer
        had = [(one, last) for one, last in zip(found, lasts, strict=True) if last is not None]
        if since is None:
            minimal = minimal_ancestors([(one, last.sequence) for one, last in had])
            return [ancestor_sequence(one, topic.layout.routing, last) for one, last in minimal]
        return [
            ancestor_sequence(one, topic.layout.routing, last.sequence, last.note)
            for one, last in had
            if last.sequence >= since or one.legacy_topic_name is not None
        ]

    def _remembered(self, key: _Key) -> Last | None:
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]

    async def _last(self, key: _Key) -> Last | None:
        name, _, producer = key
        answer = await self._ask(name, producer)
        if answer is None:
            return None
        if answer.is_final:
            self._known[key] = answer.last
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return answer.last


def minimal_ancestors(ancestors: Sequence[tuple[Segment, int]]) -> list[tuple[Segment, int]]:
    """The ancestors (with their last sequence ids) that are not implied by another one.

    An ancestor with a part of another's keys and a lower sequence id adds nothing. So a topic that was split and merged
    a thousand times sends a producer only a few. Partitions of a regular topic are all kept, because their number
    matters for routing.
    """
    kept: list[tuple[Segment, int]] = []
    for one, last in sorted(ancestors, key=lambda it: (-it[1], -it[0].segment_id)):
        is_modulo = one.legacy_topic_name is not None
        if is_modulo or not any(_covers(other, one) for other, _ in kept):
            kept.append((one, last))
    return sorted(kept, key=lambda it: it[0].segment_id)


def _covers(other: Segment, one: Segment) -> bool:
    return other.legacy_topic_name is None and other.hash_range.covers(one.hash_range)
