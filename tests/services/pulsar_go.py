"""Apache Pulsar's Go client: a small program of ours on its module, built once; each feature is one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.services import cache

_BUILD = cache.BUILDS / "pulsar_go"
_WITHIN_S = 90.0


def obtain() -> Path:
    """The program."""

    def build(into: Path) -> None:
        cache.run(
            ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", into / "pulsar-go", "."], cwd=_BUILD, within_s=600
        )

    return cache.once("pulsar-go", _BUILD / "main.go", build, within_s=700) / "pulsar-go"


def version() -> str:
    found = re.search(r"pulsar-client-go v(\S+)", (_BUILD / "go.mod").read_text())
    assert found is not None
    return found[1]


class GoClient:
    """`go("nack", topic)` runs one feature of the program and returns its result."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._program = obtain()
        self._url = url
        self._environment = {**os.environ, **({"PULSAR_TOKEN": token} if token is not None else {})}

    def __call__(self, feature: str, topic: str, *arguments: str) -> dict[str, Any]:
        process = self.start(feature, topic, *arguments)
        out, err = process.communicate(timeout=_WITHIN_S)
        assert process.returncode == 0, f"{feature} {arguments}: {err[-3000:]}"
        found: dict[str, Any] = json.loads(out)
        return found

    def start(self, feature: str, topic: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._program, feature, self._url, topic, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            text=True,
        )
