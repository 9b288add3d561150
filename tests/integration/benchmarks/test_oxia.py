"""The Oxia benchmark runs, tiny. What it measures here means nothing; that it measures does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import services

pytestmark = pytest.mark.xdist_group("oxia")


def test_runs(tmp_path: Path) -> None:
    services.shared("oxia")  # skips where there is no server
    from benchmarks.stores import oxia as metadata_oxia
    from benchmarks.support.measure import Scene, table

    found = metadata_oxia.run(Scene(tmp_path, quick=True))
    assert [outcome.name for outcome in found] == [
        "metadata-oxia-pipelined",
        "metadata-oxia-bulk",
        "metadata-oxia-event",
    ]
    assert all(outcome.ratio > 0 for outcome in found)
    assert len(list(table(found))) == 4
