"""Differences between two stats answers of a scalable topic, as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.cli.output.autoscaling import decision_line
from anabranch.cli.output.scalable_topic import operation_line, waiting_lines

Values = Mapping[str, Any]


def changes(before: Values | None, now: Values) -> list[str]:
    """Oldest first; nothing for the first look. A topic that was created again is said once, not by segments."""
    if before is None:
        return []
    if before.get("incarnation") != now.get("incarnation"):
        return [f"deleted and created again: {now['activeSegments']} segments"]
    lines = [f"auto-scaling: {decision_line(one)}" for one in _new_decisions(before, now)]
    for key, segment in sorted(now["segments"].items(), key=lambda one: int(one[0])):
        if key not in before["segments"] and segment["state"] == "ACTIVE":
            parents = segment.get("parentIds") or []
            lines.append(f"segment {key} begins{_after(parents, now)}")
    lines += [
        f"segment {key} is gone (collected)"
        for key in sorted(before["segments"], key=int)
        if key not in now["segments"]
    ]
    running, was = now.get("operation"), before.get("operation")
    if running and (not was or (was["id"], was["phase"]) != (running["id"], running["phase"])):
        lines.append(operation_line(running))
    old, new = before.get("subscriptions") or {}, now.get("subscriptions") or {}
    for name in sorted({*old, *new}):
        count = (new.get(name) or {}).get("consumerCount", 0)
        if name not in new:
            lines.append(f"subscription {name} is gone")
        elif name not in old:
            lines.append(f"subscription {name} is there")
        elif (old[name] or {}).get("consumerCount", 0) != count:
            lines.append(f"subscription {name} has {count} consumers")
        if name in new and set(waits := waiting_lines(new[name] or {})) != set(waiting_lines(old.get(name) or {})):
            lines += [f"subscription {name}: {line}" for line in waits]
    return lines


def _new_decisions(before: Values, now: Values) -> list[Values]:
    """Oldest first. An action gets its outcome later and is the same decision."""
    seen = {(one["atMs"], one["action"]) for one in _decisions(before)}
    return [one for one in reversed(_decisions(now)) if (one["atMs"], one["action"]) not in seen]


def _decisions(stats: Values) -> list[Values]:
    return (stats.get("autoScale") or {}).get("decisions") or []


def _after(parents: list[int], now: Values) -> str:
    if not parents:
        return ""
    verb = "merge" if len(parents) > 1 else "split"
    of = " and ".join(str(parent) for parent in parents)
    last = now.get("lastOperation") or {}
    why = f", {last['reason']}" if last.get("reason") else ""
    return f" ({verb} of {of}{why})"
