"""The mark of clients that follow a regular topic when it becomes a scalable one.

A client sends it in the metadata of PRODUCER and SUBSCRIBE on a `persistent://` topic. A client without it is a v4
client: a migration waits until it has left, or closes it.
"""

from __future__ import annotations

from collections.abc import Mapping

MANAGED = "__pulsar.v5.managed"
_TRUE = "true"


def managed(metadata: Mapping[str, str] | None = None) -> dict[str, str]:
    """The metadata of an application with the mark."""
    return {**(metadata or {}), MANAGED: _TRUE}


def is_managed(metadata: Mapping[str, str]) -> bool:
    """Whether the producer or consumer with this metadata follows a migration of its topic."""
    return metadata.get(MANAGED, "").lower() == _TRUE
