"""What the machine itself does meanwhile: a bare process that sleeps a little, writes a block and syncs it, again and
again. How late it wakes up is the scheduler's, how long a sync takes is the disk's; nothing of ours is in it.

`with Probe(directory) as probe: …`, then `probe.rows`: when, how late, how long, in ms. Fifty syncs a second do not
disturb what is measured beside it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

EVERY_SECONDS = 0.02
BLOCK = bytes(4096)


@dataclass(frozen=True, slots=True)
class Look:
    at: float  # of `time.perf_counter`, when the sync was over
    late_ms: float
    sync_ms: float


class Probe:
    def __init__(self, directory: Path) -> None:
        self.rows: list[Look] = []
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Probe:
        command = [sys.executable, "-m", "benchmarks.probe", str(self._directory / "probe")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        told, _ = self._process.communicate("", timeout=10)
        for line in told.splitlines():
            at, late_ms, sync_ms = map(float, line.split())
            self.rows.append(Look(at, late_ms, sync_ms))

    def worst(self, since: float, until: float) -> tuple[float, float]:
        """Latest wake-up and longest sync in that time, in ms."""
        some = [one for one in self.rows if since <= one.at <= until + EVERY_SECONDS]
        return max((one.late_ms for one in some), default=0.0), max((one.sync_ms for one in some), default=0.0)


def main() -> None:
    """Until standard input ends."""
    file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600)
    rows: list[tuple[float, float, float]] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        began = time.perf_counter()
        time.sleep(EVERY_SECONDS)
        woke = time.perf_counter()
        os.pwrite(file, BLOCK, 0)
        os.fdatasync(file)
        done = time.perf_counter()
        rows.append((done, (woke - began - EVERY_SECONDS) * 1000, (done - woke) * 1000))
    sys.stdout.write("".join(f"{at:.6f} {late:.3f} {sync:.3f}\n" for at, late, sync in rows))


if __name__ == "__main__":
    main()
