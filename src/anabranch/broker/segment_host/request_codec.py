"""Requests, answers, events and stats of the controller's port as JSON, for peer calls.

The names of the classes are the values of `"kind"` on the wire between brokers: they must not be renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from anabranch.controller import segment_host as host
from anabranch.controller.segment_host import (
    Adopted,
    Answer,
    CursorSpec,
    CursorStats,
    Done,
    Drained,
    FencingToken,
    LoadReported,
    Moved,
    Rates,
    ReaderLeft,
    Refilled,
    Request,
    SealFacts,
    SegmentRef,
    SegmentStats,
    Start,
    Status,
    SubscriptionEvent,
    SubscriptionSeen,
)
from anabranch.model.autoscale.load import BadLoadReport, decode_load, encode_load
from anabranch.model.errors import BadRequest, Error
from anabranch.model.names import TopicName
from anabranch.model.position import Position

Json = dict[str, Any]

ERRORS: Mapping[str, type[Error]] = {
    one.code: one
    for one in (
        host.StaleTerm,
        host.StaleRequest,
        host.SegmentMissing,
        host.CursorMissing,
        host.SegmentSealed,
        host.NotPlanned,
        host.OtherIncarnation,
        host.HostUnavailable,
        host.HostOutcomeUnknown,
    )
}
"""Errors of the port, by code."""


# requests -------------------------------------------------------------------------------------------------------------
def request_json(fencing_token: FencingToken, request: Request) -> Json:
    value: Json = {
        "kind": type(request).__name__,
        "mandate": [fencing_token.term, fencing_token.number],
        "operation": request.operation,
        "segment": ref_json(request.segment),
    }
    match request:
        case host.Create():
            value["cursors"] = [_spec_json(one) for one in request.cursors]
        case host.Seal():
            value["children"] = [ref_json(one) for one in request.children]
        case host.CreateCursor():
            value["cursor"] = _spec_json(request.cursor)
        case host.Seek():
            value["subscription"], value["publishMs"] = request.subscription, request.publish_ms
            value["generation"] = request.generation
            if request.after is not None:
                value["after"] = list(request.after)
            if request.unread:
                value["unread"] = list(request.unread)
        case host.DeleteCursor() | host.ClearBacklog():
            value["subscription"] = request.subscription
        case host.CloseReader() | host.GrantReader():
            value["subscription"], value["consumer"] = request.subscription, request.consumer
            value["generation"] = request.generation
        case host.DenyCursor():
            value["subscription"], value["reason"] = request.subscription, request.reason
        case host.Hold():
            value["subscription"] = request.subscription
            value["position"] = None if request.position is None else list(request.position)
        case host.Adopt():
            value["force"] = request.force
        case host.Fence() | host.Delete() | host.Release():
            pass
        case _:
            assert_never(request)
    return value


def read_request(value: Mapping[str, Any]) -> tuple[FencingToken, Request]:
    """Raises BadRequest."""
    try:
        return FencingToken(*map(int, value["mandate"])), _request(value)
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"invalid request to the owner of a segment: {error!r}") from error


def _request(value: Mapping[str, Any]) -> Request:
    operation, segment = str(value["operation"]), read_ref(value["segment"])
    match value["kind"]:
        case "Create":
            return host.Create(operation, segment, tuple(map(_spec, value["cursors"])))
        case "Adopt":
            return host.Adopt(operation, segment, bool(value["force"]))
        case "Release":
            return host.Release(operation, segment)
        case "Fence":
            return host.Fence(operation, segment)
        case "Seal":
            return host.Seal(operation, segment, tuple(map(read_ref, value["children"])))
        case "Delete":
            return host.Delete(operation, segment)
        case "CreateCursor":
            return host.CreateCursor(operation, segment, _spec(value["cursor"]))
        case "DeleteCursor":
            return host.DeleteCursor(operation, segment, str(value["subscription"]))
        case "Seek":
            to_ms, generation = int(value["publishMs"]), int(value.get("generation", 0))
            after = Position(*map(int, value["after"])) if value.get("after") else None
            unread = tuple(map(int, value.get("unread", ())))
            return host.Seek(operation, segment, str(value["subscription"]), to_ms, generation, after, unread)
        case "ClearBacklog":
            return host.ClearBacklog(operation, segment, str(value["subscription"]))
        case "CloseReader" | "GrantReader":
            kind = host.CloseReader if value["kind"] == "CloseReader" else host.GrantReader
            who, generation = str(value["consumer"]), int(value["generation"])
            return kind(operation, segment, str(value["subscription"]), who, generation)
        case "DenyCursor":
            return host.DenyCursor(operation, segment, str(value["subscription"]), str(value["reason"]))
        case "Hold":
            at = value["position"]
            position = None if at is None else Position(*map(int, at))
            return host.Hold(operation, segment, str(value["subscription"]), position)
        case other:
            raise BadRequest(f"unknown request {other!r}")


# answers --------------------------------------------------------------------------------------------------------------
def answer_json(answer: Answer) -> Json:
    match answer:
        case Done():
            return {"kind": "Done"}
        case Moved():
            return {"kind": "Moved", "drained": answer.is_drained, "rewinds": answer.rewind_count}
        case SealFacts():
            return {"kind": "SealFacts", **_seal_json(answer)}
        case Adopted():
            clients = [[one.role, one.name, one.address, one.version, one.subscription] for one in answer.clients]
            return {"kind": "Adopted", "clients": clients, "subscriptions": answer.subscriptions}
        case Status():
            return {
                "kind": "Status",
                "exists": answer.exists,
                "sealed": None if answer.sealed is None else _seal_json(answer.sealed),
                "cursors": sorted(answer.cursors),
                "drained": sorted(answer.drained),
            }
        case _:
            assert_never(answer)


def read_answer(value: Mapping[str, Any]) -> Answer:
    """Raises BadRequest."""
    try:
        match value["kind"]:
            case "Done":
                return Done()
            case "Moved":
                return Moved(bool(value["drained"]), int(value["rewinds"]))
            case "SealFacts":
                return _seal(value)
            case "Adopted":
                clients = tuple(host.OldClient(*map(str, one)) for one in value["clients"])
                return Adopted(clients, tuple((str(name), bool(shared)) for name, shared in value["subscriptions"]))
            case "Status":
                sealed = None if value["sealed"] is None else _seal(value["sealed"])
                drained = frozenset((str(name), int(rewind_count)) for name, rewind_count in value["drained"])
                return Status(bool(value["exists"]), sealed, frozenset(map(str, value["cursors"])), drained)
            case other:
                raise BadRequest(f"unknown answer {other!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"invalid answer of the owner of a segment: {error!r}") from error


# events ---------------------------------------------------------------------------------------------------------------
def event_json(event: SubscriptionEvent) -> Json:
    value: Json = {
        "kind": type(event).__name__,
        "segment": ref_json(event.segment),
        "subscription": event.subscription,
    }
    match event:
        case Drained() | Refilled():
            value["rewinds"] = event.rewind_count
        case SubscriptionSeen():
            value["shared"], value["start"] = event.is_shared, event.start.value
        case ReaderLeft():
            value["reader"] = event.reader
        case _:
            assert_never(event)
    return value


def read_event(value: Mapping[str, Any]) -> SubscriptionEvent:
    """Raises BadRequest."""
    try:
        segment, subscription = read_ref(value["segment"]), str(value["subscription"])
        match value["kind"]:
            case "Drained":
                return Drained(segment, subscription, int(value["rewinds"]))
            case "Refilled":
                return Refilled(segment, subscription, int(value["rewinds"]))
            case "SubscriptionSeen":
                return SubscriptionSeen(segment, subscription, bool(value["shared"]), Start(value["start"]))
            case "ReaderLeft":
                return ReaderLeft(segment, subscription, str(value["reader"]))
            case other:
                raise BadRequest(f"unknown event {other!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"invalid event of a segment: {error!r}") from error


def load_event_json(event: LoadReported) -> Json:
    return {"segment": ref_json(event.segment), "load": encode_load(event.load).decode()}


def read_load_event(value: Mapping[str, Any]) -> LoadReported:
    """Raises BadRequest."""
    try:
        return LoadReported(read_ref(value["segment"]), decode_load(value["load"].encode()))
    except (KeyError, TypeError, ValueError, AttributeError, BadLoadReport) as error:
        raise BadRequest(f"invalid load report of a segment: {error!r}") from error


# stats --------------------------------------------------------------------------------------------------------------
def stats_json(stats: SegmentStats) -> Json:
    return {
        "rates": [[one.messages_in, one.bytes_in, one.messages_out, one.bytes_out] for one in _rates(stats)],
        "producers": stats.producers,
        "messages": stats.messages,
        "bytes": stats.bytes,
        "subscriptions": {
            name: [one.backlog, one.consumers, *(one.position or ())] for name, one in stats.subscriptions.items()
        },
    }


def _rates(stats: SegmentStats) -> tuple[Rates, Rates]:
    return stats.rates_10s, stats.rates_60s


def read_stats(value: Mapping[str, Any]) -> SegmentStats:
    """Raises BadRequest."""
    try:
        short, long = (Rates(*map(float, one)) for one in value["rates"])
        found = {str(name): _cursor_stats(one) for name, one in value["subscriptions"].items()}
        return SegmentStats(short, long, int(value["producers"]), int(value["messages"]), int(value["bytes"]), found)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadRequest(f"invalid stats of a segment: {error!r}") from error


def _cursor_stats(value: list[Any]) -> CursorStats:
    """Brokers of earlier releases send no position."""
    backlog, consumers, *position = map(int, value)
    return CursorStats(backlog, consumers, Position(*position) if position else None)


# values ---------------------------------------------------------------------------------------------------------------
def ref_json(ref: SegmentRef) -> list[Any]:
    return [str(ref.name), ref.incarnation, ref.segment_id]


def read_ref(value: list[Any]) -> SegmentRef:
    name, incarnation, segment_id = value
    return SegmentRef(TopicName.parse(name), int(incarnation), int(segment_id))


def _spec_json(spec: CursorSpec) -> list[str]:
    return [spec.subscription, spec.start.value]


def _spec(value: list[str]) -> CursorSpec:
    subscription, start = value
    return CursorSpec(subscription, Start(start))


def _seal_json(facts: SealFacts) -> Json:
    return {
        "lastPosition": list(facts.last_position),
        "sealedAtMs": facts.sealed_at_ms,
        "operation": facts.operation,
        "sequenceIds": [list(one) for one in facts.sequence_ids],
    }


def _seal(value: Mapping[str, Any]) -> SealFacts:
    return SealFacts(
        Position(*map(int, value["lastPosition"])),
        int(value["sealedAtMs"]),
        str(value["operation"]),
        tuple((str(name), int(last)) for name, last in value["sequenceIds"]),
    )
