"""`anabranch doctor`: what needs attention, what to do about it, and an exit code for monitoring."""

from __future__ import annotations

import click

from anabranch.cli.admin.verb import connection_options, open_admin, wants_json
from anabranch.cli.diagnose.attention import ClusterFacts, Finding, findings, severity_of
from anabranch.cli.diagnose.cluster_facts import TOPICS_MAX, cluster_facts
from anabranch.cli.output.terminal import json_text, say
from anabranch.runtime.clock import SystemClock


def report(facts: ClusterFacts, found: list[Finding]) -> str:
    brokers = "brokers not visible to this role" if facts.brokers is None else f"{len(facts.brokers)} brokers"
    lines = [f"{brokers}, {len(facts.topics)} topics read, {sum(one.rate_in for one in facts.topics):,.0f} msg/s in"]
    if facts.topics_unread:
        lines.append(f"{facts.topics_unread} further topics were not read (--topics)")
    lines += [f"{one.severity.name:<8}  {one.what}{f': {one.todo}' if one.todo else ''}" for one in found]
    return "\n".join(lines if found else [*lines, "GOOD      nothing needs attention"])


@click.command(params=list(connection_options()))
@click.option(
    "--topics",
    type=click.IntRange(min=0),
    default=TOPICS_MAX,
    metavar="N",
    help=f"Read the stats of at most N topics (default: {TOPICS_MAX}).",
)
@click.pass_context
def doctor(context: click.Context, /, topics: int, **reach: object) -> int:
    """Say what needs attention: brokers, metadata store, topics without readers, operations that do not end.

    \b
    Examples:
      anabranch doctor
      anabranch doctor --json | jq .findings

    The exit code is 0 if nothing needs attention, 1 for warnings (and if no broker answers), 2 for what is critical.
    """
    with open_admin(context) as admin:
        facts = cluster_facts(admin, SystemClock(), topics)
    found = findings(facts)
    if wants_json(context):
        severity = severity_of(found).name.lower()
        say(json_text({"severity": severity, "findings": [one.as_object() for one in found]}, indent=2))
    else:
        say(report(facts, found))
    return int(severity_of(found))
