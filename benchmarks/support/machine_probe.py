"""Noise of the machine during a measurement: a bare process that repeatedly sleeps, writes a block and syncs it. Its
wake-up delay shows the load of the scheduler, and the time of a sync the load of the disk. It runs no broker code.

Every second block extends its file, so its sync also waits for the file system's journal, including writes of other
processes; the others overwrite an earlier block. Use `with Probe(directory) as probe: …`, then `probe.rows` and
`probe.worst`. Fifty syncs a second do not disturb the measurement.
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
    grew: bool  # the file


@dataclass(frozen=True, slots=True)
class Worst:
    """In ms."""

    late: float
    sync: float
    growing_sync: float


class Probe:
    def __init__(self, directory: Path) -> None:
        self.rows: list[Look] = []
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Probe:
        command = [sys.executable, "-m", "benchmarks.support.machine_probe", str(self._directory / "probe")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        output, _ = self._process.communicate("", timeout=10)
        for line in output.splitlines():
            at, late_ms, sync_ms, grew = map(float, line.split())
            self.rows.append(Look(at, late_ms, sync_ms, bool(grew)))

    def worst(self, since: float, until: float) -> Worst:
        """The longest delays in that interval."""
        some = [one for one in self.rows if since <= one.at and one.at - one.sync_ms / 1000 <= until]
        return Worst(
            max((one.late_ms for one in some), default=0.0),
            max((one.sync_ms for one in some if not one.grew), default=0.0),
            max((one.sync_ms for one in some if one.grew), default=0.0),
        )


def main() -> None:
    """Until standard input ends."""
    file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600)
    rows: list[tuple[float, float, float, int]] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        began = time.perf_counter()
        time.sleep(EVERY_SECONDS)
        woke = time.perf_counter()
        grows = len(rows) % 2
        os.pwrite(file, BLOCK, len(BLOCK) * len(rows) if grows else 0)
        os.fdatasync(file)
        done = time.perf_counter()
        rows.append((done, (woke - began - EVERY_SECONDS) * 1000, (done - woke) * 1000, grows))
    sys.stdout.write("".join(f"{at:.6f} {late:.3f} {sync:.3f} {grew}\n" for at, late, sync, grew in rows))


if __name__ == "__main__":
    main()
