"""A click group whose subcommands are imported when they are used, not when the program starts."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

import click

Place = tuple[str, str, str]  # module, attribute, one line of help


class LazyGroup(click.Group):
    def __init__(
        self, name: str, places: Mapping[str, Place], help: str, params: Sequence[click.Parameter] = ()
    ) -> None:
        super().__init__(name, help=help, params=list(params), context_settings={"help_option_names": ["-h", "--help"]})
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._places:
            return None
        module, attribute, _ = self._places[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}.{attribute} is not a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, so that `--help` imports no subcommand either."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self._places.items()])
