"""Click groups: one that suggests the nearest command for an unknown one, and one that imports its subcommands when
they are used, not when the program starts.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence

import click

Place = tuple[str, str, str]  # module, attribute, one line of help


SUGGESTIONS_MAX = 3


def suggestions(given: str, names: Iterable[str]) -> list[str]:
    """Commands that an unknown one may mean. A command that has the given text as the start of one of its words comes
    first: `split` means `split-segment`, although `list` has more of its letters."""
    known = list(names)
    found = [name for name in known if any(word.startswith(given) for word in name.split("-"))] if given else []
    if not found:
        from difflib import get_close_matches  # only when a command is wrong: its import takes a while

        found = get_close_matches(given, known)
    return sorted(found)[:SUGGESTIONS_MAX]


class SuggestingGroup(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            found = " or ".join(f"'{one}'" for one in suggestions(name, self.list_commands(ctx)))
            ctx.fail(f"No such command '{name}'." + (f" Did you mean {found}?" if found else ""))
        return super().resolve_command(ctx, args)


class LazyGroup(SuggestingGroup):
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
