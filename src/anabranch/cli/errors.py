"""Failures on the command line: one line on standard error and an exit code. Expected failures show no traceback."""

from __future__ import annotations

import errno
import signal

from anabranch.cli.output.terminal import say
from anabranch.model.errors import Error
from anabranch.runtime.settings import SettingsError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class Interrupted(Exception):
    """A signal has ended the command. Its text says what was done until then."""

    def __init__(self, signal_number: int, done: str) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}: {done}")
        self.exit_code = 128 + signal_number


def lines_of(error: BaseException) -> list[str] | None:
    """What to print for an expected failure; None for anything that would be a bug."""
    match error:
        case SettingsError(complaints=(only,)):
            return [only]
        case SettingsError(complaints=complaints):
            return [f"{len(complaints)} settings are wrong:", *(f"  {text}" for text in complaints)]
        case Error():
            hint = getattr(error, "hint", "")
            return [" ".join(error.reason.split()) + (f" ({hint})" if hint else "")]
        case OSError(errno=errno.EADDRINUSE):
            return [f"{_words(error)}; is another broker running? Choose other ports with --port and --http-port"]
        case OSError():
            return [_words(error)]
        case _:
            return None


def report_error(error: Exception) -> int:
    """Print an expected failure and return the exit code; raise an unexpected one again, traceback and all."""
    lines = lines_of(error)
    if lines is None:
        raise error
    say("anabranch: " + "\n".join(lines), err=True)
    return EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILED


def _words(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text
