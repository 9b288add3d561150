"""One run of several measures: a table for people, JSON with commit, machine and every round for programs.

A failed measure is reported and its logs are kept beside the JSON; the other measures still run. `benchmarks` (the
broker), `benchmarks.metadata` (its stores) and the other programs of this package call `run`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support.machine import ROOT, facts
from benchmarks.support.measure import Failed, Outcome, Run, Scene, short, table


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def keep(logs: Sequence[Path], folder: Path) -> Path:
    """Copies of the logs, made before the directory of the measure goes."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in logs:
        if log.exists():
            shutil.copyfile(log, folder / log.name)
    return folder


def micro(name: str, quick: bool) -> Any:
    """Run one part's benchmark; its rows."""
    command = [
        sys.executable,
        "-m",
        f"benchmarks.{name.replace('micro_', 'micro.')}",
        "--json",
        *(["--quick"] if quick else []),
    ]
    found = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    rows = found.get("rows", found.get(name, found))
    say(f"\n{name}")
    for row in rows if isinstance(rows, list) else [rows]:
        say(
            "  "
            + "  ".join(f"{key} {short(value) if isinstance(value, float) else value}" for key, value in row.items())
        )
    return rows


def run(
    program: str,
    measures: Mapping[str, Run],
    micros: Sequence[str] = (),
    arguments: list[str] | None = None,
    *,
    mark: str = "",
    settings: str | None = None,
) -> int:
    """`mark` stands at the end of the JSON file's name, `settings` in it."""
    names = (*measures, *micros)
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description="Ratios against floors of the same run.")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that everything runs, not how fast")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--dir", type=Path, help="a directory on the disk to measure (default: the temporary directory)"
    )
    parser.add_argument("--json", type=Path, help="where the JSON goes (default: bench-results/TIME-COMMIT.json)")
    options = parser.parse_args(arguments)
    known = facts() | ({} if settings is None else {"settings": settings})
    say(f"commit {known['commit']}, {known['machine']}, load {known['load_before'][0]}")
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = options.json or Path("bench-results") / f"{stamp}-{known['commit']}{mark}.json"
    outcomes: list[Outcome] = []
    failed: dict[str, str] = {}
    chosen = options.only or names
    for name in [name for name in chosen if name in measures]:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="anabranch-bench-", dir=options.dir) as directory:
            try:
                found = measures[name](Scene(Path(directory), options.quick))
            except Failed as error:
                failed[name] = str(error)
                kept = keep(error.logs, target.with_suffix(f".{name}-logs"))
                say(f"  {name} FAILED after {time.monotonic() - start:.1f} s: {error}\n  logs in {kept}")
                continue
        outcomes += found
        for one in found:
            say(f"  {one.title}: {one.ratio:.3g} {one.verdict} ({time.monotonic() - start:.1f} s)")
    say("")
    if outcomes:
        for line in table(outcomes):
            say(line)
    micro_rows = {name: micro(name, options.quick) for name in chosen if name in micros}
    record: dict[str, Any] = {
        **known,
        "load_after": [round(value, 2) for value in os.getloadavg()],
        "quick": options.quick,
        "measures": [one.record() for one in outcomes],
        "failed": failed,
        "micro": micro_rows,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    say(f"\nload {record['load_after'][0]} at the end; JSON in {target}")
    return 1 if failed else 0
