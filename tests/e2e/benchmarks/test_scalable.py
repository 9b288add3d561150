"""`make bench-scalable` runs, tiny; and names every figure that has to be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scalable import MEASURES, main

GOALS = {
    "split": "≤ 30",
    "told": "≤ 10",
    "drained": "≤ 10",
    "drained-max": "≤ 50",
    "rebalance": "≤ 500",
    "rebalance-moves": "≤ 0",
    "failover-1": "≤ 1000",
    "idle-cpu": "≤ 5",
    "idle-tasks": "≤ 0",
    "idle-timers": "≤ 0",
}


@pytest.mark.slow
def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    only = [word for name in MEASURES for word in ("--only", name)]
    assert main(["--quick", *only, "--dir", str(tmp_path), "--json", str(target)]) == 0
    found = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    assert {name: found[name]["goal"] for name in GOALS} == GOALS
    assert found["rebalance-moves"]["ratio"] == 0
    assert (found["idle-tasks"]["ratio"], found["idle-timers"]["ratio"]) == (0, 0)
    shown = capsys.readouterr().out
    assert all(one["title"] in shown for one in found.values())
    assert [path for path in tmp_path.iterdir() if path != target] == [], "the benchmark cleans up"
