"""What a producer that opens a segment must know: the segment's ancestors, and the last sequence id of each for it.

The owners of the ancestors are asked, here or on other brokers. The answer of a sealed ancestor never changes and is
cached. A producer opens all children of a migration at once, and each has all partitions as ancestors: a question that
is on its way is not asked again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from anabranch.broker.publish.sequence_ids import Last
from anabranch.broker.segment.key_range_check import KeyRangeCheck
from anabranch.broker.segment_host.topic_layouts import ScalableTopic, TopicLayouts, find_segment
from anabranch.model.errors import Error, NotReady
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

AskSequences = Callable[[Sequence[TopicName], str], Awaitable[Sequence[LastSequence | None]]]
"""Asks the owners of segments for the last sequence ids of a producer; None: no such segment."""


class AncestorSequences:
    def __init__(self, records: TopicLayouts, ask: AskSequences) -> None:
        self._records = records
        self._ask = ask
        self._asking: dict[_Key, asyncio.Future[Last | None]] = {}
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
        """With `since`: every ancestor with this sequence id or a later one, and its note. Former partitions of a
        regular topic: all of them if one has such a message, because their number matters for routing, else none.
        Raises what `ask` raises, because without an answer it is unknown what was stored."""
        found = topic.ancestors(segment)
        lasts = await self._lasts([(backing_topic(topic.name, one), topic.incarnation, producer) for one in found])
        had = [(one, last) for one, last in zip(found, lasts, strict=True) if last is not None]
        if all(last.sequence < (since or 0) for one, last in had if one.legacy_topic_name is not None):
            had = [(one, last) for one, last in had if one.legacy_topic_name is None]
        if since is None:
            minimal = minimal_ancestors([(one, last.sequence) for one, last in had])
            return [ancestor_sequence(one, topic.layout.routing, last) for one, last in minimal]
        return [
            ancestor_sequence(one, topic.layout.routing, last.sequence, last.note)
            for one, last in had
            if last.sequence >= since or one.legacy_topic_name is not None
        ]

    async def _lasts(self, keys: Sequence[_Key]) -> list[Last | None]:
        lasts = [self._remembered(key) for key in keys]
        unknown = [index for index, last in enumerate(lasts) if last is None]
        new = [keys[index] for index in unknown if keys[index] not in self._asking]
        waiting = {index: self._asking.get(keys[index]) for index in unknown}
        answers = await self._asked(new) if new else {}
        for index, answer in waiting.items():
            lasts[index] = answers[keys[index]] if answer is None else await asyncio.shield(answer)
        return lasts

    async def _asked(self, keys: Sequence[_Key]) -> dict[_Key, Last | None]:
        """One question for all of them. Others that need the same answers wait for this one."""
        loop = asyncio.get_running_loop()
        asking: dict[_Key, asyncio.Future[Last | None]] = {key: loop.create_future() for key in keys}
        self._asking |= asking
        found: dict[_Key, Last | None] = {}
        try:
            answers = await self._ask([name for name, _, _ in keys], keys[0][2])
            for key, answer in zip(keys, answers, strict=True):
                found[key] = None if answer is None else answer.last
                if answer is not None and answer.is_final:
                    self._remember(key, answer.last)
                asking[key].set_result(found[key])
        except Error as error:
            self._fail(asking.values(), error.reason)
            raise
        finally:
            self._fail(asking.values(), "the question was given up")
            for key in keys:
                del self._asking[key]
        return found

    @staticmethod
    def _fail(asking: Iterable[asyncio.Future[Last | None]], reason: str) -> None:
        for one in asking:
            if not one.done():
                one.set_exception(NotReady(f"the owner of an ancestor was not asked: {reason}"))
                one.exception()  # marks it as retrieved: perhaps no caller waits for it

    def _remember(self, key: _Key, last: Last) -> None:
        self._known[key] = last
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _remembered(self, key: _Key) -> Last | None:
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]


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
