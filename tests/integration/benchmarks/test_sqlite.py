"""The benchmark of the embedded store runs, tiny: what it measures here means nothing, that it measures does."""

from __future__ import annotations

from pathlib import Path

from benchmarks.stores import sqlite as metadata_sqlite
from benchmarks.support.measure import Scene


def test_it_runs(tmp_path: Path) -> None:
    found = metadata_sqlite.run(Scene(tmp_path, quick=True))
    assert [one.name for one in found] == ["metadata-sqlite-cas", "metadata-sqlite-event"]
    assert all(one.ratio > 0 for one in found)
