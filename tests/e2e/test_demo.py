"""`make demo` holds what it promises, on a small load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_loses_nothing_over_a_kill() -> None:
    command = [sys.executable, "-m", "scripts.demo", "--messages", "20000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "20,000 of 20,000 sent" in done.stdout
    assert "All held." in done.stdout
