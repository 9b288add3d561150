"""The append benchmark runs, so that it cannot rot."""

from __future__ import annotations

from pathlib import Path

from benchmarks.micro.append import measure


def test_the_append_benchmark_measures_both_sides(tmp_path: Path) -> None:
    row = measure(158, 300, 50, 3, str(tmp_path))
    assert row["entries_per_s"] > 0
    assert row["floor_entries_per_s"] > 0
    assert 1 <= row["entries_per_group"] <= 300
