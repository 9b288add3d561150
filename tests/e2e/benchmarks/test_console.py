"""`make bench-console` runs, tiny; and names every figure that has to be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.console import MEASURES, main

GOALS = {
    "first-view": "≤ 60",
    "elsewhere": "≤ 0",
    "start": None,
    "paint": "≤ 0.3",
    "list": "≤ 0.5",
    "filter": "≤ 0.1",
    "timeline": "≤ 0.4",
    "frame": "≤ 20",
    "split": "≤ 0.3",
    "cpu": "≤ 1",
    "publish": "≤ 1.05",
}


@pytest.mark.slow
def test_runs(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    only = [word for name in MEASURES for word in ("--only", name)]
    assert main(["--quick", *only, "--dir", str(tmp_path), "--json", str(target)]) == 0
    found = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    assert {name: one["goal"] for name, one in found.items()} == GOALS
    assert {found[name]["verdict"] for name in ("first-view", "elsewhere")} == {"ok"}, "no clock in them"
    assert [path for path in tmp_path.iterdir() if path != target] == [], "the benchmark cleans up"
