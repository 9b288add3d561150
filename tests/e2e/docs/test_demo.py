"""`make demo` holds what it promises, on a small load."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_demo_loses_nothing_over_splits_merges_and_a_kill() -> None:
    command = [sys.executable, "-m", "scripts.demo", "--messages", "10000", "--scale-seconds", "40"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=700)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "10,000 orders of 200 customers, 0 errors" in done.stdout
    assert "10,000 rows, customers that differ 0" in done.stdout or shutil.which("java") is None
    assert "changes by the topic itself" in done.stdout
    assert "All held." in done.stdout
