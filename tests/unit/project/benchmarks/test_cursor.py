"""The cursor benchmark runs, and an ack among many holes costs about what it costs among none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_it_runs_and_the_ratio_is_small() -> None:
    script = ROOT / "benchmarks" / "micro/cursor.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--json"], capture_output=True, text=True, check=True, timeout=120
    )
    result = json.loads(done.stdout)
    assert result["many"]["holes"] == 100_000
    assert result["ack_ratio"] < 6
