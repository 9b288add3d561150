"""The Spark benchmark runs, tiny, so that it does not rot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_rig import require_java

pytestmark = pytest.mark.slow


def test_it_runs(tmp_path: Path) -> None:
    require_java()
    command = [sys.executable, "-m", "benchmarks.spark", "--quick", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2])
    assert done.returncode in (0, 1), done.stderr[-3000:]  # goals mean nothing at this size
    assert "fixed cost of a micro-batch" in done.stdout, done.stdout + done.stderr[-3000:]
    assert (tmp_path / "found.json").exists()
