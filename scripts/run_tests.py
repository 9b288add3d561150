"""Runs the test suite in parallel. Up to `SECOND_CHANCES_MAX` tests that fail are run once more, alone.

Thousands of tests with real processes share two cores in `make test`. A test that fails there and passes alone is
*unsteady*. The last lines of the output name and count unsteady tests. An unsteady test is a bug, but it does not fail
the run. A test that fails twice fails the run, and so do more failures than `SECOND_CHANCES_MAX`.

    python -m scripts.run_tests [pytest's arguments]
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SECOND_CHANCES_MAX = 3
TESTS_FAILED = 1  # exit code of pytest when tests failed; higher codes mean that pytest could not run

_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (\S+::[^\s\[]+(?:\[.*?\](?= - |$))?)", re.MULTILINE)


def failed_tests(output: str) -> list[str]:
    """Node ids in pytest's short summary, each once."""
    return list(dict.fromkeys(_SUMMARY.findall(output)))


def has_second_chance(exit_code: int, failed: Sequence[str]) -> bool:
    return exit_code == TESTS_FAILED and 0 < len(failed) <= SECOND_CHANCES_MAX


def _pytest(arguments: Sequence[str]) -> tuple[int, str]:
    """Run pytest, pass its output on line by line, and return its exit code and output."""
    command = [sys.executable, "-m", "pytest", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
    return process.returncode, "".join(lines)


def main(arguments: Sequence[str]) -> int:
    exit_code, output = _pytest(arguments)
    failed = failed_tests(output)
    if not has_second_chance(exit_code, failed):
        return exit_code
    sys.stdout.write(f"\nRunning {len(failed)} failed tests once more, alone:\n")
    exit_code, _ = _pytest(["-q", "-n", "0", *failed])
    if exit_code == 0:
        sys.stdout.write("".join(f"UNSTEADY {test}\n" for test in failed))
        sys.stdout.write(f"UNSTEADY: {len(failed)} tests failed in the full run and passed alone; find the cause\n")
    return exit_code


if __name__ == "__main__":
    assert Path("pyproject.toml").exists(), "run it from the root of the checkout"
    sys.exit(main(sys.argv[1:]))
