"""All benchmarks: `python -m benchmarks [--quick] [--only NAME …] [--dir DIR] [--json FILE]`.

Prints one table and writes JSON with commit, machine and settings to bench-results/. Figures are ratios within one run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import blocking_send, catchup, cold_start, many_topics, memory, publish, reopen, stock
from benchmarks.machine import ROOT, facts
from benchmarks.measure import Outcome, Run, Scene, short, table

MEASURES: dict[str, Run] = {
    "publish-large": publish.large,
    "publish-small": publish.small,
    "stock-cpu": stock.run,
    "many-topics": many_topics.run,
    "catch-up": catchup.run,
    "blocking-send": blocking_send.run,
    "reopen": reopen.run,
    "behind-memory": memory.run,
    "cold-start": cold_start.run,
}

MICROS = ("micro_codec", "micro_append", "micro_cursor", "micro_metrics")
"""Parts on their own: each prints its own table, or JSON."""
NAMES = (*MEASURES, *MICROS)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def micro(name: str, quick: bool) -> Any:
    """Run one part's benchmark; its rows."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else [])]
    found = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    rows = found.get("rows", found.get(name, found))
    say(f"\n{name}")
    for row in rows if isinstance(rows, list) else [rows]:
        say(
            "  "
            + "  ".join(f"{key} {short(value) if isinstance(value, float) else value}" for key, value in row.items())
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ratios against floors of the same run.")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that everything runs, not how fast")
    parser.add_argument("--only", action="append", choices=[*MEASURES, *MICROS], metavar="NAME", help=", ".join(NAMES))
    parser.add_argument(
        "--dir", type=Path, help="a directory on the disk to measure (default: the temporary directory)"
    )
    parser.add_argument("--json", type=Path, help="where the JSON goes (default: bench-results/TIME-COMMIT.json)")
    options = parser.parse_args(arguments)
    known = facts()
    say(f"commit {known['commit']}, {known['machine']}")
    outcomes: list[Outcome] = []
    chosen = options.only or NAMES
    for name in [name for name in chosen if name in MEASURES]:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="anabranch-bench-", dir=options.dir) as directory:
            found = MEASURES[name](Scene(Path(directory), options.quick))
        outcomes += found
        for one in found:
            say(f"  {one.title}: {one.ratio:.3g} {one.verdict} ({time.monotonic() - start:.1f} s)")
    say("")
    if outcomes:
        for line in table(outcomes):
            say(line)
    micros = {name: micro(name, options.quick) for name in chosen if name in MICROS}
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = options.json or Path("bench-results") / f"{stamp}-{known['commit']}.json"
    measures = [one.record() for one in outcomes]
    record: dict[str, Any] = {**known, "quick": options.quick, "measures": measures, "micro": micros}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    say(f"\nJSON in {target}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
