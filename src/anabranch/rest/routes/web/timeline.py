"""Timelines of scalable topics: geometry, ticks, and both as a stream of events.

| event | data |
|---|---|
| `layout` | geometry: all segments at first, then those of each change |
| `tick` | figures of the segments that change, subscriptions, the running operation; once a second and after changes |
| `stale` | why there is no newer state at the moment, for example while the topic changes its leader |
| `bye` | why the stream ends |
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from anabranch.broker.admin.scalable_topics import scalable_name
from anabranch.broker.admin.views.timeline import TimelineAdmin, geometry
from anabranch.model.errors import Error
from anabranch.rest.event_stream import event, live_response
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.params import parse_number, topic_of
from anabranch.rest.router import Route
from anabranch.security.permissions import TOPIC_LOOKUP

_TOPIC = "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}"


class TimelineCalls:
    def __init__(self, admin: TimelineAdmin) -> None:
        self._admin = admin

    async def geometry(self, request: Request) -> Response:
        return json_response(await self._admin.timeline(str(topic_of(request)), _since(request)))

    async def tick(self, request: Request) -> Response:
        return json_response(await self._admin.tick(str(topic_of(request))))

    async def events(self, request: Request) -> Response:
        topic = str(topic_of(request))
        first = await self._admin.timeline(topic, _since(request))  # here, so that an unknown topic is a plain 404
        return live_response(self._events(topic, first))

    async def _events(self, topic: str, first: dict[str, Any]) -> AsyncGenerator[bytes]:
        yield event("layout", first)
        epoch, incarnation, count, serial = first["epoch"], first["incarnation"], first["count"], 0
        name = scalable_name(topic)
        async with self._admin.feed(topic) as feed:
            while True:
                try:
                    sample = await feed.newer(serial)
                except Error as error:
                    if not error.retryable:
                        raise
                    yield event("stale", {"error": error.code, "reason": error.reason})
                    await feed.pause()
                    continue
                record, serial = sample.record, sample.serial
                if record.incarnation != incarnation:
                    yield event("layout", geometry(name, record))
                elif record.epoch != epoch or len(record.segments) != count:
                    yield event("layout", geometry(name, record, epoch))
                epoch, incarnation, count = record.epoch, record.incarnation, len(record.segments)
                yield event("tick", sample.tick, serial)


def _since(request: Request) -> int:
    return parse_number(request.query.get("since", "-1"), "since")


def timeline_routes(admin: TimelineAdmin) -> list[Route]:
    calls = TimelineCalls(admin)
    return [
        Route("GET", f"{_TOPIC}/timeline", calls.geometry, "Segments with ranges, times and epochs", TOPIC_LOOKUP),
        Route("GET", f"{_TOPIC}/tick", calls.tick, "Figures of the segments that change", TOPIC_LOOKUP),
        Route("GET", f"{_TOPIC}/events", calls.events, "Both, live: server-sent events", TOPIC_LOOKUP),
    ]
