"""Verbs that move or look at a subscription's cursor, as data."""

from __future__ import annotations

from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import Refused
from anabranch.cli.admin.verb import Values, Verb, filled, option
from anabranch.cli.output.peeked_message import messages_of
from anabranch.cli.param_types import Time, message_id_of, properties_of
from anabranch.runtime.clock import SystemClock

TOPIC = "/admin/v2/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"


def subscription_option() -> click.Option:
    return option("-s", "--subscription", required=True, metavar="NAME", help="The subscription.")


def _one_of(values: Values, first: str, second: str) -> None:
    if (values[first] is None) == (values[second] is None):
        raise click.UsageError(f"give either --time or --{second.replace('_id', 'Id')}")


def _reset(admin: AdminClient, values: Values) -> Any:
    _one_of(values, "time", "message_id")
    path = filled(SUBSCRIPTION + "/resetcursor", values)
    if values["time"] is not None:
        return admin.post(f"{path}/{SystemClock().now_ms() - values['time'] * 1000}")
    text = values["message_id"]
    if text in ("earliest", "latest"):
        return admin.post(path, text)
    return admin.post(path, {**message_id_of(text), "excluded": values["exclude"]})


def _expire(admin: AdminClient, values: Values) -> Any:
    _one_of(values, "time", "position")
    path = filled(SUBSCRIPTION + "/expireMessages", values)
    if values["time"] is not None:
        return admin.post(f"{path}/{values['time']}")
    return admin.post(path, message_id_of(values["position"]))


def _peek(admin: AdminClient, values: Values) -> Any:
    """Entry by entry, until there are enough messages or no more."""
    found: list[dict[str, Any]] = []
    number = 1
    while len(found) < values["count"]:
        try:
            found += messages_of(admin.call("GET", filled(f"{SUBSCRIPTION}/position/{number}", values)))
        except Refused as error:
            if error.status != 404 or not _is_end(admin, values):
                raise
            break
        number += 1
    return found[: values["count"]]


def _is_end(admin: AdminClient, values: Values) -> bool:
    """Is it the message that is missing, and not the subscription?"""
    return values["subscription"] in admin.get(filled(TOPIC + "/subscriptions", values))


CURSOR_VERBS = (
    Verb(
        name="peek-messages",
        help="Look at the next messages of a subscription without taking them.",
        path=SUBSCRIPTION + "/position/1",
        options=(
            subscription_option(),
            option("-n", "--count", type=click.IntRange(min=1), default=1, metavar="N", help="How many (default: 1)."),
        ),
        run=_peek,
        example="my-topic -s audit -n 5",
    ),
    Verb(
        name="skip",
        help="Pass over the next entries (batches) of a subscription.",
        method="POST",
        path=SUBSCRIPTION + "/skip/{count}",
        options=(
            subscription_option(),
            option("-n", "--count", type=click.IntRange(min=0), required=True, metavar="N", help="How many."),
        ),
        done="skipped",
        example="my-topic -s audit -n 10",
    ),
    Verb(
        name="clear-backlog",
        help="Pass over the whole backlog of a subscription.",
        method="POST",
        path=SUBSCRIPTION + "/skip_all",
        options=(subscription_option(),),
        done="cleared the backlog of {subscription}",
        example="my-topic -s audit",
    ),
    Verb(
        name="reset-cursor",
        help="Move a subscription back or forth: messages from there on are delivered (again).",
        method="POST",
        path=SUBSCRIPTION + "/resetcursor",
        options=(
            subscription_option(),
            option("-t", "--time", type=Time(), help="Back by so much: 10m, 3h, 7d."),
            option("-m", "--messageId", "message_id", metavar="ID", help="earliest, latest or ledger:entry."),
            option("-e", "--exclude-reset-position", "exclude", is_flag=True, help="Begin after that message."),
        ),
        run=_reset,
        done="moved {subscription}",
        example="my-topic -s audit --time 1h",
    ),
    Verb(
        name="expire-messages",
        help="Count old messages of a subscription as acknowledged.",
        method="POST",
        path=SUBSCRIPTION + "/expireMessages",
        options=(
            subscription_option(),
            option("-t", "--expireTime", "time", type=Time(), help="Older than: 10m, 3h, 7d."),
            option("-p", "--position", metavar="ID", help="Up to this ledger:entry."),
        ),
        run=_expire,
        done="expired messages of {subscription}",
        example="my-topic -s audit --expireTime 7d",
    ),
    Verb(
        name="analyze-backlog",
        help="Read a subscription's backlog and count.",
        method="POST",
        path=SUBSCRIPTION + "/analyzeBacklog",
        options=(subscription_option(),),
        example="my-topic -s audit",
    ),
    Verb(
        name="get-subscription-properties",
        help="Properties of a subscription.",
        path=SUBSCRIPTION + "/properties",
        options=(subscription_option(),),
        example="my-topic -s audit",
    ),
    Verb(
        name="update-subscription-properties",
        help="Replace the properties of a subscription.",
        method="PUT",
        path=SUBSCRIPTION + "/properties",
        options=(
            subscription_option(),
            option("-p", "--property", "properties", multiple=True, metavar="A=B", help="One or more; none clears."),
        ),
        body=lambda values: properties_of(values["properties"]),
        done="set properties of {subscription}",
        example="my-topic -s audit -p owner=alice",
    ),
)
