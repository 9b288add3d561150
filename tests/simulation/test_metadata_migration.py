"""Migrations of the metadata under faults: no confirmed write is lost or doubled, and there is one leader at most."""

from __future__ import annotations

import pytest

from tests.support.simulation.metadata_migration import run_seed
from tests.support.simulation.metadata_processes import seeds


@pytest.mark.parametrize("span", seeds(120, 8))
def test_no_write_is_lost_or_doubled_by_migrations_under_faults(span: range) -> None:
    for seed in span:
        run_seed(seed)
