"""Which failures of `make test` get a second chance, and that a test that fails twice fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.run_tests import SECOND_CHANCES_MAX, failed_tests, has_second_chance

ROOT = Path(__file__).resolve().parents[2]


def test_node_ids_are_read_from_the_short_summary() -> None:
    output = """
    FAILED in some log line
=========================== short test summary info ============================
SKIPPED [1] tests/a.py:27: for replaying one seed
FAILED tests/a.py::test_x[a - b] - assert 1 == 2
FAILED tests/a.py::TestY::test_z
ERROR tests/b.py::test_w - RuntimeError: no
FAILED tests/a.py::TestY::test_z
2 failed
"""
    assert failed_tests(output) == ["tests/a.py::test_x[a - b]", "tests/a.py::TestY::test_z", "tests/b.py::test_w"]


@pytest.mark.parametrize(
    ("exit_code", "failures", "expected"),
    [(1, 1, True), (1, SECOND_CHANCES_MAX, True), (1, SECOND_CHANCES_MAX + 1, False), (1, 0, False), (2, 1, False)],
)
def test_a_second_chance_is_for_a_few_failures_of_a_whole_run(exit_code: int, failures: int, expected: bool) -> None:
    assert has_second_chance(exit_code, [f"tests/a.py::t{number}" for number in range(failures)]) is expected


@pytest.mark.parametrize(("body", "expected"), [("steady", 0), ("unsteady", 0), ("broken", 1)])
def test_what_fails_twice_fails(tmp_path: Path, body: str, expected: int) -> None:
    seen = tmp_path / "seen"
    bodies = {
        "steady": "pass",
        "unsteady": f"p = pathlib.Path({str(seen)!r}); first = not p.exists(); p.touch(); assert not first",
        "broken": "assert False",
    }
    case = tmp_path / "test_case.py"
    case.write_text(f"import pathlib\ndef test_it():\n    {bodies[body]}\n")
    command = [sys.executable, "-m", "scripts.run_tests", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(case)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "UNSTEADY" in done.stdout) == (expected, body == "unsteady"), done.stdout
