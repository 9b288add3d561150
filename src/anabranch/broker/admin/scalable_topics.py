"""Scalable topics for administrators: implements `rest.scalable_face.ScalableFace`. From any broker, by the leader.

Names come in full. What needs the leader is an errand to the broker that has the topic's name; the `…_here` calls are
what the leader does. Everything may be asked again: operations have ids, and what is so stays so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.scalable_positions import positions_of
from anabranch.broker.errors import SubscriptionNotFound, TopicNotFound
from anabranch.broker.peers import PeerCallRefused
from anabranch.broker.placement import Address, ServedElsewhere
from anabranch.broker.services import Services
from anabranch.controller.interface import (
    LedElsewhere,
    ScalableTopics,
    Start,
    SubscriptionKind,
    record_json,
    topic_exists,
)
from anabranch.controller.segment_host import SegmentStats
from anabranch.model.errors import BadRequest, Busy, NotAllowed
from anabranch.model.names import Domain, TopicName, check_subscription_name
from anabranch.model.segment import backing_topic

T = TypeVar("T")


class ScalableAdmin:
    ERRANDS = frozenset(
        {
            "create_here",
            "delete_here",
            "wake_here",
            "split_here",
            "merge_here",
            "subscribe_here",
            "unsubscribe_here",
            "move_here",
            "state_here",
        }
    )

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self.reach = OwnerRouting(services, "scalable", self, self.ERRANDS)

    def _topics(self) -> ScalableTopics:
        found = self._services().scalable
        if found is None:
            raise NotAllowed("there are no scalable topics on this broker")
        return found

    # -- from any broker

    async def names(self, namespace: str, properties: Mapping[str, str]) -> list[str]:
        await self._services().catalog.policies(namespace)
        return await self._topics().names(namespace, properties)

    async def create(self, topic: str, segments: int, properties: Mapping[str, str]) -> None:
        name = scalable_name(topic)
        try:
            await self.reach.call_owner(name, "create_here", segments=segments, properties=dict(properties))
        except PeerCallRefused as error:
            raise topic_exists(error) or error from error

    async def delete(self, topic: str, force: bool) -> None:
        await self.reach.call_owner(scalable_name(topic), "delete_here", force=force)

    async def wake(self, topic: str) -> None:
        await self.reach.call_owner(scalable_name(topic), "wake_here")

    async def metadata(self, topic: str) -> dict[str, Any]:
        found = record_json(await self._topics().record(scalable_name(topic)))
        return {**found, "segments": {key: {**one, **_derived(one)} for key, one in found["segments"].items()}}

    async def split(
        self, topic: str, segment_id: int, ways: int, points: Sequence[int] | None, operation_id: str | None
    ) -> dict[str, Any]:
        found: dict[str, Any] = await self.reach.call_owner(
            scalable_name(topic),
            "split_here",
            segment_id=segment_id,
            ways=ways,
            points=None if points is None else list(points),
            operation_id=operation_id or self._topics().new_id(),
        )
        return found

    async def merge(self, topic: str, segment_ids: Sequence[int], operation_id: str | None) -> dict[str, Any]:
        found: dict[str, Any] = await self.reach.call_owner(
            scalable_name(topic),
            "merge_here",
            segment_ids=list(segment_ids),
            operation_id=operation_id or self._topics().new_id(),
        )
        return found

    async def create_subscription(self, topic: str, name: str, kind: str, start: str) -> None:
        check_subscription_name(name)
        await self.reach.call_owner(scalable_name(topic), "subscribe_here", name=name, kind=kind, start=start)

    async def delete_subscription(self, topic: str, name: str, force: bool) -> None:
        await self.reach.call_owner(scalable_name(topic), "unsubscribe_here", name=name, force=force)

    async def seek(self, topic: str, name: str, publish_ms: int) -> None:
        await self.reach.call_owner(scalable_name(topic), "move_here", name=name, publish_ms=publish_ms)

    async def clear_backlog(self, topic: str, name: str) -> None:
        await self.reach.call_owner(scalable_name(topic), "move_here", name=name, publish_ms=None)

    async def stats(self, topic: str) -> dict[str, Any]:
        name = scalable_name(topic)
        state: dict[str, Any] = await self.reach.call_owner(name, "state_here")
        record = await self._topics().record(name)
        placement = self._services().placement
        figures = await self._topics().figures(name, record)
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
        scalable = scalable_name(topic)
        state: dict[str, Any] = await self.reach.call_owner(scalable, "state_here")
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
            "segments": positions_of(record.segments, figures, name, found),
        }

    # -- at the leader

    async def create_here(self, topic: str, segments: int, properties: Mapping[str, str]) -> None:
        await self._here(topic, lambda name: self._topics().create(name, segments, properties))

    async def delete_here(self, topic: str, force: bool) -> None:
        if not force:
            await self._check_unused(scalable_name(topic), None)
        await self._here(topic, lambda name: self._topics().delete(name))

    async def _check_unused(self, topic: TopicName, subscription: str | None) -> None:
        """Raises Busy while somebody is attached: to the subscription, or (None) to the topic at all."""
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

    async def wake_here(self, topic: str) -> None:
        await self._here(topic, lambda name: self._topics().wake(name))

    async def split_here(
        self, topic: str, segment_id: int, ways: int, points: Sequence[int] | None, operation_id: str
    ) -> dict[str, Any]:
        cuts = None if points is None else tuple(points)
        epoch = await self._here(
            topic,
            lambda name: self._topics().split(name, segment_id, ways=ways, points=cuts, operation_id=operation_id),
        )
        return {"operation": operation_id, "epoch": epoch}

    async def merge_here(self, topic: str, segment_ids: Sequence[int], operation_id: str) -> dict[str, Any]:
        ids = tuple(segment_ids)
        epoch = await self._here(topic, lambda name: self._topics().merge(name, ids, operation_id=operation_id))
        return {"operation": operation_id, "epoch": epoch}

    async def subscribe_here(self, topic: str, name: str, kind: str, start: str) -> None:
        try:
            wanted, begin = SubscriptionKind(kind.upper()), Start(start.lower())
        except ValueError as error:
            raise BadRequest(f"a subscription is STREAM, QUEUE or CHECKPOINT, earliest or latest: {error}") from error
        await self._here(topic, lambda found: self._topics().subscribe(found, name, wanted, begin))

    async def unsubscribe_here(self, topic: str, name: str, force: bool) -> None:
        if not force:
            await self._check_unused(scalable_name(topic), name)
        await self._here(topic, lambda found: self._topics().unsubscribe(found, name))

    async def move_here(self, topic: str, name: str, publish_ms: int | None) -> None:
        await self._here(topic, lambda found: self._topics().move(found, name, publish_ms))

    async def state_here(self, topic: str) -> dict[str, Any]:
        return await self._here(topic, lambda name: self._topics().state(name))

    async def _here(self, topic: str, work: Callable[[TopicName], Awaitable[T]]) -> T:
        name = scalable_name(topic)
        try:
            return await work(name)
        except LedElsewhere as error:
            where = error.address
            raise ServedElsewhere(name, where if isinstance(where, Address) else None) from error


def _derived(segment: Mapping[str, Any]) -> dict[str, bool]:
    """What Pulsar's answers say beside the stored fields."""
    is_active = segment["state"] == "ACTIVE"
    return {
        "active": is_active,
        "sealed": not is_active,
        "root": not segment["parentIds"],
        "leaf": not segment["childIds"],
        "legacy": segment.get("legacyTopicName") is not None,
    }


def scalable_name(topic: str) -> TopicName:
    """`topic://…`, also for the `persistent://` spelling of it."""
    name = TopicName.parse(topic)
    if name.domain is Domain.NON_PERSISTENT:
        raise TopicNotFound(f"{name} is not a scalable topic")
    return name.scalable


def backlog_of(figures: Mapping[int, SegmentStats], subscription: str) -> dict[str, int]:
    """Messages by segment id."""
    found = {one: stats.subscriptions.get(subscription) for one, stats in figures.items()}
    return {str(one): facts.backlog for one, facts in found.items() if facts is not None}


def segment_figures(stats: SegmentStats | None) -> dict[str, Any]:
    """How a segment is used, under the names that the face promises; empty when its owner did not say."""
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
