"""`anabranch top`: the busiest topics, again and again."""

from __future__ import annotations

from collections.abc import Sequence

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.verb import connection_options, open_admin, wants_json
from anabranch.cli.diagnose.attention import TopicFacts
from anabranch.cli.diagnose.cluster_facts import TOPICS_MAX, topic_facts, topic_names
from anabranch.cli.output.repeat import follow, redraw
from anabranch.cli.output.tables import table
from anabranch.cli.output.terminal import json_text, say

SORTS = {
    "in": lambda one: one.rate_in,
    "out": lambda one: one.rate_out,
    "backlog": lambda one: one.backlog,
    "stored": lambda one: one.stored,
}


def busiest(topics: Sequence[TopicFacts], sort: str, count: int) -> list[TopicFacts]:
    return sorted(topics, key=lambda one: (-SORTS[sort](one), one.name))[:count]


def as_object(one: TopicFacts) -> dict[str, object]:
    rates = {"in": round(one.rate_in, 1), "out": round(one.rate_out, 1)}
    return {"topic": one.name, **rates, "backlog": one.backlog, "stored": one.stored}


def as_table(topics: Sequence[TopicFacts]) -> str:
    heads = ("topic", "in msg/s", "out msg/s", "backlog", "stored", "subscriptions")
    rows = [(one.name, one.rate_in, one.rate_out, one.backlog, one.stored, len(one.backlogs)) for one in topics]
    return table(heads, rows) if rows else "no topics"


def look(admin: AdminClient, sort: str, count: int, as_json: bool) -> None:
    names = list(topic_names(admin))[:TOPICS_MAX]
    found = busiest([topic_facts(admin, kind, name) for kind, name in names], sort, count)
    if as_json:
        say(json_text([as_object(one) for one in found]))
    else:
        redraw(as_table(found))


@click.command(params=list(connection_options()))
@click.option("--sort", type=click.Choice(tuple(SORTS)), default="in", help="Which come first (default: in).")
@click.option("-c", "--count", type=click.IntRange(min=1), default=20, metavar="N", help="Topics (default: 20).")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=2.0, metavar="SECONDS", help="How often to look (default: 2)."
)
@click.option("-n", "--looks", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N (0: never).")
@click.pass_context
def top(context: click.Context, /, sort: str, count: int, every: float, looks: int, **reach: object) -> int:
    """Show the busiest topics, of every kind, again and again.

    \b
    Examples:
      anabranch top
      anabranch top --sort backlog --looks 1
    """
    with open_admin(context) as admin:
        follow(lambda: look(admin, sort, count, wants_json(context)), every, looks)
    return 0
