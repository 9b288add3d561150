"""A schema registry on memory, its checks on the test's own thread."""

from __future__ import annotations

from itertools import count
from typing import Any

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.schemas.registry import SchemaRegistry
from anabranch.broker.schemas.settings import SchemaSettings
from anabranch.broker.services import NameGenerator
from anabranch.metadata.interface import MetadataStore
from anabranch.runtime.clock import Clock
from tests.support.in_memory.simulated_disk import SimBlocking

_starts = count()


def new_registry(store: MetadataStore, catalog: Catalog, clock: Clock, **settings: Any) -> SchemaRegistry:
    names = NameGenerator(f"test{next(_starts)}")
    return SchemaRegistry(store, catalog, SimBlocking(), clock, SchemaSettings(**settings), names.schema)
