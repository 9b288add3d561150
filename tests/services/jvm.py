"""A Java driver program in a long-lived JVM: jars copied once by Maven, one class compiled, one line per request."""

from __future__ import annotations

import base64
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services import cache

FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def jars(name: str, build: Path) -> Path:
    """The directory of what `pom.xml` asks for."""
    if shutil.which("java") is None:
        raise cache.Unavailable("java is not installed")

    def copy_jars(into: Path) -> None:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
        cache.run(["mvn", "-q", "-B", "-f", build / "pom.xml", *goal], within_s=280)

    return cache.once(name, build / "pom.xml", copy_jars, within_s=300)


def obtain(name: str, build: Path, program: str) -> Path:
    """The directory of the compiled program; a file beside its classes has the path of the jars."""
    if shutil.which("javac") is None:
        raise cache.Unavailable("no Java compiler is installed")
    libraries, source = jars(name, build), build / f"{program}.java"

    def compile_program(into: Path) -> None:
        cache.run(["javac", "-cp", f"{libraries}/*", "-d", into, source], within_s=110)
        (into / "classpath").write_text(f"{into.parent / libraries.name}/*")

    # Compiled anew for other jars, because `classpath` names them.
    return cache.once(f"{libraries.name}-driver", source, compile_program, within_s=120)


class Jvm:
    """`ask(words)` sends one line and returns the answer."""

    def __init__(self, classes: Path, program: str, arguments: list[str], log_path: Path, within_s: float) -> None:
        self._log = log_path.open("wb")
        self._within_s = within_s
        path = f"{classes}:{(classes / 'classpath').read_text()}"
        self._process = subprocess.Popen(
            ["java", *FLAGS, "-cp", path, program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
        )
        self._rest = b""

    def ask(self, words: tuple[str, ...]) -> list[str]:
        """The words of the answer; those that begin with `=` were base64 and are decoded."""
        self.tell(words)
        return self.answer()

    def tell(self, words: tuple[str, ...]) -> None:
        """Ask without waiting; `answer` gives the answers in turn."""
        assert self._process.stdin is not None
        self._process.stdin.write(b" ".join(base64.b64encode(word.encode()) for word in words) + b"\n")

    def answer(self) -> list[str]:
        return [_decoded(word) for word in self._line().split(" ")]

    def _line(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._within_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the JVM did not answer within {self._within_s} s: {self._told()}\n{self._stopped()}"
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            assert chunk, f"the JVM ended: {self._told()}"
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _stopped(self) -> str:
        """A thread dump. The JVM cannot be used again, because its answers would be matched to the wrong requests."""
        command = ["jstack", str(self._process.pid)]
        try:
            seen = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            return seen.stdout or seen.stderr
        finally:
            self._process.kill()
            self._process.wait()

    def _told(self) -> str:
        return Path(self._log.name).read_text(errors="replace")[-2000:]

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
    return base64.b64decode(word[1:]).decode(errors="replace") if word.startswith("=") else word
