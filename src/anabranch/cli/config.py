"""`anabranch config`: settings for people."""

from __future__ import annotations

import click

from anabranch.cli.lazy_group import SuggestingGroup


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Show settings."""


@config.command()
@click.option("--markdown", is_flag=True, help="As a page for the documentation instead of a TOML file.")
def sample(markdown: bool) -> int:
    """Print every setting with its default and one line of help, as a file for --config."""
    from anabranch.node.settings.node import NodeSettings
    from anabranch.runtime.settings import reference
    from anabranch.runtime.settings import sample as sample_text

    click.echo(reference(NodeSettings) if markdown else sample_text(NodeSettings), nl=False)
    return 0
