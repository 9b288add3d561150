"""Searches for examples that break a property: `make explore`, or `python -m scripts.explore --minutes 10 [PATH …]`.

`make test` draws the same examples every time. This command runs the property tests again and again with new ones until
the time is over or a test fails. Hypothesis then prints the smallest example that it found: keep it as an `@example` of
the test, in the same change as the fix. The example also stays in
`.hypothesis/examples`, where the next run finds it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from tests.support.exploration import VARIABLE

HINT = "add the falsifying example above to its test as @example(…), then fix the cause"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.explore", description="Search for failing examples.")
    parser.add_argument("--minutes", type=float, default=10.0, help="start no new round after this time (default: 10)")
    parser.add_argument("--workers", default="2", help="processes of pytest-xdist (default: 2)")
    parser.add_argument("paths", nargs="*", default=["tests/property"], help="tests to run (default: tests/property)")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.minutes * 60
    command = [sys.executable, "-m", "pytest", "-q", "-n", options.workers, "-m", "not soak", *options.paths]
    rounds = 0
    while True:
        rounds += 1
        sys.stdout.write(f"explore: round {rounds}\n")
        sys.stdout.flush()
        code = subprocess.run(command, env={**os.environ, VARIABLE: "1"}, check=False).returncode
        if code:
            sys.stdout.write(f"explore: round {rounds} failed; {HINT}\n")
            return code
        if time.monotonic() >= end:
            sys.stdout.write(f"explore: {rounds} rounds with new examples, no failure\n")
            return 0


if __name__ == "__main__":
    sys.exit(main())
