"""The stream benchmark runs, tiny: nothing lost, doubled or out of order while it splits, and its goal is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.sdk_stream import main


@pytest.mark.slow
def test_runs(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    assert main(["--quick", "--dir", str(tmp_path), "--json", str(target)]) == 0
    (found,) = json.loads(target.read_text())["measures"]
    assert (found["name"], found["goal"]) == ("split-to-child", "≤ 30")
    assert found["ratio"] > 0
