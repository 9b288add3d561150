"""A scalable topic as text: its segments on the hash ring, tables, one drawing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.cli.output.autoscaling import decision_line
from anabranch.cli.output.tables import pairs, table

RING = 1 << 16
WIDTH = 64
Values = Mapping[str, Any]


def _range_of(segment: Values) -> tuple[int, int]:
    ends = segment["hashRange"]
    return int(ends["start"]), int(ends["end"])


def _by_ring(segments: Mapping[str, Values]) -> list[tuple[int, Values]]:
    found = [(int(key), segment) for key, segment in segments.items()]
    return sorted(found, key=lambda one: (*_range_of(one[1]), one[0]))


def bar(segments: Iterable[tuple[int, Values]], width: int = WIDTH) -> list[str]:
    """Active segments on the ring, in its order: a line of boxes, with ids in those wide enough.

    ├───────┼───┼───┤
    │ 1     │ 4 │ 5 │
    """
    cells = {_range_of(segment)[0] * width // RING: str(key) for key, segment in segments}
    line, names = ["─"] * width, [" "] * width
    ends = [*list(cells)[1:], width]
    for (at, label), end in zip(cells.items(), ends, strict=False):
        line[at], names[at] = "┼" if at else "├", "│"
        if at + 2 + len(label) < end:
            names[at + 2 : at + 2 + len(label)] = label
    return ["".join(line) + "┤", "".join(names) + "│"] if cells else []


def layout_table(value: Values) -> str:
    """What `get-metadata` shows: the picture, then a line per segment."""
    rows = [
        (
            key,
            f"{start:04x}-{end:04x}",
            segment["state"].lower(),
            _ids(segment["parentIds"]),
            _ids(segment["childIds"]),
            segment["createdAtEpoch"],
        )
        for key, segment in _by_ring(value["segments"])
        for start, end in [_range_of(segment)]
    ]
    active = [(key, segment) for key, segment in _by_ring(value["segments"]) if segment["state"] == "ACTIVE"]
    head = f"epoch {value['epoch']}, {len(active)} active of {len(rows)} segments"
    lines = [head, *bar(active), "", table(("segment", "range", "state", "parents", "children", "since epoch"), rows)]
    if value.get("properties"):
        lines += ["", pairs(value["properties"])]
    return "\n".join(lines)


def operation_line(operation: Values | None) -> str:
    if not operation:
        return "no operation is running"
    parents, children = _ids(operation["parents"]), _ids(operation["children"])
    why = f" ({operation['reason']})" if operation.get("reason") else ""
    return f"{operation['kind'].lower()} of {parents} into {children}: {operation['phase']}{why}"


def scaling_lines(scaling: Values | None) -> list[str]:
    """What auto-scaling would do now, and why not more; nothing from a broker that does not say it."""
    if not scaling:
        return []
    if "error" in scaling:
        return [f"auto-scaling: paused, {scaling['error']}"]
    return [f"auto-scaling: {decision_line(scaling['now'])}"]


def stats_view(value: Values) -> str:
    """What `stats` shows: the picture, the operation, a line per segment, a line per subscription."""
    segments = _by_ring(value["segments"])
    active = [(key, segment) for key, segment in segments if segment["state"] == "ACTIVE"]
    rows = [
        (
            key,
            f"{start:04x}-{end:04x}",
            segment["state"].lower(),
            segment.get("broker"),
            rate(segment, "in", "msg"),
            rate(segment, "out", "msg"),
            rate(segment, "in", "bytes"),
            sum((segment.get("backlog") or {}).values()),
            segment.get("consumers", 0),
        )
        for key, segment in segments
        for start, end in [_range_of(segment)]
    ]
    heads = ("segment", "range", "state", "broker", "msg/s in", "msg/s out", "bytes/s in", "backlog", "consumers")
    lines = [
        f"epoch {value['epoch']}, {value['activeSegments']} active and {value['sealedSegments']} sealed segments",
        *bar(active),
        operation_line(value.get("operation")),
        *scaling_lines(value.get("autoScale")),
        "",
        table(heads, rows),
        "",
    ]
    found = value.get("subscriptions") or {}
    if not found:
        return "\n".join([*lines, "no subscriptions"])
    names = [
        (name, one.get("type"), one.get("consumerCount", 0), one.get("msgBacklog", 0)) for name, one in found.items()
    ]
    lines.append(table(("subscription", "type", "consumers", "backlog"), names))
    where = [(name, *row) for name, one in found.items() for row in position_rows(one) if not row[3]]
    if where:
        lines += ["", table(("subscription", *POSITION_HEADS), where)]
    waits = [f"subscription {name}: {line}" for name, one in found.items() for line in waiting_lines(one)]
    return "\n".join([*lines, "", *waits] if waits else lines)


def waiting_lines(subscription: Values) -> list[str]:
    """The segments that wait until others are acknowledged, a line per set of segments that they wait for."""
    waiting: dict[tuple[int, ...], list[int]] = {}
    for key, ancestors in (subscription.get("waiting") or {}).items():
        waiting.setdefault(tuple(ancestors), []).append(int(key))
    segments = subscription.get("segments") or {}
    lines = []
    for ancestors, children in sorted(waiting.items()):
        left = sum((segments.get(str(one)) or {}).get("backlog") or 0 for one in ancestors)
        messages = f"{left} messages of " if left else ""
        lines.append(f"segments {_ids(sorted(children))} wait until {messages}{_ids(ancestors)} are acknowledged")
    return lines


POSITION_HEADS = ("segment", "position", "backlog", "drained", "consumer")


def position_rows(subscription: Values) -> list[tuple[Any, ...]]:
    """How far it is, a row per segment."""
    return [
        (int(key), one.get("position"), one.get("backlog"), one.get("drained", False), one.get("consumer"))
        for key, one in sorted((subscription.get("segments") or {}).items(), key=lambda item: int(item[0]))
    ]


def rate(segment: Values, way: str, of: str, window: str = "10") -> float:
    """Per second over the last ten (or `60`) seconds; 0 without a sample."""
    rates = segment.get("rates") or {}
    return float(((rates.get(way) or {}).get(of) or {}).get(window, 0.0))


def subscription_view(value: Values) -> str:
    sums = {
        "type": value.get("type"),
        "start": value.get("start"),
        "state": value.get("state"),
        "generation": value.get("generation"),
        "backlog": value.get("msgBacklog"),
        "drained segments": _ids(value.get("drained") or ()),
    }
    text = pairs({name: one for name, one in sums.items() if one is not None})
    if rows := position_rows(value):
        text = f"{text}\n\n{table(POSITION_HEADS, rows)}"
    if waits := waiting_lines(value):
        text = "\n".join([text, "", *waits])
    sessions = value.get("sessions") or []
    if not sessions:
        return f"{text}\n\nno consumers"
    rows = [(one["name"], one.get("connected"), _ids(one.get("segments") or ())) for one in sessions]
    return f"{text}\n\n{table(('consumer', 'connected', 'segments'), rows)}"


def _ids(ids: Iterable[int]) -> str:
    return ", ".join(str(one) for one in ids) or "-"
