"""The real `pulsar-admin`: jars copied once by Maven, its commands run in one JVM that stays (a start takes seconds).

Knows how to get and drive the tool; knows nothing of the broker it talks to but a URL.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.services import cache

_BUILD = cache.BUILDS / "pulsar_admin"
_POM = _BUILD / "pom.xml"
_DRIVER = _BUILD / "AdminDriver.java"
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command printed, and its exit code."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.split()


def obtain() -> Path:
    """The directory of jars, the compiled driver among them."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        raise cache.Unavailable("java is not installed")
    jars = cache.once("pulsar-admin", _POM, _copy_jars, within_s=300)
    return cache.once("pulsar-admin-driver", _DRIVER, lambda into: _compile(jars, into), within_s=120)


def _copy_jars(into: Path) -> None:
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    cache.run(["mvn", "-q", "-B", "-f", _POM, *goal], within_s=280)


def _compile(jars: Path, into: Path) -> None:
    cache.run(["javac", "-cp", f"{jars}/*", "-d", into, _DRIVER], within_s=110)
    (into / "classpath").write_text(f"{into.parent / jars.name}/*")


class PulsarAdmin:
    """`admin("topics", "list", "public/default")`: what the tool does with these words."""

    def __init__(self, http_url: str, log_path: Path, **settings: str) -> None:
        """`settings`: further lines of its client.conf."""
        driver = obtain()
        self._log = log_path.open("wb")
        path = f"{driver}:{(driver / 'classpath').read_text()}"
        given = [f"{name}={value}" for name, value in settings.items()]
        self._process = subprocess.Popen(
            ["java", *_JVM, "-cp", path, "AdminDriver", f"webServiceUrl={http_url}", *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
        )
        self._rest = b""
        self.tried: set[tuple[str, str]] = set()  # (noun, verb)

    def __call__(self, *words: str) -> Outcome:
        """Runs it, whatever comes of it."""
        assert self._process.stdin is not None
        self.tried.add((words[0], words[1]))
        line = b" ".join(base64.b64encode(word.encode()) for word in words)
        self._process.stdin.write(line + b"\n")
        code, out, err = self._line().split(" ")
        return Outcome(words, int(code), _decoded(out), _decoded(err))

    def ok(self, *words: str) -> Outcome:
        """Runs it; it must succeed."""
        done = self(*words)
        assert done.code == 0, f"pulsar-admin {' '.join(words)}: {done.out}{done.err}"
        return done

    def refused(self, *words: str) -> str:
        """Runs it; it must fail, and say why."""
        done = self(*words)
        assert done.code != 0, f"pulsar-admin {' '.join(words)} succeeded: {done.out}"
        return done.out + done.err

    def verbs(self, noun: str) -> set[str]:
        """All that the tool knows, from its own help."""
        text = self.ok(noun, "-h").out
        return set(re.findall(r"^  ([a-z][a-z-]+)(?:\s|$)", text.partition("Commands:")[2], re.MULTILINE))

    def _line(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _WITHIN_S
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"pulsar-admin did not answer within {_WITHIN_S} s"
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            assert chunk, f"the JVM ended: {Path(self._log.name).read_text()[-2000:]}"
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _decoded(word: str) -> str:
    return base64.b64decode(word[1:]).decode(errors="replace")
