"""`anabranch admin scalable-topics migrate-to-scalable`: check, wait for old clients, migrate."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.verb import Values, Verb, filled, option
from anabranch.cli.output.tables import table
from anabranch.cli.param_types import Time
from anabranch.runtime.clock import SystemClock

_PATH = "/admin/v2/scalable/{scalable_topic}/migrate"
_POLL_S = 1.0
_OLD_CLIENTS = "v4-clients"


def _types(values: Values) -> list[str]:
    found = []
    for text in values["subscription_types"]:
        name, equals, kind = text.rpartition("=")
        if not equals or kind not in ("stream", "queue"):
            raise click.UsageError(f"--subscription-type is like SUBSCRIPTION=queue or =stream, not {text!r}")
        found.append(f"{name}:{kind}")
    return found


def _migrate(admin: AdminClient, values: Values) -> Any:
    path = filled(_PATH, values)
    query = {"force": values["force"], "subscriptionType": _types(values)}
    if values["check"]:
        return admin.call("POST", path, query={**query, "check": True}).value
    if values["wait"]:
        asyncio.run(_wait_for_clients(admin, path, query, values["wait"]))
    admin.call("POST", path, query=query)
    return None


async def _wait_for_clients(admin: AdminClient, path: str, query: dict[str, Any], seconds: int) -> None:
    """Polls before the migration begins, so that waiting keeps no client out. Says who is left when that changes."""
    clock, shown = SystemClock(), ""
    until = clock.monotonic() + seconds
    while True:
        report = admin.call("POST", path, query={**query, "check": True}).value
        if all(one["kind"] != _OLD_CLIENTS for one in report["blockers"]) or clock.monotonic() >= until:
            return
        left = "; ".join(sorted({_client(one) for one in report["clients"]}))
        if left != shown:
            click.echo(f"waiting for {left}", err=True)
            shown = left
        await clock.sleep(_POLL_S)


def _client(one: dict[str, Any]) -> str:
    of = f" of {one['subscription']}" if one["subscription"] else ""
    return f"{one['role']} {one['name']}{of} at {one['address']} ({one['version']})"


def migration_view(report: dict[str, Any] | None) -> str:
    """What `--check` shows; without a report the topic was migrated."""
    if report is None:
        return "migrated"
    lines = [f"{report['topic']} becomes {report['scalableTopic']} with {report['segments']} segments"]
    if report["subscriptions"]:
        rows = [(name, kind.lower()) for name, kind in sorted(report["subscriptions"].items())]
        lines.append(table(("subscription", "type"), rows))
    found = report["partitionHash"]
    if found:
        lines.append(f"keys are routed by {found['hash'] or 'an unknown hash'} ({found['verdict']})")
    lines += [f"blocked: {one['reason']}" for one in report["blockers"]] or ["nothing blocks it"]
    return "\n".join(lines)


def _verb(name: str) -> Verb:
    return Verb(
        name=name,
        help="Turn a regular topic into a scalable one, in place: no copy, no downtime, all subscriptions kept.",
        method="POST",
        path=_PATH,
        options=(
            option("--check", is_flag=True, help="Only show what would happen and what blocks it."),
            option("--wait", type=Time(), metavar="TIME", help="Wait so long for old clients to leave: 10m, 1h."),
            option("--force", is_flag=True, help="Close old clients instead of refusing (needs topic admin)."),
            option(
                "--subscription-type",
                "subscription_types",
                multiple=True,
                metavar="SUB=TYPE",
                help="Type of a subscription, stream or queue, if not that of its consumers; several times.",
            ),
        ),
        run=_migrate,
        show=migration_view,
        example="orders --wait 10m",
    )


MIGRATION_VERBS = (_verb("migrate-to-scalable"), _verb("migrate"))
