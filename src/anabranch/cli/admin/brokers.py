"""`anabranch admin brokers`: its verbs, as data. A broker is named by its id or by host and HTTP port."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from anabranch.cli.admin.verb import Verb, group_of, option
from anabranch.cli.output.tables import table

_DRAIN = "/admin/v2/brokers/standalone/{broker_id}/drain"
_SETTING = "/admin/v2/brokers/configuration/{setting}"
_COLUMNS = ("id", "clients", "http", "slots", "load", "version", "state", "leads", "since")


def _setting() -> click.Option:
    return option("-c", "--config", "setting", required=True, metavar="NAME", help="From `list-dynamic-config`.")


def _details(brokers: Any) -> str:
    rows = [
        (
            one["id"],
            one["serviceUrl"],
            one["httpUrl"],
            one["slots"],
            one["load"],
            one["version"],
            "draining" if one["draining"] else "serving",
            one["leader"],
            datetime.fromtimestamp(one["startedMs"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        )
        for one in brokers
    ]
    return table(_COLUMNS, rows)


def _operations(changes: Any) -> str:
    rows = [
        (
            datetime.fromtimestamp(one["atMs"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            one["role"] or "-",
            one["what"],
            f"{one['method']} {one['path']}",
            f"{one['status']} {one['error']}".strip(),
            one["broker"],
        )
        for one in changes
    ]
    return table(("when", "role", "what", "call", "outcome", "broker"), rows) if rows else "no changes"


def _leader(answer: Any) -> str:
    return str(answer["brokerId"])


BROKERS = (
    Verb(name="healthcheck", help="Does the broker serve? Exit code 0 means yes.", path="/admin/v2/brokers/health"),
    Verb(name="version", help="The broker's version.", path="/admin/v2/brokers/version"),
    Verb(name="list", help="Brokers of a cluster.", path="/admin/v2/brokers/{cluster}", example="standalone"),
    Verb(
        name="details",
        help="All brokers: id, addresses, slots they hold, load, version, since when.",
        path="/admin/v2/brokers/standalone/details",
        show=_details,
    ),
    Verb(name="leader-broker", help="The broker that leads.", path="/admin/v2/brokers/leaderBroker"),
    Verb(name="leader", help="The same, in short.", path="/admin/v2/brokers/leaderBroker", show=_leader),
    Verb(
        name="drain",
        help="Give all topics of a broker to the others, for example before it is stopped.",
        method="POST",
        path=_DRAIN,
        done="broker {broker_id} serves nothing any more; `brokers resume {broker_id}` takes that back",
        example="broker-2",
    ),
    Verb(
        name="resume",
        help="Let a drained broker take its share of topics again.",
        method="DELETE",
        path=_DRAIN,
        done="broker {broker_id} takes its share again",
        example="broker-2",
    ),
    Verb(
        name="namespaces",
        help="Bundles of namespaces that a broker serves.",
        path="/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
        options=(option("-u", "--url", "broker", required=True, metavar="HOST:PORT", help="The broker, from `list`."),),
        example="standalone --url 127.0.0.1:8080",
    ),
    Verb(
        name="operations",
        help="Changes made over HTTP, the newest first: what, by whom, when, outcome.",
        path="/anabranch/v1/operations",
        options=(
            option(
                "-n", "--count", type=click.IntRange(1, 500), default=20, metavar="N", help="How many (default: 20)."
            ),
        ),
        query={"count": "count"},
        show=_operations,
    ),
    Verb(name="topics", help="Stats of all loaded topics.", path="/admin/v2/broker-stats/topics"),
    Verb(
        name="get-runtime-config",
        help="Every setting that is in force; secrets are left out.",
        path="/admin/v2/brokers/configuration/runtime",
    ),
    Verb(
        name="get-internal-config",
        help="Where the broker keeps its metadata.",
        path="/admin/v2/brokers/internal-configuration",
    ),
    Verb(
        name="list-dynamic-config",
        help="Settings that can change while the broker runs.",
        path="/admin/v2/brokers/configuration",
    ),
    Verb(
        name="get-all-dynamic-config",
        help="Settings that were changed while the broker runs.",
        path="/admin/v2/brokers/configuration/values",
    ),
    Verb(
        name="update-dynamic-config",
        help="Change a setting on all brokers while they run; it is kept.",
        method="POST",
        path=f"{_SETTING}/{{value}}",
        options=(_setting(), option("-v", "--value", required=True, metavar="VALUE", help="Its new value.")),
        done="{setting} = {value} on all brokers",
        example="--config broker.auto_create_topics --value false",
    ),
    Verb(
        name="delete-dynamic-config",
        help="Let a setting have the value of each broker's start again.",
        method="DELETE",
        path=_SETTING,
        options=(_setting(),),
        done="{setting} has the value of the start again",
        example="--config broker.auto_create_topics",
    ),
    Verb(
        name="backlog-quota-check",
        help="Look at all backlog quotas now, not with the next sweep.",
        path="/admin/v2/brokers/backlog-quota-check",
        done="looked at all backlog quotas",
    ),
)

brokers = group_of("brokers", "Brokers: who is there, who leads, how they are configured.", BROKERS)
