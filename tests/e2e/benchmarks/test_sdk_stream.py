"""The stream benchmark runs, tiny: nothing lost, doubled or out of order while it splits, and its goal is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sdk_stream import main
from benchmarks.support.machine import ROOT


@pytest.mark.slow
def test_runs(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    assert main(["--quick", "--dir", str(tmp_path), "--json", str(target)]) == 0
    found, *parts = json.loads(target.read_text())["measures"]
    names = ["split-to-child-writes", "split-to-child-first", "split-to-child-last"]
    assert [one["name"] for one in parts] == names and parts[0]["floor"]["median"] > 0
    assert (found["name"], found["goal"]) == ("split-to-child", "≤ 30")
    assert found["ratio"] > 0


@pytest.mark.slow
def test_the_trace_names_every_step() -> None:
    command = [sys.executable, "-m", "benchmarks.sdk.split_trace", "--splits", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    for step in ("save plan: done", "Create: done", "Seal: done", "save commit: done", "push assignment", "FLOW"):
        assert f"broker: {step}" in ran.stdout
    assert "client: first message of a child" in ran.stdout
