"""The benchmark of splits runs, tiny: no error, nothing lost, doubled or out of order, and its goals are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.sdk_split import main


@pytest.mark.slow
def test_runs(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    assert main(["--quick", "--dir", str(tmp_path), "--json", str(target)]) == 0
    found = {one["name"]: one["goal"] for one in json.loads(target.read_text())["measures"]}
    assert found == {"split-gap": "≤ 10", "split-gap-max": "≤ 50", "split-wait": "≤ 10", "split-wait-max": "≤ 50"}
