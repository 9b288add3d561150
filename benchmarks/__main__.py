"""All benchmarks: `python -m benchmarks [--quick] [--only NAME …] [--dir DIR] [--json FILE]`.

Prints one table and writes JSON with commit, machine and settings to bench-results/. Figures are ratios within one run.
"""

from __future__ import annotations

from benchmarks.broker import (
    blocking_send,
    catch_up,
    cold_start,
    many_topics,
    memory,
    operating,
    publish,
    reopen,
    stock_client,
)
from benchmarks.support import report
from benchmarks.support.measure import Run

MEASURES: dict[str, Run] = {
    "publish-large": publish.large,
    "publish-small": publish.small,
    "stock-cpu": stock_client.run,
    "many-topics": many_topics.run,
    "catch-up": catch_up.run,
    "blocking-send": blocking_send.run,
    "reopen": reopen.run,
    "behind-memory": memory.run,
    "cold-start": cold_start.run,
    "admin-poller": operating.poller,
    "tls": operating.tls,
    "metrics": operating.metrics,
}

MICROS = ("micro_codec", "micro_columns", "micro_append", "micro_cursor", "micro_metrics", "micro_controller")
"""Parts on their own: each prints its own table, or JSON."""


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks", MEASURES, MICROS, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
