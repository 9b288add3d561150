"""Runs the test suite in parallel; up to three tests that fail there are run once more, alone. Knows pytest, no test.

Thousands of tests with real processes share two cores in `make test`. A test that fails in that crowd and passes by
itself is **unsteady**: it is named at the end, where nobody can overlook it, and is to be mended, but it does not hold
up the change beside it. Whatever fails twice, or a run with more than `SECOND_CHANCES_MAX` failures, is a failure.

    python -m scripts.run_tests [pytest's arguments]
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SECOND_CHANCES_MAX = 3
TESTS_FAILED = 1  # pytest's exit code; others say that it could not even run

_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (\S+::[^\s\[]+(?:\[.*?\](?= - |$))?)", re.MULTILINE)


def failed_tests(output: str) -> list[str]:
    """The node ids in pytest's short summary, each once."""
    return list(dict.fromkeys(_SUMMARY.findall(output)))


def has_second_chance(exit_code: int, failed: Sequence[str]) -> bool:
    return exit_code == TESTS_FAILED and 0 < len(failed) <= SECOND_CHANCES_MAX


def _pytest(arguments: Sequence[str]) -> tuple[int, str]:
    """Its exit code and what it printed, which is also passed on as it comes."""
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
    sys.stdout.write(f"\n{len(failed)} failed among all others; once more, alone:\n")
    exit_code, _ = _pytest(["-q", "-n", "0", *failed])
    if exit_code == 0:
        sys.stdout.write("".join(f"UNSTEADY, to be mended: {test}\n" for test in failed))
    return exit_code


if __name__ == "__main__":
    assert Path("pyproject.toml").exists(), "run it from the root of the checkout"
    sys.exit(main(sys.argv[1:]))
