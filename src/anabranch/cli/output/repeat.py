"""Looks that are repeated: `anabranch top`, `watch`, and `--watch` of the verbs that only read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import click

from anabranch.cli.output.terminal import say
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock, SystemClock

_CLEAR = "\x1b[H\x1b[J"


def follow(look: Callable[[], None], every_s: float, looks: int) -> None:
    """`repeat` by the system's clock."""
    asyncio.run(repeat(look, SystemClock(), every_s, looks))


async def repeat(look: Callable[[], None], clock: Clock, every_s: float, looks: int) -> None:
    """Looks at once and then every `every_s`; `looks` times, 0 for ever."""
    seen = 0
    while not looks or seen < looks:
        if seen:
            await clock.sleep(every_s)
        look()
        seen += 1


def redraw(text: str) -> None:
    """In place on a terminal, else below what was printed before."""
    if sys.stdout.isatty():
        click.echo(_CLEAR, nl=False)
    say(text)


class Answers:
    """Answers to one question that is asked again and again: redrawn on a terminal, elsewhere printed when they change.
    A broker that does not answer is asked again; the reason is printed once."""

    def __init__(self, ask: Callable[[], str]) -> None:
        self._ask = ask
        self._last: str | None = None
        self._failure = ""

    def look(self) -> None:
        """Raises errors that another try does not mend."""
        try:
            answer = self._ask()
        except Error as error:
            if not error.retryable:
                raise
            if error.reason != self._failure:
                say(f"no answer: {error.reason}", err=True)
            self._failure = error.reason
            return
        if self._failure or answer != self._last or sys.stdout.isatty():
            redraw(answer)
        self._last, self._failure = answer, ""
