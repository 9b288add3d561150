"""The controller's port `SegmentHost` on the brokers of this cluster: each request goes to the segment's present owner.

A request for a local segment is performed directly, else it becomes a peer call. If the segment moves meanwhile, the
request follows it under the same fencing token; requests are idempotent. Events of local segments are sent to every
registered broker, because any of them may lead the topic.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.broker.errors import TopicFenced
from anabranch.broker.peers import BrokerPeers, PeerCallRefused, PeerCallUnanswered, PeerNotConnected
from anabranch.broker.placement import Placement, ServedElsewhere
from anabranch.broker.publish.producer import Producer
from anabranch.broker.publish.sequence_ids import Last
from anabranch.broker.segment.owned_segment import OwnedSegment
from anabranch.broker.segment_host.ancestor_sequences import AncestorSequences, LastSequence
from anabranch.broker.segment_host.event_broadcast import EventBroadcaster
from anabranch.broker.segment_host.local_segments import LocalSegments
from anabranch.broker.segment_host.request_batches import RequestBatches, refusal_json
from anabranch.broker.segment_host.request_codec import (
    ERRORS,
    answer_json,
    event_json,
    load_event_json,
    read_event,
    read_load_event,
    read_ref,
    read_request,
    read_stats,
    ref_json,
    stats_json,
)
from anabranch.broker.segment_host.topic_layouts import TopicLayouts
from anabranch.controller.segment_host import (
    Answer,
    FencingToken,
    HostCapabilities,
    HostEvent,
    HostOutcomeUnknown,
    HostUnavailable,
    LoadReported,
    Request,
    SegmentRef,
    SegmentStats,
    SubscriptionEvent,
)
from anabranch.interbroker.peer_calls import peer_call, results_of
from anabranch.model.errors import Error, NotReady
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.interface import Fenced, Superseded

log = get_logger(__name__)

ASK_SECONDS = 10.0  # the host's own deadline
MEASURE_SECONDS = 2.0
AGAIN_SECONDS = 0.02
GROUP = "segments"  # of peer calls
LOAD_SECONDS = 5.0

CAPABILITIES = HostCapabilities(
    "embedded", has_drain_events=True, has_fencing=True, has_dedup_handover=True, tells_children=True
)


MOVING = frozenset({NotReady.code, TopicFenced.code, Fenced.code, Superseded.code})
"""The segment is being closed, opened or taken over: the request is repeated, here or elsewhere."""


class OutcomeUncertain(NotReady):
    """The request failed with one of MOVING; it may have been performed."""


class ClusterSegmentHost:
    """Implements `controller.segment_host.SegmentHost`, and the peer calls of other brokers' hosts."""

    def __init__(
        self,
        owner: LocalSegments,
        placement: Placement,
        peers: BrokerPeers | None,
        clock: Clock,
        records: TopicLayouts,
        *,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        self._owner = owner
        self._ancestors = AncestorSequences(records, self.last_sequences)
        self._placement = placement
        self._peers = peers
        self._clock = clock
        self._ask_seconds = ask_seconds
        self._listeners: list[Callable[[HostEvent], None]] = []
        self._broadcast = None if peers is None else EventBroadcaster(peers, f"{GROUP}.news", clock)
        self._tasks = TaskOwner("segment host")
        self._batches = None
        if peers is not None:
            self._batches = RequestBatches(peers, f"{GROUP}.ask", self._tasks, answer_seconds=ask_seconds)
        self._reporting: set[TopicName] = set()  # segments whose report is on its way to the leader
        self._stop = owner.listen(self._happened)

    async def close(self) -> None:
        self._stop()
        await self._tasks.close()
        if self._broadcast is not None:
            await self._broadcast.close()

    @property
    def capabilities(self) -> HostCapabilities:
        return CAPABILITIES

    # -- asking

    async def ask(self, fencing_token: FencingToken, request: Request) -> Answer:
        is_sent = False
        error: Error = HostUnavailable(f"no broker serves {request.segment.name} at the moment")
        try:
            async with asyncio.timeout(self._ask_seconds):
                while True:
                    try:
                        return await self._ask(fencing_token, request)
                    except (ServedElsewhere, PeerNotConnected) as missed:
                        error = missed
                    except (PeerCallUnanswered, OutcomeUncertain) as missed:
                        error, is_sent = missed, True
                    await self._clock.sleep(AGAIN_SECONDS)
        except TimeoutError:
            kind = HostOutcomeUnknown if is_sent else HostUnavailable
            raise kind(error.reason) from error

    async def _ask(self, fencing_token: FencingToken, request: Request) -> Answer:
        """One attempt, at the present owner."""
        name, peers = request.segment.name, self._peers
        if peers is None or self._placement.is_here(name):
            try:
                return await self._owner.apply(fencing_token, request)
            except Error as error:
                raise _translated(error) from error
        await self._placement.wait_placed(name)
        owner = peers.owner_of(name)
        if owner is None or owner == peers.me or self._batches is None:
            raise ServedElsewhere(name, None)
        try:
            return await self._batches.ask(owner, fencing_token, request)
        except PeerCallRefused as refused:
            if refused.code == ServedElsewhere.code:
                raise ServedElsewhere(name, None) from refused
            if refused.code in MOVING:
                raise OutcomeUncertain(refused.reason) from refused
            raise ERRORS.get(refused.code, HostOutcomeUnknown)(refused.reason) from refused

    # -- stats

    async def measure(self, segments: Sequence[SegmentRef]) -> tuple[SegmentStats | None, ...]:
        """One peer call per owner."""
        owners: dict[str | None, list[int]] = {}
        for index, ref in enumerate(segments):
            peers = self._peers
            is_here = peers is None or self._placement.is_here(ref.name)
            owners.setdefault(None if is_here or peers is None else peers.owner_of(ref.name) or "", []).append(index)
        found: list[SegmentStats | None] = [None] * len(segments)

        async def ask(owner: str | None, some: list[int]) -> None:
            answers = await self._measure(owner, [segments[index] for index in some])
            for index, answer in zip(some, answers, strict=True):
                found[index] = answer

        await asyncio.gather(*(ask(owner, some) for owner, some in owners.items()))
        return tuple(found)

    async def _measure(self, owner: str | None, segments: list[SegmentRef]) -> list[SegmentStats | None]:
        try:
            async with asyncio.timeout(MEASURE_SECONDS):
                if owner is None or self._peers is None:
                    return await self._measure_here(segments)
                asked = {"segments": [ref_json(one) for one in segments]}
                answer = await self._peers.call(owner, f"{GROUP}.measure", asked)
                return [None if one is None else read_stats(one) for one in answer]
        except (Error, TimeoutError) as error:
            log.info("segments not measured", extra={"broker": owner or "here", "reason": str(error)})
            return [None] * len(segments)

    async def _measure_here(self, segments: Sequence[SegmentRef]) -> list[SegmentStats | None]:
        found: list[SegmentStats | None] = []
        for ref in segments:
            try:
                found.append(await self._owner.stats(ref))
            except Error as error:  # moved or closed a moment ago
                log.info("segment not measured", extra={"segment": str(ref.name), "reason": error.reason})
                found.append(None)
        return found

    # -- producers

    async def delete_unnamed_here(self, name: TopicName) -> bool:
        """See `LocalSegments.delete_unnamed`."""
        return await self._owner.delete_unnamed(name)

    async def check_listed(self, name: TopicName) -> None:
        """TopicNotFound unless the topic's record lists the segment."""
        await self._ancestors.topic(name)

    async def prepare(self, producer: Producer, owned: OwnedSegment) -> None:
        """Before a producer is added: finds its sequence ids on the ancestors, for clients with our extensions, and the
        check of its keys. A partition of a regular topic has no ancestors, and its keys are not routed by range."""
        if owned.is_adopted:
            return
        record, segment = await self._ancestors.topic(owned.name)
        if producer.grants_credits:
            producer.ancestors = await self._ancestors.ancestors(
                record, segment, producer.name, producer.first_sequence_id
            )
        proof = self._ancestors.proof(record, segment)
        if proof is not None:
            owned.prove(producer, proof)

    async def last_sequences(self, names: Sequence[TopicName], producer: str) -> list[LastSequence | None]:
        """In the order of `names`. One peer call per owner; where that fails, one per segment, which follows it."""
        owners: dict[str | None, list[TopicName]] = {}
        for name in names:
            peers = self._peers
            is_here = peers is None or len(names) == 1 or self._placement.is_here(name)
            owners.setdefault(None if is_here or peers is None else peers.owner_of(name), []).append(name)
        found: dict[TopicName, LastSequence | None] = {}

        async def ask(owner: str | None, some: list[TopicName]) -> None:
            if owner is not None and self._peers is not None:
                try:
                    asked = {"segments": [str(one) for one in some], "producer": producer}
                    async with asyncio.timeout(self._ask_seconds):
                        answers = await self._peers.call(owner, f"{GROUP}.sequences", asked)
                    found.update(zip(some, map(_read_last, answers), strict=True))
                    return
                except (PeerCallRefused, PeerCallUnanswered, TimeoutError) as error:
                    log.info("ancestors asked one by one", extra={"broker": owner, "reason": str(error)})
            single = (self.last_sequence(one, producer) for one in some)
            found.update(zip(some, results_of(await asyncio.gather(*single, return_exceptions=True)), strict=True))

        every = (ask(owner, some) for owner, some in owners.items())
        results_of(await asyncio.gather(*every, return_exceptions=True))
        return [found[name] for name in names]

    async def last_sequence(self, name: TopicName, producer: str) -> LastSequence | None:
        """Asks the owner for the last sequence id of a producer; NotReady when it does not answer in time."""
        asked = {"segment": str(name), "producer": producer}
        error: Error = NotReady(f"no broker serves {name} at the moment")
        try:
            async with asyncio.timeout(self._ask_seconds):
                while True:
                    try:
                        return await self._last_sequence(name, asked)
                    except (ServedElsewhere, PeerCallUnanswered, PeerCallRefused) as missed:
                        error = missed
                    await self._clock.sleep(AGAIN_SECONDS)
        except TimeoutError:
            raise NotReady(f"the owner of the ancestor {name} does not answer: {error.reason}") from error

    async def _last_sequence(self, name: TopicName, asked: Mapping[str, str]) -> LastSequence | None:
        peers = self._peers
        if peers is None or self._placement.is_here(name):
            return await self._owner.last_sequence(name, asked["producer"])
        await self._placement.wait_placed(name)
        owner = peers.owner_of(name)
        if owner is None or owner == peers.me:
            raise ServedElsewhere(name, None)
        return _read_last(await peers.call(owner, f"{GROUP}.sequence", asked))

    # -- events

    def listen(self, callback: Callable[[HostEvent], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def load_reported(self, event: LoadReported) -> None:
        """The load of a local segment: for the leader of its topic only. A report that does not arrive is found in the
        store when the leader looks again."""
        topic = event.segment.name.scalable
        if self._peers is None or self._placement.is_here(topic):
            self._dispatch(event)
        elif event.segment.name not in self._reporting:
            self._reporting.add(event.segment.name)
            self._tasks.spawn(self._send_load(self._peers, topic, event), f"load of {event.segment.name}")

    async def _send_load(self, peers: BrokerPeers, topic: TopicName, event: LoadReported) -> None:
        leader = peers.owner_of(topic)
        try:
            if leader is not None and leader != peers.me:
                async with asyncio.timeout(LOAD_SECONDS):
                    await peers.call(leader, f"{GROUP}.load", load_event_json(event))
        except (Error, TimeoutError) as error:
            log.debug("load report not sent to the leader", extra={"topic": str(topic), "reason": str(error)})
        finally:
            self._reporting.discard(event.segment.name)

    def _happened(self, event: SubscriptionEvent) -> None:
        """An event of a local segment."""
        if self._broadcast is not None:
            self._broadcast.send((event.segment.name, event.subscription, type(event)), event_json(event))
        self._dispatch(event)

    def _dispatch(self, event: HostEvent) -> None:
        for tell in tuple(self._listeners):
            tell(event)

    # -- peer calls of the other brokers' hosts

    @peer_call(f"{GROUP}.ask")
    async def serve_request(self, **arguments: Any) -> Any:
        return answer_json(await self._owner.apply(*read_request(arguments)))

    @peer_call(f"{GROUP}.ask_each")
    async def serve_requests(self, requests: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Performed concurrently; each has its own answer or error."""
        return list(await asyncio.gather(*map(self._answer, requests)))

    async def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return answer_json(await self._owner.apply(*read_request(request)))
        except Error as error:
            return refusal_json(error)

    @peer_call(f"{GROUP}.news")
    async def serve_events(self, events: Sequence[Any]) -> None:
        for one in events:
            self._dispatch(read_event(one))

    @peer_call(f"{GROUP}.load")
    async def serve_load(self, **arguments: Any) -> None:
        self._dispatch(read_load_event(arguments))

    @peer_call(f"{GROUP}.measure")
    async def serve_stats(self, segments: Sequence[Any]) -> list[Any]:
        some = await self._measure_here([read_ref(one) for one in segments])
        return [None if one is None else stats_json(one) for one in some]

    @peer_call(f"{GROUP}.sequence")
    async def serve_last_sequence(self, segment: str, producer: str) -> dict[str, Any] | None:
        return _last_json(await self._owner.last_sequence(TopicName.parse(segment), producer))

    @peer_call(f"{GROUP}.sequences")
    async def serve_last_sequences(self, segments: Sequence[str], producer: str) -> list[dict[str, Any] | None]:
        return [_last_json(await self._owner.last_sequence(TopicName.parse(one), producer)) for one in segments]


def _last_json(found: LastSequence | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"last": found.last.sequence, "note": b64encode(found.last.note).decode(), "final": found.is_final}


def _read_last(value: Mapping[str, Any] | None) -> LastSequence | None:
    if value is None:
        return None
    return LastSequence(Last(int(value["last"]), b64decode(value.get("note", ""))), bool(value["final"]))


def _translated(error: Error) -> Error:
    """Errors that are not part of the port come from storage or metadata: the outcome is unknown."""
    if isinstance(error, ServedElsewhere) or type(error) in ERRORS.values():
        return error
    return (OutcomeUncertain if error.code in MOVING else HostOutcomeUnknown)(error.reason)
