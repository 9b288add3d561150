"""Stored form of an assignment. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Leaving:
    """A revoked segment that is not released yet: its holder, and the generation that revoked it."""

    holder: str
    generation: int


@dataclass(frozen=True, slots=True)
class AssignmentRecord:
    """The state that a new leader needs to continue without revoking anything."""

    generation: int = 0
    owned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by member: segments it has or waits for
    leaving: Mapping[int, Leaving] = field(default_factory=dict)
    following: Mapping[int, str] = field(default_factory=dict)  # by segment: the member that follows
    shares: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)  # by segment: buckets by reader
    losing: Mapping[tuple[int, str], int] = field(default_factory=dict)  # revoked shares, with their generation

    def to_json(self) -> dict[str, Any]:
        leaving = {str(one): {"holder": it.holder, "generation": it.generation} for one, it in self.leaving.items()}
        value: dict[str, Any] = {"generation": self.generation, "owned": self.owned, "leaving": leaving}
        if self.following:
            value["following"] = {str(one): name for one, name in self.following.items()}
        if self.shares:
            value["shares"] = {str(one): dict(readers) for one, readers in self.shares.items()}
        if self.losing:
            value["losing"] = [[one, name, generation] for (one, name), generation in self.losing.items()]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AssignmentRecord:
        leaving = {int(one): Leaving(str(it["holder"]), int(it["generation"])) for one, it in value["leaving"].items()}
        owned = {str(name): tuple(map(int, ids)) for name, ids in value["owned"].items()}
        following = {int(one): str(name) for one, name in value.get("following", {}).items()}
        shares = {
            int(one): {str(name): tuple(map(int, buckets)) for name, buckets in readers.items()}
            for one, readers in value.get("shares", {}).items()
        }
        losing = {(int(one), str(name)): int(generation) for one, name, generation in value.get("losing", ())}
        return cls(int(value["generation"]), owned, leaving, following, shares, losing)
