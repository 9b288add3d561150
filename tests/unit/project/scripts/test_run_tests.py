"""`make test` repeats a few failed tests once; a test that fails twice or hangs fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.run_tests import SECOND_CHANCES_MAX, failed_tests, has_second_chance

ROOT = Path(__file__).resolve().parents[4]


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
def test_only_a_few_failures_of_a_complete_run_are_repeated(exit_code: int, failures: int, expected: bool) -> None:
    assert has_second_chance(exit_code, [f"tests/a.py::t{number}" for number in range(failures)]) is expected


@pytest.mark.parametrize(("body", "expected"), [("steady", 0), ("unsteady", 0), ("broken", 1)])
def test_run_fails_if_a_test_fails_twice(tmp_path: Path, body: str, expected: int) -> None:
    seen = tmp_path / "seen"
    bodies = {
        "steady": "pass",
        "unsteady": f"p = pathlib.Path({str(seen)!r}); first = not p.exists(); p.touch(); assert not first",
        "broken": "assert False",
    }
    case = tmp_path / "test_case.py"
    case.write_text(f"import pathlib\ndef test_it():\n    {bodies[body]}\n")
    command = [sys.executable, "-m", "scripts.run_tests", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(case)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "UNSTEADY" in done.stdout) == (expected, body == "unsteady"), done.stdout


HUNG = {
    "loop": "async def test_loop(): await asyncio.Event().wait()",
    "process": "def test_process(): subprocess.run(['sleep', '1000'])",
    "fixture": "def test_fixture(never): pass",
}


def test_hanging_tests_fail_and_later_tests_run(tmp_path: Path) -> None:
    case = tmp_path / "test_case.py"
    fixture = "@pytest.fixture\ndef never(): threading.Event().wait()"
    tests = [f"{text}\ndef test_after_{name}(): pass" for name, text in HUNG.items()]
    case.write_text("\n".join(["import asyncio, pytest, subprocess, threading", fixture, *tests, ""]))
    command = [sys.executable, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile", "-p", "tests.watchdog"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--asyncio-mode", "auto", "--rootdir", str(tmp_path), str(case)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "ANABRANCH_TEST_SECONDS_MAX": "2"},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 3 passed, 1 error" in done.stdout
    assert sorted(test.rpartition("::test_")[2] for test in failed_tests(done.stdout)) == sorted(HUNG)
    assert "in test_process" in done.stderr, "the stack shows where it hung"
