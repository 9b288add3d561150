"""`anabranch wait`: returns when a scalable topic is in a state, for scripts and deployments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import AdminError
from anabranch.admin.paths import timeline_url
from anabranch.cli.admin.verb import connection_options, names_of, open_admin
from anabranch.cli.output.terminal import say
from anabranch.cli.param_types import Time
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock, SystemClock

LOOK_SECONDS = 0.25


class NotInTime(Error):
    """The condition of `anabranch wait` did not become true in time."""

    code = "timeout"
    retryable = True


def missing(tick: Mapping[str, Any], *, subscription: str | None, wanted: int | None, idle: bool) -> str:
    """What is not so yet; empty when all conditions hold."""
    if idle and (running := tick["operation"]) is not None:
        return f"a {str(running['kind']).lower()} runs ({running['phase']})"
    if wanted is not None and tick["active"] != wanted:
        return f"{tick['active']} segments are active, not {wanted}"
    if subscription is not None:
        found = tick["subscriptions"].get(subscription)
        if found is None:
            return f"there is no subscription {subscription}"
        if found["msgBacklog"] > 0:
            return f"{found['msgBacklog']:,} messages wait for {subscription}"
    return ""


async def until(
    admin: AdminClient,
    clock: Clock,
    topic: str,
    seconds: float,
    *,
    subscription: str | None,
    wanted: int | None,
    idle: bool,
) -> None:
    """Raises NotInTime. A broker that does not answer for a while is waited for, too."""
    deadline = clock.monotonic() + seconds
    while True:
        try:
            tick = admin.get(timeline_url(topic, "tick"))
            why = missing(tick, subscription=subscription, wanted=wanted, idle=idle)
        except AdminError as error:
            if not error.retryable:
                raise
            why = error.reason
        if not why:
            return
        if clock.monotonic() >= deadline:
            raise NotInTime(f"not within {seconds:g} s: {why}")
        await clock.sleep(LOOK_SECONDS)


@click.command(params=[one for one in connection_options() if one.name != "as_json"])
@click.argument("topic", shell_complete=names_of("scalable_topic"))
@click.option("-d", "--drained", metavar="SUBSCRIPTION", help="Until this subscription has nothing left to read.")
@click.option("--active", type=click.IntRange(min=1), metavar="N", help="Until N segments are active.")
@click.option("--no-operation", "idle", is_flag=True, help="Until no split or merge runs.")
@click.option("--timeout", type=Time(), default="5m", metavar="TIME", help="Fail after so long (default: 5m).")
@click.pass_context
def wait(
    context: click.Context,
    /,
    topic: str,
    drained: str | None,
    active: int | None,
    idle: bool,
    timeout: int,
    **reach: object,
) -> int:
    """Return when the scalable TOPIC is in a state; all given conditions must hold at once.

    \b
    Examples:
      anabranch wait orders --drained audit --timeout 10m
      anabranch wait orders --active 4 --no-operation
    """
    if drained is None and active is None and not idle:
        raise click.UsageError("say what to wait for: --drained, --active or --no-operation")
    with open_admin(context) as admin:
        looking = until(admin, SystemClock(), topic, timeout, subscription=drained, wanted=active, idle=idle)
        asyncio.run(looking)
    say(f"{topic} is there")
    return 0
