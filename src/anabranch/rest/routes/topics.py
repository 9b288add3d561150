"""Topics, partitions and their stats under /admin/v2/{persistent|non-persistent}."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.topic_maintenance import TopicMaintenance
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.broker.stats.subscription_stats import StatsOptions
from anabranch.model.errors import BadRequest
from anabranch.model.names import parse_namespace
from anabranch.rest.errors import BadPartitionCount, FewerPartitions, NotPartitioned
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.params import topic_of
from anabranch.rest.router import Route
from anabranch.rest.routes.lookup import TOPIC_PARAMS
from anabranch.security.permissions import NAMESPACE_LIST, TOPIC_ADMIN, TOPIC_LOOKUP


def namespace_of(request: Request) -> str:
    tenant, namespace = request.params["tenant"], request.params["namespace"]
    parse_namespace(f"{tenant}/{namespace}")
    return f"{tenant}/{namespace}"


def parse_partitions(value: Any) -> int:
    """The body of `…/partitions`: a number, or an object with `partitions` (and optional `properties`)."""
    if isinstance(value, dict):
        value = value.get("partitions")
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest("the body must be the number of partitions, for example 3")
    if value <= 0:
        raise BadPartitionCount("Number of partitions should be more than 0")
    return value


def parse_properties(value: Any) -> dict[str, str]:
    """A map of text to text; no body means no properties."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise BadRequest('properties must be an object of strings, for example {"owner": "me"}')
    return value


def stats_options(request: Request) -> StatsOptions:
    return StatsOptions(
        subscription_backlog_size=request.flag("subscriptionBacklogSize", True),
        earliest_time=request.flag("getEarliestTimeInBacklog"),
        exclude_publishers=request.flag("excludePublishers"),
        exclude_consumers=request.flag("excludeConsumers"),
    )


class TopicCalls:
    def __init__(self, topics: TopicAdmin, maintenance: TopicMaintenance) -> None:
        self._topics = topics
        self._maintenance = maintenance

    async def list_topics(self, request: Request) -> Response:
        return json_response(
            await self._topics.list_all(namespace_of(request), request.params["domain"], include_partitioned=False)
        )

    async def list_partitioned(self, request: Request) -> Response:
        return json_response(await self._topics.list_partitioned(namespace_of(request), request.params["domain"]))

    async def create(self, request: Request) -> Response:
        await self._topics.create(str(topic_of(request)), parse_properties(request.json()))
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        await self._topics.delete(str(topic_of(request)), request.flag("force"))
        return NO_CONTENT

    async def terminate(self, request: Request) -> Response:
        last = await self._topics.terminate(str(topic_of(request)))
        return json_response(
            {"ledgerId": last.ledger, "entryId": last.entry, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
        )

    async def partitions(self, request: Request) -> Response:
        count = await self._topics.partitions(str(topic_of(request)), request.flag("checkAllowAutoCreation"))
        answer: dict[str, Any] = {"partitions": count, "deleted": False}
        if count and (properties := await self._maintenance.properties(str(topic_of(request)))):
            answer["properties"] = properties
        return json_response(answer)

    async def create_partitions(self, request: Request) -> Response:
        body = request.json()
        properties = parse_properties(body.get("properties") if isinstance(body, dict) else None)
        await self._topics.create_partitions(str(topic_of(request)), parse_partitions(body), properties)
        return NO_CONTENT

    async def update_partitions(self, request: Request) -> Response:
        topic, wanted = str(topic_of(request)), parse_partitions(request.json())
        current = await self._topics.partitions(topic, False)
        if current == 0:
            raise NotPartitioned(f"Topic {topic} is not the partitioned topic.")
        if wanted < current:
            raise FewerPartitions(f"Desired partitions {wanted} can't be less than the current partitions {current}.")
        await self._topics.update_partitions(topic, wanted)
        return NO_CONTENT

    async def create_missed_partitions(self, request: Request) -> Response:
        await self._topics.create_missed_partitions(str(topic_of(request)))
        return NO_CONTENT

    async def delete_partitions(self, request: Request) -> Response:
        await self._topics.delete_partitions(str(topic_of(request)), request.flag("force"))
        return NO_CONTENT

    async def stats(self, request: Request) -> Response:
        return json_response(await self._topics.stats(str(topic_of(request)), stats_options(request)))

    async def partitioned_stats(self, request: Request) -> Response:
        stats = await self._topics.partitioned_stats(str(topic_of(request)), stats_options(request))
        return json_response(stats if request.flag("perPartition", True) else {**stats, "partitions": {}})

    async def internal_stats(self, request: Request) -> Response:
        return json_response(await self._topics.internal_stats(str(topic_of(request))))


def topic_routes(topics: TopicAdmin, maintenance: TopicMaintenance) -> list[Route]:
    calls = TopicCalls(topics, maintenance)
    topic = f"/admin/v2/{TOPIC_PARAMS}"
    namespace = topic.removesuffix("/{topic}")
    return [
        Route("GET", namespace, calls.list_topics, "Topics of a namespace, each partition by itself", NAMESPACE_LIST),
        Route(
            "GET",
            f"{namespace}/partitioned",
            calls.list_partitioned,
            "Partitioned topics of a namespace",
            NAMESPACE_LIST,
        ),
        Route("PUT", topic, calls.create, "Create a topic", TOPIC_ADMIN, at_owner=True),
        Route("DELETE", topic, calls.delete, "Delete a topic", TOPIC_ADMIN, at_owner=True),
        Route(
            "POST",
            f"{topic}/terminate",
            calls.terminate,
            "Terminate a topic: it accepts no more messages",
            TOPIC_ADMIN,
            at_owner=True,
        ),
        Route("GET", f"{topic}/partitions", calls.partitions, "Number of partitions", TOPIC_LOOKUP),
        Route("PUT", f"{topic}/partitions", calls.create_partitions, "Create a partitioned topic", TOPIC_ADMIN),
        Route("POST", f"{topic}/partitions", calls.update_partitions, "Add partitions", TOPIC_ADMIN),
        Route("DELETE", f"{topic}/partitions", calls.delete_partitions, "Delete a partitioned topic", TOPIC_ADMIN),
        Route(
            "POST",
            f"{topic}/createMissedPartitions",
            calls.create_missed_partitions,
            "Create missing partitions again",
            TOPIC_ADMIN,
        ),
        Route("GET", f"{topic}/stats", calls.stats, "Stats of a topic", TOPIC_LOOKUP, at_owner=True),
        Route(
            "GET", f"{topic}/partitioned-stats", calls.partitioned_stats, "Stats of a partitioned topic", TOPIC_LOOKUP
        ),
        Route(
            "GET",
            f"{topic}/internalStats",
            calls.internal_stats,
            "Ledgers and cursors of a topic",
            TOPIC_LOOKUP,
            at_owner=True,
        ),
    ]
