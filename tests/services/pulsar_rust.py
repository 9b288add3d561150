"""The Rust client of Apache Pulsar: a small program of ours on its crate, built once; each feature is one process.

The build takes minutes, so only soaks use it. protoc, which the crate's build calls, is that of grpcio-tools.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.services import cache

_BUILD = cache.BUILDS / "pulsar_rust"
_WITHIN_S = 60.0


def obtain() -> Path:
    """The program."""

    def build(into: Path) -> None:
        protoc = into / "protoc"
        protoc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
        protoc.chmod(0o755)
        source = shutil.copytree(_BUILD, into / "source")  # cargo writes a lock file beside it
        command = ["env", f"PROTOC={protoc}", "cargo", "build", "--release", "--quiet"]
        cache.run(command, cwd=source, within_s=1_200)
        (source / "target/release/pulsar-rust").rename(into / "pulsar-rust")
        shutil.rmtree(source)

    cache.run(["cargo", "--version"], within_s=30)  # says that it is not installed
    return cache.once("pulsar-rust", _BUILD / "main.rs", build, within_s=1_300) / "pulsar-rust"


def version() -> str:
    found = re.search(r'^pulsar = \{ version = "=([^"]+)"', (_BUILD / "Cargo.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


class RustClient:
    """`rust("nack", topic)` runs one feature of the program and returns its result."""

    def __init__(self, service_url: str) -> None:
        self._program, self._url = obtain(), service_url

    def __call__(self, feature: str, topic: str) -> dict[str, Any]:
        done = subprocess.run(
            [self._program, feature, self._url, topic],
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            env=os.environ,
            check=False,
        )
        assert done.returncode == 0, f"{feature}: {done.stderr[-3000:]}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found
