"""Scalable topics for administrators. Any broker can be called; the broker that leads the topic does the work.

Topics are named in full (`topic://tenant/namespace/topic`). Methods marked with `@peer_call` run where the topic is
led: `TopicControllers.lead` decides that, and OwnerRouting follows a topic that moves during the call. REST answers 307
for a topic that another broker leads. Every call is safe to repeat, because operations have ids and the other calls set
a state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.errors import SubscriptionNotFound, TopicNotFound
from anabranch.broker.peers import PeerCallRefused
from anabranch.broker.placement import Address, ServedElsewhere
from anabranch.broker.services import Services
from anabranch.controller.interface import (
    LedElsewhere,
    ScalableTopics,
    Start,
    SubscriptionKind,
    TopicRecord,
    record_json,
    topic_exists,
)
from anabranch.controller.segment_host import CursorStats, SegmentMissing, SegmentStats
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import BadRequest, Busy, Error, NotAllowed
from anabranch.model.names import Domain, SegmentDescriptor, TopicName, check_subscription_name
from anabranch.model.position import EARLIEST, Position
from anabranch.model.segment import Segment, backing_topic

T = TypeVar("T")


class SegmentOfController(Error):
    """Only the controller of a topic may do this with its segment."""

    code = "segment-of-controller"


class ScalableAdmin:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._routing = OwnerRouting(services)

    def _topics(self) -> ScalableTopics:
        found = self._services().scalable
        if found is None:
            raise NotAllowed("scalable topics are switched off on this broker")
        return found

    # -- on any broker

    async def names(self, namespace: str, properties: Mapping[str, str]) -> list[str]:
        """Full names, sorted, of the topics that have all these properties; NotFound for an unknown namespace."""
        await self._services().catalog.policies(namespace)
        return await self._topics().names(namespace, properties)

    async def create(self, topic: str, segments: int, properties: Mapping[str, str]) -> None:
        name = scalable_name(topic)
        try:
            await self._routing.call_owner(name, self.create_at_leader, segments=segments, properties=dict(properties))
        except PeerCallRefused as error:
            raise topic_exists(error) or error from error

    async def delete(self, topic: str, force: bool) -> None:
        """Busy while producers or consumers are attached, unless `force`."""
        await self._routing.call_owner(scalable_name(topic), self.delete_at_leader, force=force)

    async def wake(self, topic: str) -> None:
        await self._routing.call_owner(scalable_name(topic), self.wake_at_leader)

    async def metadata(self, topic: str) -> dict[str, Any]:
        """The stored record (names of PIP-468) with Java's derived flags: sealed, active, root, leaf, legacy."""
        found = record_json(await self._topics().record(scalable_name(topic)))
        return {**found, "segments": {key: {**one, **_derived(one)} for key, one in found["segments"].items()}}

    async def split(
        self, topic: str, segment_id: int, ways: int, points: Sequence[int] | None, operation_id: str | None
    ) -> dict[str, Any]:
        """`{"operation": id, "epoch": n, "segments": new ids}` once it is done. `points`: where the 2nd, 3rd … child
        begin."""
        found: dict[str, Any] = await self._routing.call_owner(
            scalable_name(topic),
            self.split_at_leader,
            segment_id=segment_id,
            ways=ways,
            points=None if points is None else list(points),
            operation_id=operation_id or self._topics().new_id(),
        )
        return found

    async def merge(self, topic: str, segment_ids: Sequence[int], operation_id: str | None) -> dict[str, Any]:
        """As `split`. The segments are neighbours, in any order."""
        found: dict[str, Any] = await self._routing.call_owner(
            scalable_name(topic),
            self.merge_at_leader,
            segment_ids=list(segment_ids),
            operation_id=operation_id or self._topics().new_id(),
        )
        return found

    async def create_subscription(self, topic: str, name: str, kind: str, start: str) -> None:
        """`kind` is STREAM, QUEUE or CHECKPOINT, `start` earliest or latest; AlreadyExists if it has another kind."""
        check_subscription_name(name)
        await self._routing.call_owner(
            scalable_name(topic), self.create_subscription_at_leader, name=name, kind=kind, start=start
        )

    async def delete_subscription(self, topic: str, name: str, force: bool) -> None:
        await self._routing.call_owner(scalable_name(topic), self.delete_subscription_at_leader, name=name, force=force)

    async def seek(self, topic: str, name: str, publish_ms: int) -> None:
        await self._routing.call_owner(scalable_name(topic), self.seek_at_leader, name=name, publish_ms=publish_ms)

    async def clear_backlog(self, topic: str, name: str) -> None:
        await self._routing.call_owner(scalable_name(topic), self.seek_at_leader, name=name, publish_ms=None)

    async def segment(self, topic: str, descriptor: SegmentDescriptor) -> Segment | None:
        """The segment that the topic's record names; TopicNotFound for an unknown topic."""
        found = (await self._topics().record(scalable_name(topic))).segments.get(descriptor.segment_id)
        is_same = found is not None and (found.hash_range.start, found.hash_range.end) == (
            descriptor.start,
            descriptor.end,
        )
        return found if is_same else None

    async def ensure_segment(self, topic: str, descriptor: SegmentDescriptor, subscriptions: Sequence[str]) -> None:
        """Nothing to do for a segment that the record names: it exists, with the cursors of all subscriptions."""
        if await self.segment(topic, descriptor) is None:
            raise SegmentOfController(f"the record of {topic} names no segment {descriptor}: split or merge makes one")
        for name in subscriptions:
            await self.subscription(topic, check_subscription_name(name))

    async def terminate_segment(self, topic: str, descriptor: SegmentDescriptor) -> None:
        """A sealed segment stays sealed. An active one is sealed by a split or merge, which also makes its children."""
        found = await self.segment(topic, descriptor)
        if found is None:
            raise SegmentMissing(f"the record of {topic} names no segment {descriptor}")
        if found.is_active:
            raise SegmentOfController(
                f"{descriptor} is active, and its keys need a segment: split or merge it, or delete the topic"
            )

    async def delete_segment(self, topic: str, descriptor: SegmentDescriptor) -> None:
        """One that the record does not name: what is left of a topic whose record was lost. Nothing to do if it does
        not exist."""
        name = scalable_name(topic).segment_name(descriptor)
        await self._routing.call_owner(name, self.delete_segment_at_owner)

    async def state(self, name: TopicName) -> dict[str, Any]:
        """What the topic's leader knows: running operation, subscriptions, sessions, auto-scaling."""
        found: dict[str, Any] = await self._routing.call_owner(name, self.state_at_leader)
        return found

    async def stats(self, topic: str) -> dict[str, Any]:
        """Pulsar's `epoch, totalSegments, activeSegments, sealedSegments, segments{id: {name, state}},
        subscriptions{name: {consumerCount}}`, and in addition: per segment `hashRange, broker, parentIds, childIds,
        createdAtMs, sealedAtMs, rates{in|out: {msg|bytes: {10|60: per second}}}, messages, bytes, backlog{subscription:
        messages}, consumers, producers`; per subscription `type, msgBacklog, waiting, segments` (as in `subscription`);
        `controller`, `leaderTerm`, `incarnation`, `operation` (None, or `id, kind, phase, parents, children,
        startedAtMs, reason`), `lastOperation`, `properties`; per active segment its last `load` report; `autoScale`:
        `policy` in force, what would be done `now` and what suppresses the rest, the last ten `decisions`."""
        name = scalable_name(topic)
        state = await self.state(name)
        record = await self._topics().record(name)
        placement = self._services().placement
        figures = await self._topics().figures(name, record)
        scaling = dict(state["autoScale"])
        loads = scaling.pop("loads", {})
        segments: dict[str, Any] = {}
        for one in sorted(record.segments.values(), key=lambda it: it.segment_id):
            backing = backing_topic(name, one)
            where = placement.owner_address(backing)
            segments[str(one.segment_id)] = {
                "name": str(backing),
                "state": one.state.value,
                "hashRange": {"start": one.hash_range.start, "end": one.hash_range.end},
                "broker": None if where is None else where.service_url,
                "parentIds": list(one.parent_ids),
                "childIds": list(one.child_ids),
                "createdAtMs": one.created_at_ms,
                "sealedAtMs": one.sealed_at_ms,
                **segment_figures(figures.get(one.segment_id)),
                **({"load": loads[str(one.segment_id)]} if str(one.segment_id) in loads else {}),
            }
        leader = placement.owner_address(name)
        last = record.last_operation
        return {
            "epoch": record.epoch,
            "totalSegments": len(record.segments),
            "activeSegments": len(record.layout.active),
            "sealedSegments": len(record.segments) - len(record.layout.active),
            "segments": segments,
            "subscriptions": {
                subscription: {
                    **facts,
                    "msgBacklog": sum(backlog_of(figures, subscription).values()),
                    "segments": positions_of(record.segments, figures, subscription, facts),
                }
                for subscription, facts in state["subscriptions"].items()
            },
            "controller": None if leader is None else leader.service_url,
            "leaderTerm": state["leaderTerm"],
            "incarnation": record.incarnation,
            "operation": state["operation"],
            "autoScale": scaling,
            "lastOperation": None
            if last is None
            else {
                "id": last.operation_id,
                "kind": last.kind.value,
                "outcome": last.outcome.value,
                "epoch": last.epoch,
                "finishedAtMs": last.finished_at_ms,
                "reason": last.reason,
            },
            "properties": dict(record.properties),
        }

    async def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """`type, start, state, generation, sessions[{name, connected, graceEndsAtMs, segments}], drained[ids],
        waiting{segment id: ancestors whose acknowledgement it waits for}, backlog{segment id: messages}, msgBacklog,
        segments{id: {position, backlog, drained, consumer, consumers}}`."""
        scalable = scalable_name(topic)
        state = await self.state(scalable)
        found = state["subscriptions"].get(name)
        if found is None:
            raise SubscriptionNotFound(f"no subscription {name} on {topic}")
        record = await self._topics().record(scalable)
        figures = await self._topics().figures(scalable, record)
        backlog = backlog_of(figures, name)
        return {
            "backlog": backlog,
            "msgBacklog": sum(backlog.values()),
            "type": found["type"],
            "start": found["initialPosition"],
            "state": found["state"],
            "generation": found.get("generation", 0),
            "sessions": [{"name": consumer, **facts} for consumer, facts in sorted(found.get("consumers", {}).items())],
            "drained": found.get("drained", []),
            "waiting": found["waiting"],
            "segments": positions_of(record.segments, figures, name, found),
        }

    # -- on the broker that leads the topic

    @peer_call("scalable.create_here")
    async def create_at_leader(self, topic: str, segments: int, properties: Mapping[str, str]) -> None:
        await led(topic, lambda name: self._topics().create(name, segments, properties))

    @peer_call("scalable.delete_here")
    async def delete_at_leader(self, topic: str, force: bool) -> None:
        if not force:
            await self._check_unused(scalable_name(topic), None)
        await led(topic, lambda name: self._topics().delete(name))
        catalog, name = self._services().catalog, scalable_name(topic)
        await catalog.topic_policies.forget(name)
        await catalog.forget_grants(name)

    async def _check_unused(self, topic: TopicName, subscription: str | None) -> None:
        """Raises Busy while clients are attached to the subscription, or (None) to the topic."""
        figures = (await self._topics().figures(topic, await self._topics().record(topic))).values()
        if subscription is None:
            producers = sum(one.producers for one in figures)
            consumers = sum(it.consumers for one in figures for it in one.subscriptions.values())
        else:
            found = [one.subscriptions[subscription] for one in figures if subscription in one.subscriptions]
            producers, consumers = 0, sum(it.consumers for it in found)
        if producers or consumers:
            what = topic if subscription is None else f"subscription {subscription} of {topic}"
            raise Busy(f"{what} is used by {producers} producers and {consumers} consumers (force deletes it anyway)")

    @peer_call("scalable.wake_here")
    async def wake_at_leader(self, topic: str) -> None:
        await led(topic, lambda name: self._topics().activate(name))

    @peer_call("scalable.split_here")
    async def split_at_leader(
        self, topic: str, segment_id: int, ways: int, points: Sequence[int] | None, operation_id: str
    ) -> dict[str, Any]:
        cuts = None if points is None else tuple(points)
        epoch = await led(
            topic,
            lambda name: self._topics().split(name, segment_id, ways=ways, points=cuts, operation_id=operation_id),
        )
        return await self._operated(topic, operation_id, epoch)

    @peer_call("scalable.merge_here")
    async def merge_at_leader(self, topic: str, segment_ids: Sequence[int], operation_id: str) -> dict[str, Any]:
        ids = tuple(segment_ids)
        epoch = await led(topic, lambda name: self._topics().merge(name, ids, operation_id=operation_id))
        return await self._operated(topic, operation_id, epoch)

    async def _operated(self, topic: str, operation_id: str, epoch: int) -> dict[str, Any]:
        record = await self._topics().record(scalable_name(topic))
        return {"operation": operation_id, "epoch": epoch, "segments": segments_made(record, operation_id, epoch)}

    @peer_call("scalable.subscribe_here")
    async def create_subscription_at_leader(self, topic: str, name: str, kind: str, start: str) -> None:
        try:
            wanted, begin = SubscriptionKind(kind.upper()), Start(start.lower())
        except ValueError as error:
            raise BadRequest(f"a subscription is STREAM, QUEUE or CHECKPOINT, earliest or latest: {error}") from error
        await led(topic, lambda found: self._topics().subscribe(found, name, wanted, begin))

    @peer_call("scalable.unsubscribe_here")
    async def delete_subscription_at_leader(self, topic: str, name: str, force: bool) -> None:
        if not force:
            await self._check_unused(scalable_name(topic), name)
        await led(topic, lambda found: self._topics().unsubscribe(found, name))

    @peer_call("scalable.move_here")
    async def seek_at_leader(self, topic: str, name: str, publish_ms: int | None) -> None:
        await led(topic, lambda found: self._topics().move(found, name, publish_ms))

    @peer_call("scalable.delete_segment_here")
    async def delete_segment_at_owner(self, topic: str) -> None:
        """`topic`: the name of the segment."""
        segments, name = self._services().segments, TopicName.parse(topic)
        if segments is None:
            raise NotAllowed("scalable topics are switched off (scalable_topics.enabled)")
        if not await segments.delete_unnamed_here(name):
            raise SegmentOfController(f"the record of {name.scalable} names {name}: delete the topic, or let it expire")

    @peer_call("scalable.state_here")
    async def state_at_leader(self, topic: str) -> dict[str, Any]:
        return await led(topic, lambda name: self._topics().state(name))


async def led(topic: str, work: Callable[[TopicName], Awaitable[T]]) -> T:
    """LedElsewhere, as the controller says it, becomes ServedElsewhere, which OwnerRouting follows."""
    name = scalable_name(topic)
    try:
        return await work(name)
    except LedElsewhere as error:
        where = error.address
        raise ServedElsewhere(name, where if isinstance(where, Address) else None) from error


def _derived(segment: Mapping[str, Any]) -> dict[str, bool]:
    """Fields that Pulsar's answers have in addition to the stored ones."""
    is_active = segment["state"] == "ACTIVE"
    return {
        "active": is_active,
        "sealed": not is_active,
        "root": not segment["parentIds"],
        "leaf": not segment["childIds"],
        "legacy": segment.get("legacyTopicName") is not None,
    }


def segments_made(record: TopicRecord, operation_id: str, epoch: int) -> list[int]:
    """Ids of the segments that a split or merge has made, in ring order. `epoch` is that of its answer: later than its
    own if the call was repeated and sealed segments were removed meanwhile."""
    last = record.last_operation
    made_at = last.epoch if last is not None and last.operation_id == operation_id else epoch
    return sorted(one.segment_id for one in record.segments.values() if one.created_at_epoch == made_at)


def scalable_name(topic: str) -> TopicName:
    """The `topic://` name; also for a name that is given as `persistent://`."""
    name = TopicName.parse(topic)
    if name.domain is Domain.NON_PERSISTENT:
        raise TopicNotFound(f"{name} is not a scalable topic")
    return name.scalable


def backlog_of(figures: Mapping[int, SegmentStats], subscription: str) -> dict[str, int]:
    """Unacknowledged messages of a subscription, by segment id."""
    found = {one: stats.subscriptions.get(subscription) for one, stats in figures.items()}
    return {str(one): facts.backlog for one, facts in found.items() if facts is not None}


def segment_figures(stats: SegmentStats | None) -> dict[str, Any]:
    """Rates and counts of a segment as in `ScalableAdmin.stats`; empty when its owner did not answer."""
    if stats is None:
        return {}
    windows = {"10": stats.rates_10s, "60": stats.rates_60s}
    return {
        "rates": {
            "in": {
                "msg": {seconds: rates.messages_in for seconds, rates in windows.items()},
                "bytes": {seconds: rates.bytes_in for seconds, rates in windows.items()},
            },
            "out": {
                "msg": {seconds: rates.messages_out for seconds, rates in windows.items()},
                "bytes": {seconds: rates.bytes_out for seconds, rates in windows.items()},
            },
        },
        "messages": stats.messages,
        "bytes": stats.bytes,
        "backlog": {name: one.backlog for name, one in sorted(stats.subscriptions.items())},
        "consumers": sum(one.consumers for one in stats.subscriptions.values()),
        "producers": stats.producers,
    }


def positions_of(
    segments: Mapping[int, Segment], figures: Mapping[int, SegmentStats], name: str, facts: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Progress of a subscription by segment id: `position` (last consumed entry, or None), `backlog` in messages (None
    if the owner did not answer), `drained`, `consumer` (the assigned one, of an ordered subscription) and `consumers`
    (how many are attached). Cursor positions come from the segments' owners, `facts` from the topic's leader."""
    holders = _holders(facts.get("consumers", {}))
    drained, reached = set(facts.get("drained", ())), facts.get("positions", {})
    found: dict[str, dict[str, Any]] = {}
    for one, segment in sorted(segments.items()):
        stats = figures.get(one)
        cursor = None if stats is None else stats.subscriptions.get(name)
        is_through = one in drained or (not segment.is_active and cursor is not None and cursor.backlog == 0)
        found[str(one)] = {
            "position": reached.get(str(one)) or _text(cursor),
            "backlog": 0 if is_through else None if cursor is None else cursor.backlog,
            "drained": is_through,
            "consumer": holders.get(one),
            "consumers": 0 if cursor is None else cursor.consumers,
        }
    return found


def _holders(consumers: Mapping[str, Mapping[str, Any]]) -> dict[int, str]:
    return {one: name for name, facts in consumers.items() for one in _ids(facts.get("segments", ()))}


def _ids(ids: Iterable[Any]) -> list[int]:
    return [int(one) for one in ids]


def _text(cursor: CursorStats | None) -> str | None:
    return None if cursor is None or cursor.position in (None, EARLIEST) else position_text(cursor.position)


def position_text(position: Position) -> str:
    """The format of Pulsar's stats."""
    return f"{position.ledger}:{position.entry}"
