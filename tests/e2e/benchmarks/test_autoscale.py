"""`make bench-autoscale` runs, tiny; and names every figure that has to be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.autoscale.__main__ import MEASURES, main

GOALS = {
    "grow": "≤ 10",
    "grow-consumers": "≤ 10",
    "react": "≤ 2",
    "consumer": "≤ 1",
    "consumer-max": "≤ 1",
    "pause-max": "≤ 50",
    "steady": "≤ 0",
    "topics": "≤ 1.2",
    "day": "≤ 60",
    "day-above": "≤ 1",
    "idle": "≤ 0",
}


@pytest.mark.slow
def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    only = [word for name in MEASURES for word in ("--only", name)]
    assert main(["--quick", *only, "--dir", str(tmp_path), "--json", str(target)]) == 0
    found = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    assert {name: found[name]["goal"] for name in GOALS} == GOALS
    assert {found[name]["verdict"] for name in ("day", "day-above", "idle")} == {"ok"}, "no clock in them"
    shown = capsys.readouterr().out
    assert all(one["title"] in shown for one in found.values())
    assert [path for path in tmp_path.iterdir() if path != target] == [], "the benchmark cleans up"
