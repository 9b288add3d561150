"""Apache Pulsar's load generator, pulsar-perf: jars copied once by Maven, one JVM for each run.

Its jar asks for a whole broker, which only commands that are not used here need: the broker is left out.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.services import cache, jvm

_BUILD = cache.BUILDS / "pulsar_perf"
_PROGRAM = "PerfDriver"
_WITHIN_S = 120.0


def obtain() -> Path:
    """The directory of the compiled driver."""
    return jvm.obtain("pulsar-perf", _BUILD, _PROGRAM)


def version() -> str:
    found = re.search(r"pulsar-testclient</artifactId>\s*<version>([^<]+)<", (_BUILD / "pom.xml").read_text())
    assert found is not None
    return found[1]


class PulsarPerf:
    """`perf("produce", "-m", "2000", topic)` runs one command to its end."""

    def __init__(self, service_url: str) -> None:
        self._classes, self._url = obtain(), service_url

    def __call__(self, command: str, *words: str) -> None:
        process = self.start(command, *words)
        out, err = process.communicate(timeout=_WITHIN_S)
        assert process.returncode == 0, f"pulsar-perf {command} {words}: {out[-1000:]}{err[-3000:]}"

    def start(self, command: str, *words: str) -> subprocess.Popen[str]:
        path = f"{self._classes}:{(self._classes / 'classpath').read_text()}"
        return subprocess.Popen(
            ["java", *jvm.FLAGS, "-cp", path, _PROGRAM, command, "-u", self._url, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
