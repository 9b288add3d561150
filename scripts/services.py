"""`make services`: which real servers and foreign tools the tests can have on this machine, and how long they take.

`python -m scripts.services NAME …` looks at these alone; so is got what only benchmarks compare with (`kafka`,
`spark-kafka`). Servers are tried, tools are only got. Knows no test."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

from tests.services import (
    KINDS,
    ServerFailed,
    Unavailable,
    bookkeeper,
    chromium,
    kafka,
    pulsar_admin,
    pulsar_broker,
    pulsar_go,
    pulsar_java,
    pulsar_perf,
    pulsar_rust,
    pulsar_v4,
    pulsar_v5,
    spark_kafka,
)
from tests.services.available import REQUIRE, is_required

SERVERS: dict[str, ModuleType] = {**KINDS, "bookkeeper": bookkeeper, "pulsar": pulsar_broker}
TOOLS: dict[str, ModuleType] = {
    "pulsar-admin": pulsar_admin,
    "pulsar-go": pulsar_go,
    "pulsar-java": pulsar_java,
    "pulsar-perf": pulsar_perf,
    "pulsar-v4": pulsar_v4,
    "pulsar-v5": pulsar_v5,
    "chromium": chromium,
}
PEERS: dict[str, ModuleType] = {"kafka": kafka}
PEER_TOOLS: dict[str, ModuleType] = {"spark-kafka": spark_kafka, "pulsar-rust": pulsar_rust}
"""Only when it is named: what benchmarks compare with (450 MB are downloaded), what soaks run (a long build)."""
WIDTH = max(map(len, TOOLS))


def look(kind: str, service: ModuleType) -> tuple[str, bool]:
    """One line of the table, and whether the server is there."""
    began = time.monotonic()
    try:
        service.obtain()
        obtained_s = time.monotonic() - began
        with tempfile.TemporaryDirectory(prefix="anabranch-services-") as folder, service.cluster(Path(folder)) as one:
            ready_s = one.nodes[0].ready_in_s
        what = f"{service.version():<7} had in {obtained_s:6.1f} s, ready in {ready_s:.1f} s, from {service.ORIGIN}"
        return f"{kind:<{WIDTH}} yes   {what}", True
    except (Unavailable, ServerFailed) as error:
        return f"{kind:<{WIDTH}} NO    {error}", False


def look_tool(name: str, tool: ModuleType) -> tuple[str, bool]:
    """The same for what only runs when a test wants it."""
    began = time.monotonic()
    try:
        tool.obtain()
    except Unavailable as error:
        return f"{name:<{WIDTH}} NO    {error}", False
    return f"{name:<{WIDTH}} yes   had in {time.monotonic() - began:6.1f} s", True


def main(arguments: list[str] | None = None) -> int:
    looks: dict[str, Callable[[], tuple[str, bool]]] = {
        name: partial(look, name, one) for name, one in (SERVERS | PEERS).items()
    }
    looks |= {name: partial(look_tool, name, one) for name, one in (TOOLS | PEER_TOOLS).items()}
    parser = argparse.ArgumentParser(prog="python -m scripts.services", description="Get and try what tests run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(looks)}; default: what tests need")
    names = parser.parse_args(arguments).names or [*SERVERS, *TOOLS]
    unknown = [name for name in names if name not in looks]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    missing = 0
    for name in names:
        line, is_there = looks[name]()
        print(line, flush=True)
        missing += not is_there
    if missing:
        print(f"{missing} missing: their tests {'fail' if is_required() else 'are skipped'} ({REQUIRE})")
    return 1 if missing and is_required() else 0


if __name__ == "__main__":
    sys.exit(main())
