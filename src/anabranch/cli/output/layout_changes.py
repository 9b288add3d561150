"""Splits and merges between two layouts of a topic, as values and as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.model.layout import Layout


@dataclass(frozen=True, slots=True)
class Change:
    topic: str
    parents: tuple[int, ...]
    children: tuple[int, ...]

    @property
    def kind(self) -> str:
        if not self.parents:
            return "added"
        return "merge" if len(self.parents) > 1 else "split"

    def as_object(self) -> dict[str, Any]:
        return {"event": self.kind, "topic": self.topic, "parents": [*self.parents], "children": [*self.children]}

    def __str__(self) -> str:
        children = ", ".join(map(str, self.children))
        if not self.parents:
            return f"-- {self.topic}: segments {children} are there"
        return f"-- {self.topic}: {self.kind} of segment {' and '.join(map(str, self.parents))} into {children}"


def changes(before: Mapping[str, Layout], after: Mapping[str, Layout]) -> list[Change]:
    """In the order in which the segments were made. A topic that was not there before is no news."""
    found: list[Change] = []
    for topic, layout in after.items():
        if topic not in before or before[topic] is layout:
            continue
        known, groups = before[topic].segments, dict[tuple[int, ...], list[int]]()
        for number in sorted(layout.segments):
            if number not in known:
                groups.setdefault(tuple(sorted(layout.segments[number].parent_ids)), []).append(number)
        found += [Change(topic, parents, tuple(children)) for parents, children in groups.items()]
    return found
