"""One topic beyond its existence: properties, upkeep, single messages, inner figures. Knows HTTP as values only."""

from __future__ import annotations

from anabranch.broker.admin.topic_maintenance import TopicMaintenance
from anabranch.model.errors import BadRequest
from anabranch.model.position import EARLIEST
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.params import bounded, parse_number, parse_position, shown, topic_of
from anabranch.rest.router import Route
from anabranch.rest.routes.lookup import TOPIC_PARAMS
from anabranch.rest.routes.message_response import view
from anabranch.rest.routes.policies import body_of
from anabranch.rest.routes.topics import parse_properties
from anabranch.security.permissions import TOPIC_ADMIN, TOPIC_CONSUME, TOPIC_LOOKUP


class TopicMaintenanceCalls:
    def __init__(self, admin: TopicMaintenance) -> None:
        self._admin = admin

    # -- properties

    async def properties(self, request: Request) -> Response:
        return json_response(await self._admin.properties(str(topic_of(request))))

    async def add_properties(self, request: Request) -> Response:
        await self._admin.add_properties(str(topic_of(request)), parse_properties(body_of(request)))
        return NO_CONTENT

    async def remove_property(self, request: Request) -> Response:
        key = request.query.get("key")
        if not key:
            raise BadRequest("name the property: ?key=NAME")
        await self._admin.remove_property(str(topic_of(request)), key)
        return NO_CONTENT

    # -- maintenance

    async def unload(self, request: Request) -> Response:
        await self._admin.unload(str(topic_of(request)))
        return NO_CONTENT

    async def trim(self, request: Request) -> Response:
        await self._admin.trim(str(topic_of(request)))
        return Response()

    async def truncate(self, request: Request) -> Response:
        await self._admin.truncate(str(topic_of(request)))
        return NO_CONTENT

    async def compact(self, request: Request) -> Response:
        await self._admin.compact(str(topic_of(request)))
        return NO_CONTENT

    async def compaction(self, request: Request) -> Response:
        return json_response(await self._admin.compaction(str(topic_of(request))))

    async def terminate_partitions(self, request: Request) -> Response:
        last = await self._admin.terminate_partitions(str(topic_of(request)))
        return json_response({str(index): shown(one, partition=index) for index, one in enumerate(last)})

    # -- single messages

    async def last_message(self, request: Request) -> Response:
        topic = topic_of(request)
        last, index = await self._admin.last_message(str(topic))
        return json_response(shown(last, partition=topic.partition_index, batch_index=index))

    async def message_at(self, request: Request) -> Response:
        topic, publish_ms = topic_of(request), parse_number(request.params["timestamp"], "the time in ms")
        found = await self._admin.message_at(str(topic), publish_ms)
        return json_response(shown(found, partition=topic.partition_index))

    async def message_by_index(self, request: Request) -> Response:
        topic, index = topic_of(request), parse_number(request.query.get("index", ""), "index")
        found = await self._admin.message_by_index(str(topic), index)
        return json_response(shown(found, partition=topic.partition_index))

    async def message(self, request: Request) -> Response:
        ledger, entry = (parse_number(request.params[name], name) for name in ("ledger", "entry"))
        return view(await self._admin.message(str(topic_of(request)), bounded(ledger, entry)))

    async def examine(self, request: Request) -> Response:
        start = request.query.get("initialPosition", "latest")
        if start not in ("earliest", "latest"):
            raise BadRequest("initialPosition is earliest or latest")
        number = parse_number(request.query.get("messagePosition", "1"), "messagePosition")
        return view(await self._admin.examine(str(topic_of(request)), start == "earliest", number))

    # -- stats

    async def backlog_size(self, request: Request) -> Response:
        position = parse_position(body_of(request))
        return json_response(await self._admin.backlog_size(str(topic_of(request)), max(position, EARLIEST)))

    async def backlog(self, request: Request) -> Response:
        return json_response(await self._admin.offline_backlog(str(topic_of(request))))

    async def internal_info(self, request: Request) -> Response:
        return json_response(await self._admin.internal_info(str(topic_of(request))))

    async def internal_stats(self, request: Request) -> Response:
        return json_response(await self._admin.internal_stats(str(topic_of(request))))


def topic_maintenance_routes(admin: TopicMaintenance) -> list[Route]:
    calls = TopicMaintenanceCalls(admin)
    topic = f"/admin/v2/{TOPIC_PARAMS}"
    table = [
        ("GET", "properties", calls.properties, "Properties of a topic", TOPIC_LOOKUP),
        ("PUT", "properties", calls.add_properties, "Add properties", TOPIC_ADMIN),
        ("DELETE", "properties", calls.remove_property, "Remove one property (?key=)", TOPIC_ADMIN),
        ("PUT", "unload", calls.unload, "Close a topic; its clients reconnect", TOPIC_ADMIN),
        ("POST", "trim", calls.trim, "Delete consumed messages that are not retained", TOPIC_ADMIN),
        ("DELETE", "truncate", calls.truncate, "Skip all backlogs and delete their messages", TOPIC_ADMIN),
        ("PUT", "compaction", calls.compact, "Start compaction of a topic", TOPIC_ADMIN),
        ("GET", "compaction", calls.compaction, "Status of compaction", TOPIC_LOOKUP),
        ("POST", "terminate/partitions", calls.terminate_partitions, "Terminate every partition", TOPIC_ADMIN),
        ("GET", "lastMessageId", calls.last_message, "Id of the last message", TOPIC_CONSUME),
        ("GET", "messageid/{timestamp}", calls.message_at, "First message at or after a time", TOPIC_CONSUME),
        ("GET", "getMessageIdByIndex", calls.message_by_index, "Message by its index in the topic", TOPIC_CONSUME),
        ("GET", "ledger/{ledger}/entry/{entry}", calls.message, "One message by its id", TOPIC_CONSUME),
        ("GET", "examinemessage", calls.examine, "One message by its number from either end", TOPIC_CONSUME),
        ("PUT", "backlogSize", calls.backlog_size, "Bytes after a position", TOPIC_LOOKUP),
        ("GET", "backlog", calls.backlog, "Backlogs of all subscriptions", TOPIC_LOOKUP),
        ("GET", "internal-info", calls.internal_info, "Ledgers and cursors, short", TOPIC_LOOKUP),
        (
            "GET",
            "partitioned-internalStats",
            calls.internal_stats,
            "Ledgers and cursors of all partitions",
            TOPIC_LOOKUP,
        ),
    ]
    return [Route(verb, f"{topic}/{path}", call, text, need, at_owner=True) for verb, path, call, text, need in table]
