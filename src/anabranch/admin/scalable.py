"""Scalable topics (PIP-460, 468, 475, 483): layout, split, merge, subscriptions, auto-scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.admin.client import segment_ids
from anabranch.admin.group import Group, Names, Objects
from anabranch.admin.paths import namespace_path, scalable_url, segment_url, timeline_url

SegmentIds = tuple[int, ...]


class ScalableTopics(Group):
    """Named in any spelling: `orders`, `acme/shop/orders`, `topic://acme/shop/orders`."""

    async def list(self, namespace: str, *, properties: Mapping[str, str] | None = None) -> Names:
        """`properties`: only topics that have all of these."""
        wanted = [f"{name}={value}" for name, value in (properties or {}).items()]
        return await self._names("GET", f"/admin/v2/scalable/{namespace_path(namespace)}", {"property": wanted})

    async def create(
        self,
        topic: str,
        *,
        segments: int = 1,
        properties: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """`exist_ok`: leaves an existing one unchanged, whatever segments it has. A regular topic of the name is
        refused."""
        path, query = scalable_url(topic), {"numInitialSegments": segments}
        await self._create("PUT", path, dict(properties or {}), query, exist_ok=exist_ok, proof=path)

    async def delete(self, topic: str, *, force: bool = False) -> None:
        """With all segments and subscriptions. `force`: also while clients are attached."""
        await self._done("DELETE", scalable_url(topic), query={"force": force})

    async def metadata(self, topic: str) -> dict[str, Any]:
        """Its segments, sealed and active."""
        return await self._object("GET", scalable_url(topic))

    async def stats(self, topic: str) -> dict[str, Any]:
        """Segments with rates, subscriptions with backlog, load reports and what auto-scaling would do now."""
        return await self._object("GET", scalable_url(topic, "stats"))

    async def timeline(self, topic: str, *, since: int = -1) -> dict[str, Any]:
        """`rows` of `columns`: every segment with its range, times and epochs; with `since` those created or sealed in
        a later epoch."""
        return await self._object("GET", timeline_url(topic, "timeline"), query={"since": since})

    async def tick(self, topic: str) -> dict[str, Any]:
        """Figures of the segments that change, subscriptions with sessions, the running operation."""
        return await self._object("GET", timeline_url(topic, "tick"))

    async def messages(self, topic: str, *, count: int = 50, segment: int | None = None) -> Objects:
        """The newest messages, the newest first, with the first 4 KiB of each payload. Nothing is acknowledged."""
        return await self._objects("GET", timeline_url(topic, "messages"), query={"count": count, "segment": segment})

    async def publish(self, topic: str, messages: Sequence[Mapping[str, Any]]) -> Objects:
        """Messages with `payload` (text) or `payloadBase64`, and perhaps `key`, `properties`, `eventTime`. Of each its
        `segment` and `messageId`, or the `error`."""
        body = {"messages": [dict(one) for one in messages]}
        return list((await self._object("POST", timeline_url(topic, "messages"), body))["results"])

    async def message_count(self, topic: str, *, segment: int | None = None, time_ms: int = 0) -> dict[str, Any]:
        """`total` of the stored messages, and those `from` a time on."""
        return await self._object(
            "GET", timeline_url(topic, "messages", "count"), query={"segment": segment, "time": time_ms}
        )

    async def message_page(
        self,
        topic: str,
        *,
        count: int = 50,
        segment: int | None = None,
        time_ms: int | None = None,
        position: str | None = None,
        after: str | None = None,
        preview: int | None = None,
    ) -> dict[str, Any]:
        """`messages`, the oldest first, from a time, a position (`ledger:entry`) of a segment, or where another page
        ended (`after`: its `next`). `isEnd`: there are no more now."""
        query: dict[str, Any] = {
            "count": count,
            "segment": segment,
            "time": time_ms,
            "position": position,
            "after": after,
        }
        query["preview"] = preview  # bytes of a payload; above 4 KiB with a position and count=1
        return await self._object("GET", timeline_url(topic, "messages", "page"), query=query)

    async def split(
        self, topic: str, segment: int, *, into: int | None = None, at: Sequence[int] | None = None
    ) -> SegmentIds:
        """In two at the middle; `into`: that many equal parts; `at`: where the further parts begin on the ring. Returns
        the ids of the new segments in ring order; empty from a broker of Apache Pulsar, which does not tell them."""
        points = None if at is None else ",".join(f"{point:x}" for point in at)
        path = scalable_url(topic, "split", str(segment))
        return segment_ids(await self._exchange.call("POST", path, query={"into": into, "at": points}))

    async def merge(self, topic: str, segments: Sequence[int]) -> SegmentIds:
        """Neighbours, two or more. Returns the id of the new segment, as `split` does."""
        if len(segments) == 2:
            return segment_ids(await self._exchange.call("POST", scalable_url(topic, "merge", *map(str, segments))))
        query = {"segments": ",".join(map(str, segments))}
        return segment_ids(await self._exchange.call("POST", scalable_url(topic, "merge"), query=query))

    # -- subscriptions

    async def create_subscription(
        self, topic: str, subscription: str, *, kind: str = "STREAM", start: str | None = None
    ) -> None:
        """`kind`: STREAM, QUEUE or CHECKPOINT. `start`: earliest or latest. An existing one of the same kind is left as
        it is; one of another kind is refused."""
        query = {"type": kind, "start": start}
        await self._done("PUT", scalable_url(topic, "subscriptions", subscription), query=query)

    async def subscription(self, topic: str, subscription: str) -> dict[str, Any]:
        """One subscription: type, consumers with their segments, backlog and position by segment."""
        return await self._object("GET", scalable_url(topic, "subscriptions", subscription))

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """`force`: also while consumers are attached."""
        await self._done("DELETE", scalable_url(topic, "subscriptions", subscription), query={"force": force})

    async def seek(self, topic: str, subscription: str, timestamp_ms: int) -> None:
        """Moves a subscription to a publish time, on all segments."""
        path = scalable_url(topic, "subscriptions", subscription, "seek")
        await self._done("POST", path, query={"timestamp": timestamp_ms})

    async def clear_backlog(self, topic: str, subscription: str) -> None:
        """Moves a subscription behind the last message of all segments."""
        await self._done("POST", scalable_url(topic, "subscriptions", subscription, "skip-all"))

    # -- auto-scaling and migration

    async def auto_scale_policy(self, topic: str, *, applied: bool = False) -> Any:
        """What the topic sets; None when that is nothing. `applied`: the policy in force, with all fields."""
        query = {"applied": True} if applied else None
        return await self._value("GET", scalable_url(topic, "autoScalePolicy"), query=query)

    async def set_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> None:
        """Replaces what the topic sets: some of the fields of PIP-483, as `{"maxSegments": 16}`."""
        await self._done("POST", scalable_url(topic, "autoScalePolicy"), dict(policy))

    async def remove_auto_scale_policy(self, topic: str) -> None:
        """Removes the topic's level of the auto-scale policy."""
        await self._done("DELETE", scalable_url(topic, "autoScalePolicy"))

    async def autoscale(self, topic: str) -> Any:
        """Policy with its levels, load reports, what would be done `now` and why not more, the last `decisions`."""
        return await self._value("GET", scalable_url(topic, "autoscale"))

    async def try_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> Any:
        """What the topic's auto-scaling would do now with this policy; nothing is done."""
        return await self._value("POST", scalable_url(topic, "autoscale", "try"), dict(policy))

    async def autoscaler_metric(self, topic: str, subscription: str | None = None) -> Any:
        """`activeSegments`, `backlog` and `wantedConsumers`, for autoscalers of consumers."""
        query = None if subscription is None else {"subscription": subscription}
        return await self._value("GET", scalable_url(topic, "autoscaler-metric"), query=query)

    async def migrate(
        self, topic: str, *, force: bool = False, subscription_types: Mapping[str, str] | None = None
    ) -> None:
        """A regular topic becomes a scalable one, in place. `force` closes old clients instead of refusing while they
        are connected; `subscription_types`: `{"SUBSCRIPTION": "queue"}` or `"stream"`."""
        await self._done("POST", scalable_url(topic, "migrate"), query=_migration_query(force, subscription_types))

    async def check_migration(
        self, topic: str, *, force: bool = False, subscription_types: Mapping[str, str] | None = None
    ) -> Any:
        """What a migration would do, with its `blockers` and the old `clients`; nothing is changed."""
        query = {**_migration_query(force, subscription_types), "check": True}
        return await self._value("POST", scalable_url(topic, "migrate"), query=query)

    async def migration(self, topic: str) -> Any:
        """`phase` of the topic's migration: NONE, CREATE, UNDO or DONE; while it runs `progress`: its step, and how
        many partitions or segments of `total` are `done`."""
        return await self._value("GET", scalable_url(topic, "migration"))


def _migration_query(force: bool, types: Mapping[str, str] | None) -> dict[str, Any]:
    return {"force": force, "subscriptionType": [f"{name}:{kind}" for name, kind in (types or {}).items()]}


class Segments(Group):
    """Segments of scalable topics, by their descriptor (`0000-7fff-1`). Their topic's controller changes them."""

    async def backlog(self, topic: str, descriptor: str, subscription: str) -> int:
        """Messages of a segment that a subscription has not acknowledged."""
        return await self._number("GET", segment_url(topic, descriptor, "subscription", subscription, "backlog"))

    async def create(self, topic: str, descriptor: str) -> None:
        """Done if the record names it; else refused: only the topic's controller makes segments."""
        await self._done("PUT", segment_url(topic, descriptor))

    async def terminate(self, topic: str, descriptor: str) -> None:
        """Done if the segment is sealed already; an active one is sealed by split and merge only."""
        await self._done("POST", segment_url(topic, descriptor, "terminate"))

    async def delete(self, topic: str, descriptor: str) -> None:
        """One that no record names, or that does not exist."""
        await self._done("DELETE", segment_url(topic, descriptor))
