"""Counts of schema reads, registrations, deletions and refusals by namespace, for a bounded number of namespaces."""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACES_MAX = 1_000
OTHERS = "(others)"  # not a valid namespace name


@dataclass(slots=True)
class Counts:
    got: int = 0
    got_failed: int = 0
    put: int = 0
    put_failed: int = 0
    deleted: int = 0
    deleted_failed: int = 0
    compatible: int = 0
    incompatible: int = 0


class SchemaCounts:
    def __init__(self) -> None:
        self.by_namespace: dict[str, Counts] = {}

    def of(self, namespace: str) -> Counts:
        found = self.by_namespace.get(namespace)
        if found is None:
            place = namespace if len(self.by_namespace) < NAMESPACES_MAX else OTHERS
            found = self.by_namespace.setdefault(place, Counts())
        return found
