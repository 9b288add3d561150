"""What a figure is worth depends on where it was taken: commit, machine, versions, settings. Facts only."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def facts() -> dict[str, Any]:
    load = os.getloadavg()
    return {
        "commit": _commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{os.cpu_count()} × {_cpu()}, {_memory_gib()} GiB, Linux {platform.release()}",
        "load_before": [round(value, 2) for value in load],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("protobuf", "crc32c", "pulsar-client")},
        "settings": "defaults of `anabranch standalone` (storage.sync = group)",
    }


def _commit() -> str:
    """Short commit id, marked when the checkout has changes; "unknown" outside a checkout."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("-changed" if _git("status", "--porcelain", "--", "src", "benchmarks") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
