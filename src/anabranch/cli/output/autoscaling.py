"""The auto-scaling of a topic as text: what it would do now, why not more, loads, past decisions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from anabranch.cli.output.tables import table

SHOWN_DECISIONS = 10
Values = Mapping[str, Any]


def explain_view(value: Values) -> str:
    """What `explain` shows."""
    now = value["now"]
    lines = [f"{value['activeSegments']} active segments; now: {decision_line(now)}"]
    if now["suppressed"]:
        rows = [(_what(one), one["reason"], one["suppressedBy"], one["detail"]) for one in now["suppressed"]]
        lines += ["", table(("not done", "wanted by", "suppressed by", "why"), rows)]
    if value["loads"]:
        loads = [
            (number, *_rates(load)) for number, load in sorted(value["loads"].items(), key=lambda one: int(one[0]))
        ]
        heads = ("segment", "msg/s in", "bytes/s in", "msg/s out", "bytes/s out", "reported")
        lines += ["", table(heads, loads)]
    set_by = [name for name in ("topic", "namespace") if value["levels"][name]]
    lines += ["", f"policy: broker settings{''.join(f', overridden by the {name}' for name in reversed(set_by))}"]
    if value["decisions"]:
        past = [
            (
                _time(one["atMs"]),
                _action(one),
                one["reason"],
                one.get("outcome", "–"),
                one.get("error") or one["detail"],
            )
            for one in value["decisions"][:SHOWN_DECISIONS]
        ]
        lines += ["", table(("at", "decision", "reason", "outcome", "detail"), past)]
    return "\n".join(lines)


def decision_line(decision: Values) -> str:
    """One decision on one line."""
    return f"{_action(decision)} ({decision['reason']}) {decision['detail']}".rstrip()


def _action(decision: Values) -> str:
    if decision["action"] == "none":
        return "nothing"
    return f"{decision['action']} {', '.join(map(str, decision['segments']))}"


def _what(suppressed: Values) -> str:
    more = suppressed["segmentCount"] - len(suppressed["segments"])
    return f"{suppressed['kind']} {', '.join(map(str, suppressed['segments']))}{f' and {more} more' if more else ''}"


def _rates(load: Values) -> tuple[str, ...]:
    names = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")
    return (*(f"{load[name]:,.1f}" for name in names), _time(load["reportedAtMs"]))


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S")
