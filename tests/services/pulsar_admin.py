"""The real `pulsar-admin`: jars copied once by Maven, commands run in one long-lived JVM (a start takes seconds)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.services import cache, jvm

_BUILD = cache.BUILDS / "pulsar_admin"
_PROGRAM = "AdminDriver"
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
    """The directory of the compiled driver."""
    return jvm.obtain("pulsar-admin", _BUILD, _PROGRAM)


class PulsarAdmin:
    """`admin("topics", "list", "public/default")` runs the tool with these arguments."""

    def __init__(self, http_url: str, log_path: Path, **settings: str) -> None:
        """`settings` are further lines of its client.conf."""
        given = [f"{name}={value}" for name, value in settings.items()]
        self._jvm = jvm.Jvm(obtain(), _PROGRAM, [f"webServiceUrl={http_url}", *given], log_path, _WITHIN_S)
        self.tried: set[tuple[str, str]] = set()  # (noun, verb)

    def __call__(self, *words: str) -> Outcome:
        """Run it; it may succeed or fail."""
        self.tried.add((words[0], words[1]))
        code, out, err = self._jvm.ask(words)
        return Outcome(words, int(code), out, err)

    def ok(self, *words: str) -> Outcome:
        """Run it; it must succeed."""
        done = self(*words)
        assert done.code == 0, f"pulsar-admin {' '.join(words)}: {done.out}{done.err}"
        return done

    def refused(self, *words: str) -> str:
        """Run it; it must fail and print a reason."""
        done = self(*words)
        assert done.code != 0, f"pulsar-admin {' '.join(words)} succeeded: {done.out}"
        return done.out + done.err

    def verbs(self, noun: str) -> set[str]:
        """All commands, from the tool's help."""
        text = self.ok(noun, "-h").out
        return set(re.findall(r"^  ([a-z][a-z-]+)(?:\s|$)", text.partition("Commands:")[2], re.MULTILINE))

    def close(self) -> None:
        self._jvm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
