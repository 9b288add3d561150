"""Answers for people: tables, lists and pairs as text. Pure; JSON is for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anabranch.cli.output.terminal import plain

CELL_MAX = 100
NOT_SET = "not set"


def cell(value: Any) -> str:
    """One value on one line."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.1f}"
        case dict() | list():
            return json.dumps(value, ensure_ascii=False) if value else "-"
        case _:
            return plain(str(value))


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    filled = list(rows)
    texts = [[cell(value) for value in row] for row in filled]
    widths = [max(len(head), *(len(row[i]) for row in texts)) if texts else len(head) for i, head in enumerate(heads)]
    right = [
        bool(filled) and all(isinstance(row[i], int | float) and not isinstance(row[i], bool) for row in filled)
        for i in range(len(heads))
    ]
    lines = [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [[head.upper() for head in heads], *texts]
    ]
    return "\n".join(lines)


def pairs(value: Mapping[str, Any]) -> str:
    """Name and value, one pair per line; an object inside is shown as JSON."""
    width = max((len(str(name)) for name in value), default=0)
    return "\n".join(f"{name!s:<{width}}  {cell(one)}" for name, one in value.items())


def shown(value: Any) -> str:
    """Any answer of the admin REST, for people."""
    match value:
        case None:
            return NOT_SET
        case dict():
            return pairs(value) if value else "(empty)"
        case []:
            return "(none)"
        case list() if all(isinstance(one, dict) for one in value):
            heads = list(dict.fromkeys(key for one in value for key in one))
            return table(heads, ([one.get(head) for head in heads] for one in value))
        case list():
            return "\n".join(cell(one) for one in value)
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


def topic_stats(value: Any) -> str:
    """Figures of a topic: the sums, then a line per producer and per subscription."""
    sums = {
        "messages in": value.get("msgInCounter"),
        "bytes in": value.get("bytesInCounter"),
        "rate in (msg/s)": value.get("msgRateIn"),
        "rate out (msg/s)": value.get("msgRateOut"),
        "storage (bytes)": value.get("storageSize"),
        "backlog (bytes)": value.get("backlogSize"),
        "producers": len(value.get("publishers", [])),
        "deduplication": value.get("deduplicationStatus"),
    }
    if "metadata" in value:
        sums = {"partitions": value["metadata"].get("partitions"), **sums}
    text = pairs({name: one for name, one in sums.items() if one is not None})
    subscriptions = value.get("subscriptions") or {}
    if not subscriptions:
        return f"{text}\n\nno subscriptions"
    rows = [
        (
            name,
            one.get("type"),
            len(one.get("consumers", [])),
            one.get("msgBacklog", 0),
            one.get("unackedMessages", 0),
            one.get("msgRateOut", 0.0),
        )
        for name, one in subscriptions.items()
    ]
    return f"{text}\n\n{table(('subscription', 'type', 'consumers', 'backlog', 'unacked', 'msg/s out'), rows)}"
