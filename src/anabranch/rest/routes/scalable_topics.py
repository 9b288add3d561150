"""Scalable topics under /admin/v2/scalable (PIP-468): layout, split, merge, subscriptions.

Paths and answers are those of Pulsar 5.0.0-M1; where it answers 500 or nothing, this server answers 404, 409 or 412.
Only the topic's controller changes its segments, by peer calls: under /admin/v2/segments a change that is in effect
already is answered 204, any other 409. A segment that no record names can be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.model.errors import BadRequest, Error, NotFound
from anabranch.model.keyhash import RING_SIZE
from anabranch.model.names import SegmentDescriptor, TopicName, check_subscription_name
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.params import parse_number, topic_of
from anabranch.rest.router import Route
from anabranch.rest.routes.topics import namespace_of, parse_properties
from anabranch.security.permissions import (
    NAMESPACE_LIST,
    SUBSCRIPTION_CONSUME,
    SUPERVISE,
    TOPIC_ADMIN,
    TOPIC_LOOKUP,
)

KINDS = ("STREAM", "QUEUE", "CHECKPOINT")
STARTS = ("earliest", "latest")
SEGMENTS_MAX = 1 << 16
OPERATION_ID_MAX = 200
SEGMENT_IDS = "X-Anabranch-Segment-Ids"

_SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}"
_TOPIC = _SCALABLE + "/{topic}"
_SUBSCRIPTION = _TOPIC + "/subscriptions/{subscription}"
_SEGMENT = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"


class BadFilter(Error):
    """Not of the form `key=value`."""

    code = "bad-filter"


class BadSegmentCount(Error):
    code = "bad-segment-count"


def parse_filters(texts: Iterable[str]) -> dict[str, str]:
    found = dict[str, str]()
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadFilter(f"property is like key=value, not {text!r}")
        if found.setdefault(key, value) != value:
            raise BadFilter(f"no topic has two values of property {key!r}")
    return found


def parse_points(text: str) -> list[int]:
    """Ring positions in hexadecimal, where the second, third … child begin: `4000,8000`."""
    try:
        points = [int(word, 16) for word in text.split(",")]
    except ValueError as error:
        raise BadRequest(f"at is a list of ring positions like 4000,8000 (hexadecimal), not {text!r}") from error
    if not all(0 <= point < RING_SIZE for point in points):
        raise BadRequest(f"ring positions are 0 to {RING_SIZE - 1:x}, not {text!r}")
    return points


def parse_ids(text: str) -> list[int]:
    return [_segment_id(word) for word in text.split(",")]


def _segment_id(text: str) -> int:
    number = parse_number(text.strip(), "a segment id")
    if number < 0:
        raise BadRequest(f"a segment id is 0 or more, not {text!r}")
    return number


def _operation_id(request: Request) -> str | None:
    text = request.query.get("operationId")
    if text is not None and not 0 < len(text) <= OPERATION_ID_MAX:
        raise BadRequest(f"operationId has 1 to {OPERATION_ID_MAX} characters")
    return text


def _word(request: Request, name: str, words: tuple[str, ...], default: str) -> str:
    text = request.query.get(name, default)
    for word in words:
        if word.lower() == text.lower():
            return word
    raise BadRequest(f"{name} is one of {', '.join(words)}, not {text!r}")


def _operated(result: Mapping[str, Any]) -> Response:
    """Without a body, as Pulsar's clients expect it. Ids of new segments are in a header."""
    ids = ",".join(str(one) for one in result.get("segments", ()))  # a leader of an earlier version does not say them
    return replace(NO_CONTENT, headers=((SEGMENT_IDS, ids),)) if ids else NO_CONTENT


class ScalableCalls:
    def __init__(self, admin: ScalableAdmin) -> None:
        self._admin = admin

    async def list_topics(self, request: Request) -> Response:
        return json_response(await self._admin.names(namespace_of(request), parse_filters(request.texts("property"))))

    async def create(self, request: Request) -> Response:
        count = parse_number(request.query.get("numInitialSegments", "1"), "numInitialSegments")
        if not 1 <= count <= SEGMENTS_MAX:
            raise BadSegmentCount(f"numInitialSegments is 1 to {SEGMENTS_MAX}, not {count}")
        await self._admin.create(str(topic_of(request)), count, parse_properties(request.json()))
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        await self._admin.delete(str(topic_of(request)), request.flag("force"))
        return NO_CONTENT

    async def metadata(self, request: Request) -> Response:
        return json_response(await self._admin.metadata(str(topic_of(request))))

    async def stats(self, request: Request) -> Response:
        return json_response(await self._admin.stats(str(topic_of(request))))

    async def split(self, request: Request) -> Response:
        """In two at the middle, `?into=4` equal parts, or `?at=4000,8000`."""
        points = parse_points(request.query["at"]) if "at" in request.query else None
        ways = parse_number(request.query.get("into", "2"), "into")
        if points is not None and "into" in request.query and ways != len(points) + 1:
            raise BadRequest(f"{len(points)} points make {len(points) + 1} parts, not {ways}: give either into or at")
        if not 2 <= ways <= RING_SIZE:
            raise BadRequest(f"a segment splits into 2 to {RING_SIZE} parts, not {ways}")
        segment = _segment_id(request.params["segment"])
        return _operated(await self._admin.split(str(topic_of(request)), segment, ways, points, _operation_id(request)))

    async def merge(self, request: Request) -> Response:
        first, second = (_segment_id(request.params[name]) for name in ("segment", "other"))
        return _operated(await self._admin.merge(str(topic_of(request)), [first, second], _operation_id(request)))

    async def merge_run(self, request: Request) -> Response:
        ids = parse_ids(request.query.get("segments", ""))
        return _operated(await self._admin.merge(str(topic_of(request)), ids, _operation_id(request)))


class ScalableSubscriptionCalls:
    def __init__(self, admin: ScalableAdmin) -> None:
        self._admin = admin

    async def create(self, request: Request) -> Response:
        kind = _word(request, "type", KINDS, "STREAM")
        await self._admin.create_subscription(*_both(request), kind, _word(request, "start", STARTS, "earliest"))
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        await self._admin.delete_subscription(*_both(request), request.flag("force"))
        return NO_CONTENT

    async def describe(self, request: Request) -> Response:
        return json_response(await self._admin.subscription(*_both(request)))

    async def seek(self, request: Request) -> Response:
        if "timestamp" not in request.query:
            raise BadRequest("seek needs ?timestamp= in milliseconds")
        timestamp = parse_number(request.query["timestamp"], "timestamp")
        await self._admin.seek(*_both(request), timestamp)
        return NO_CONTENT

    async def skip_all(self, request: Request) -> Response:
        await self._admin.clear_backlog(*_both(request))
        return NO_CONTENT

    async def segment_backlog(self, request: Request) -> Response:
        params = request.params
        name = TopicName.from_parts(
            "segment", params["tenant"], params["namespace"], f"{params['topic']}/{params['descriptor']}"
        )
        found = await self._admin.subscription(str(topic_of(request)), check_subscription_name(params["subscription"]))
        descriptor = name.segment
        assert descriptor is not None, "the name was made of one"
        backlog = found["backlog"].get(str(descriptor.segment_id))
        if backlog is None:
            raise NotFound(f"{name} has no such subscription")
        return json_response(backlog)


class SegmentCalls:
    def __init__(self, admin: ScalableAdmin) -> None:
        self._admin = admin

    async def create(self, request: Request) -> Response:
        names = request.json()
        if names is not None and (not isinstance(names, list) or not all(isinstance(one, str) for one in names)):
            raise BadRequest("the body is a list of subscriptions, or empty")
        await self._admin.ensure_segment(*_segment(request), names or ())
        return NO_CONTENT

    async def terminate(self, request: Request) -> Response:
        await self._admin.terminate_segment(*_segment(request))
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        await self._admin.delete_segment(*_segment(request))
        return NO_CONTENT


def _segment(request: Request) -> tuple[str, SegmentDescriptor]:
    return str(topic_of(request)), SegmentDescriptor.parse(request.params["descriptor"])


def _both(request: Request) -> tuple[str, str]:
    return str(topic_of(request)), check_subscription_name(request.params["subscription"])


def scalable_routes(admin: ScalableAdmin) -> list[Route]:
    calls, subscriptions, segments = ScalableCalls(admin), ScalableSubscriptionCalls(admin), SegmentCalls(admin)
    split, merge = calls.split, calls.merge
    return [
        Route("GET", _SCALABLE, calls.list_topics, "Scalable topics of a namespace", NAMESPACE_LIST),
        Route("PUT", _TOPIC, calls.create, "Create a scalable topic", TOPIC_ADMIN, at_owner=True),
        Route("GET", _TOPIC, calls.metadata, "Record of a scalable topic: its segments", TOPIC_LOOKUP),
        Route("DELETE", _TOPIC, calls.delete, "Delete a scalable topic", TOPIC_ADMIN, at_owner=True),
        Route("GET", f"{_TOPIC}/stats", calls.stats, "Stats of a scalable topic", TOPIC_LOOKUP, at_owner=True),
        Route("POST", f"{_TOPIC}/split/{{segment}}", split, "Split a segment", TOPIC_ADMIN, at_owner=True),
        Route(
            "POST", f"{_TOPIC}/merge/{{segment}}/{{other}}", merge, "Merge two neighbours", TOPIC_ADMIN, at_owner=True
        ),
        Route("POST", f"{_TOPIC}/merge", calls.merge_run, "Merge a run of neighbours", TOPIC_ADMIN, at_owner=True),
        Route(
            "PUT",
            _SUBSCRIPTION,
            subscriptions.create,
            "Create a subscription of a scalable topic",
            TOPIC_ADMIN,
            at_owner=True,
        ),
        Route(
            "DELETE",
            _SUBSCRIPTION,
            subscriptions.delete,
            "Delete a subscription of a scalable topic",
            SUBSCRIPTION_CONSUME,
            at_owner=True,
        ),
        Route(
            "GET",
            _SUBSCRIPTION,
            subscriptions.describe,
            "Sessions, assignment and backlog of a subscription",
            SUBSCRIPTION_CONSUME,
            at_owner=True,
        ),
        Route(
            "POST",
            f"{_SUBSCRIPTION}/seek",
            subscriptions.seek,
            "Move a subscription to a publish time, on all segments",
            SUBSCRIPTION_CONSUME,
            at_owner=True,
        ),
        Route(
            "POST",
            f"{_SUBSCRIPTION}/skip-all",
            subscriptions.skip_all,
            "Clear the backlog of a subscription, on all segments",
            SUBSCRIPTION_CONSUME,
            at_owner=True,
        ),
        Route(
            "GET",
            f"{_SEGMENT}/subscription/{{subscription}}/backlog",
            subscriptions.segment_backlog,
            "Backlog of a subscription on one segment",
            SUPERVISE,
            at_owner=True,
        ),
        Route("PUT", _SEGMENT, segments.create, "204 if the record names the segment", SUPERVISE, at_owner=True),
        Route("POST", f"{_SEGMENT}/terminate", segments.terminate, "204 if the segment is sealed", SUPERVISE),
        Route("DELETE", _SEGMENT, segments.delete, "Delete a segment that no record names", SUPERVISE),
    ]
