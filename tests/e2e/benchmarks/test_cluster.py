"""`make bench-cluster` runs, tiny; and names every figure that has to be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cluster import MEASURES, main

GOALS = {
    "takeover-sqlite": "≤ 1",
    "takeover-served": "≤ 0.3",
    "takeover-opened": "≤ 0.3",
    "unload-gap": "≤ 50",
    "move-gap": "≤ 50",
}


@pytest.mark.slow
def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    names = [name for name in MEASURES if name != "servers"]  # the same as "takeover", and long
    only = [word for name in names for word in ("--only", name)]
    assert main(["--quick", *only, "--dir", str(tmp_path), "--json", str(target)]) == 0
    found = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    assert {name: found[name]["goal"] for name in GOALS} == GOALS
    assert all(one["ratio"] > 0 for one in found.values())
    shown = capsys.readouterr().out
    assert all(one["title"] in shown for one in found.values())
    assert [path for path in tmp_path.iterdir() if path != target] == [], "the benchmark cleans up"
