"""Output of the demo: rows, one line of progress, colours on a terminal."""

from __future__ import annotations

import sys


class Show:
    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()

    def title(self, name: str, text: str) -> None:
        self.say(f"{self._colour('1', name)}: {text}")

    def say(self, text: str) -> None:
        self.progress("")
        print(text, flush=True)

    def row(self, label: str, text: str) -> None:
        self.say(f"  {label:<34}{text}")

    def progress(self, text: str) -> None:
        """One line that is overwritten; no output unless stdout is a terminal."""
        if self._is_terminal:
            print(f"\r\033[K  {text}" if text else "\r\033[K", end="", flush=True)

    def count(self, bad: int) -> str:
        return self.green("0") if bad == 0 else self.red(f"{bad:,}")

    def green(self, text: str) -> str:
        return self._colour("32", text)

    def red(self, text: str) -> str:
        return self._colour("31;1", text)

    def _colour(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._is_terminal else text
