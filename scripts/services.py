"""`make services`: which real servers and foreign tools the tests can have on this machine, and how long they take.

Servers are tried, the tool is only got. Knows no test."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

from tests.services import KINDS, ServerFailed, Unavailable, pulsar_admin
from tests.services.available import REQUIRE, is_required

WIDTH = len("pulsar-admin")


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


def look_tool() -> tuple[str, bool]:
    """The same for pulsar-admin."""
    began = time.monotonic()
    try:
        pulsar_admin.obtain()
    except Unavailable as error:
        return f"{'pulsar-admin':<{WIDTH}} NO    {error}", False
    return f"{'pulsar-admin':<{WIDTH}} yes   had in {time.monotonic() - began:6.1f} s, from Maven", True


def main() -> int:
    missing = 0
    looks: list[Callable[[], tuple[str, bool]]] = [partial(look, kind, service) for kind, service in KINDS.items()]
    for one in (*looks, look_tool):
        line, is_there = one()
        print(line, flush=True)
        missing += not is_there
    if missing:
        print(f"{missing} missing: their tests {'fail' if is_required() else 'are skipped'} ({REQUIRE})")
    return 1 if missing and is_required() else 0


if __name__ == "__main__":
    sys.exit(main())
