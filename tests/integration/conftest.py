"""Fixtures of the integration tests: the metadata world on every kind of store."""

from __future__ import annotations

from tests.support.in_memory.metadata_stores import store, world

__all__ = ["store", "world"]
