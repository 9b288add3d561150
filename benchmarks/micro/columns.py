"""A run of batches to columns, 2 MB at a time as Spark's source does it: CPU per message of the three ways there are.

    python -m benchmarks.micro.columns [--quick] [--json]

Expected before measuring: one record after the other in Python 1 µs and more (a dozen calls and slices), by whole
columns 0.2 to 0.3 µs (each byte looked at once, each field gathered once, two copies), in C 0.05 µs. Records with
properties are not of the usual form: by columns they cost what they cost one after the other, and the look at them.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow  # noqa: F401  decoding by columns requires that Arrow is loaded

from anabranch.protocol import codec
from anabranch.protocol.codec import Body, core, python

RUN_BYTES = 2 << 20
WAYS: dict[str, Callable[[Sequence[Body]], Any]] = {"one by one": python.decode, "by columns": core.PYTHON.decode}
if core.NATIVE is not None:
    WAYS["in C"] = core.NATIVE.decode


def runs(rows: int, value_bytes: Callable[[], int], **more: Any) -> list[list[Body]]:
    """The bodies of some keyed rows, in runs."""
    values = [str(row).ljust(value_bytes(), ".").encode() for row in range(rows)]
    keys = [str(row % 10_000).rjust(16, "k") for row in range(rows)]
    packed = codec.write(values, keys, producer_name="p", publish_time=0, first=300_000, **more)[0]
    made: list[list[Body]] = []
    size = RUN_BYTES
    for one in packed:
        if size >= RUN_BYTES:
            made.append([])
            size = 0
        made[-1].append(Body(one.body, len(one.rows)))
        size += len(one.body)
    return made


def cases(rows: int) -> dict[str, list[list[Body]]]:
    chance = random.Random(1)
    times, pairs = [1_700_000_000_000 + row for row in range(rows)], [{"trace": str(row)} for row in range(rows)]
    return {
        "100 B": runs(rows, lambda: 100),
        "20 to 180 B": runs(rows, lambda: chance.randrange(20, 180)),
        "100 B, event time": runs(rows, lambda: 100, event_times=times),
        "1 KB": runs(rows, lambda: 1_000),
        "100 B, a property": runs(rows, lambda: 100, properties=pairs),
    }


def micros(way: Callable[[Sequence[Body]], Any], given: list[list[Body]], rounds: int) -> float:
    """CPU per message, of the best round."""
    best, rows = float("inf"), sum(count for bodies in given for _, count in bodies)
    for _ in range(rounds):
        began = time.process_time()
        for bodies in given:
            way(bodies)
        best = min(best, time.process_time() - began)
    return best / rows * 1e6


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description="What a message costs on its way from a batch to columns.")
    options.add_argument("--quick", action="store_true", help="few rows: shows that it runs, not how fast")
    options.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    chosen = options.parse_args(arguments)
    rows, rounds = (1_000, 1) if chosen.quick else (100_000, 7)
    found: list[dict[str, Any]] = [
        {"name": name, **{way: micros(call, given, rounds) for way, call in WAYS.items()}}
        for name, given in cases(rows).items()
    ]
    if chosen.json:
        record = {"benchmark": "micro_columns", "python": platform.python_version(), "quick": chosen.quick}
        sys.stdout.write(json.dumps({**record, "rows": found}) + "\n")
        return 0
    sys.stdout.write(f"{'µs':20}" + "".join(f"{way:>12}" for way in WAYS) + "   one by one / by columns\n")
    for row in found:
        ratio = row["one by one"] / row["by columns"]
        sys.stdout.write(f"{row['name']:20}" + "".join(f"{row[way]:12.3f}" for way in WAYS) + f"{ratio:10.1f}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
