"""The controller's benchmark runs; what does not depend on the machine is checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_it_runs_and_costs_what_it_should() -> None:
    script = ROOT / "benchmarks" / "micro/controller.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--json"], capture_output=True, text=True, check=True, timeout=120
    )
    result = json.loads(done.stdout)
    assert result["join"]["moved"] == 9
    assert result["split-1000"]["record_bytes"] < 130 * result["split-10"]["record_bytes"]
    assert result["join"]["join_ms"] < result["split-1000"]["split_ms"]
