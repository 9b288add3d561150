"""`anabranch watch`: a scalable topic, live in the terminal."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import click

from anabranch.admin.paths import scalable_path
from anabranch.cli.admin.verb import connection_options, names_of, open_admin, wants_json
from anabranch.cli.output.repeat import follow, redraw
from anabranch.cli.output.scalable_topic import stats_view
from anabranch.cli.output.terminal import json_text, say
from anabranch.cli.output.topic_changes import changes

STORY_LINES = 12


class Screen:
    """A drawing that is updated in place on a terminal; elsewhere only changes are printed."""

    def __init__(self, topic: str, *, is_terminal: bool, as_json: bool) -> None:
        self._topic = topic
        self._is_terminal = is_terminal
        self._as_json = as_json
        self._before: dict[str, Any] | None = None
        self._history: deque[str] = deque(maxlen=STORY_LINES)

    def look(self, figures: dict[str, Any]) -> None:
        lines = changes(self._before, figures)
        first, self._before = self._before is None, figures
        if self._as_json:
            say(json_text(figures))
        elif self._is_terminal:
            self._history += lines
            story = "\n".join(f"· {line}" for line in self._history)
            redraw(f"{self._topic}\n{stats_view(figures)}\n\n{story}")
        else:
            say(stats_view(figures) if first else "\n".join(lines), nl=first or bool(lines))


@click.command(params=list(connection_options()))
@click.argument("topic", shell_complete=names_of("scalable_topic"))
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=1.0, metavar="SECONDS", help="How often to look (default: 1)."
)
@click.option(
    "-n", "--looks", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N looks (0: never)."
)
@click.pass_context
def watch(context: click.Context, /, topic: str, every: float, looks: int, **reach: object) -> int:
    """Watch the layout of a scalable TOPIC: segments on the hash ring, rates, backlog, what splits and why.

    \b
    Examples:
      anabranch watch orders
      anabranch watch topic://public/default/orders --every 0.5
      anabranch watch orders --json | jq .activeSegments

    Where the output is no terminal, only changes are printed, one line each.
    """
    screen = Screen(topic, is_terminal=sys.stdout.isatty(), as_json=wants_json(context))
    path = f"/admin/v2/scalable/{scalable_path(topic)}/stats"
    with open_admin(context) as admin:
        follow(lambda: screen.look(admin.get(path)), every, looks)
    return 0
