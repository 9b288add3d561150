"""`make bench-topic-migration` runs, tiny; and names every figure that has to be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.topic_migration import main

GOALS = {"command-1": "≤ 0.1", "pause": "≤ 50", "copied": "≤ 0"}


@pytest.mark.slow
def test_runs(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    assert main(["--quick", "--dir", str(tmp_path), "--json", str(target)]) == 0
    found = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    assert {name: found[name]["goal"] for name in GOALS} == GOALS
    assert found["copied"]["verdict"] == "ok"
    assert [path for path in tmp_path.iterdir() if path != target] == [], "the benchmark cleans up"
