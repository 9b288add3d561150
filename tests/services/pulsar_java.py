"""Features of Pulsar's classic Java client (from the jars of the V5 client), one per line, in one JVM."""

from __future__ import annotations

import re
from pathlib import Path

from tests.services import cache, jvm

_BUILD = cache.BUILDS / "pulsar_v5"
_PROGRAM = "JavaFeatures"
_WITHIN_S = 120.0


def obtain() -> Path:
    return jvm.obtain("pulsar-v5", _BUILD, _PROGRAM)


def version() -> str:
    found = re.search(r"pulsar-client-v5</artifactId>\s*<version>([^<]+)<", (_BUILD / "pom.xml").read_text())
    assert found is not None
    return found[1]


class JavaClient:
    """`java("nack", topic)` runs one feature and returns what the driver answers."""

    def __init__(self, service_url: str, log_path: Path) -> None:
        self._jvm = jvm.Jvm(obtain(), _PROGRAM, [service_url], log_path, _WITHIN_S)

    def __call__(self, *words: str) -> list[str]:
        state, *found = self._jvm.ask(words)
        assert state == "ok", f"{words}: {found}"
        return found

    def close(self) -> None:
        self._jvm.close()
