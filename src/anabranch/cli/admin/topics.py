"""`anabranch admin topics` and `subscriptions`: their verbs, as data. Subscription verbs are under both nouns, because
pulsar-admin has them under `topics`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import Refused
from anabranch.admin.paths import namespace_path
from anabranch.cli.admin.subscriptions import CURSOR_VERBS, SUBSCRIPTION, TOPIC, subscription_option
from anabranch.cli.admin.topic_maintenance import CARE_VERBS
from anabranch.cli.admin.topic_policies import TOPIC_VERBS
from anabranch.cli.admin.verb import Values, Verb, filled, group_of, option
from anabranch.cli.output.tables import pairs, topic_stats
from anabranch.cli.param_types import message_id_of, properties_of, words_of

_DOMAINS = ("persistent", "non-persistent")
_END = (1 << 63) - 1
_WORDS = {"earliest": {"ledgerId": -1, "entryId": -1}, "latest": {"ledgerId": _END, "entryId": _END}}


def _both_domains(suffix: str, admin: AdminClient, values: Values) -> list[str]:
    domains = _DOMAINS if values["domain"] is None else (values["domain"],)
    place = namespace_path(values["namespace"])
    return [name for domain in domains for name in admin.get(f"/admin/v2/{domain}/{place}{suffix}")]


def _list(admin: AdminClient, values: Values) -> Any:
    return _both_domains("", admin, values)


def _not_listed(admin: AdminClient, values: Values) -> str:
    """Topics that `list` leaves out, because they are no regular ones. Other brokers may not know or show any."""
    namespace = namespace_path(values["namespace"])
    try:
        count = len(admin.get(f"/admin/v2/scalable/{namespace}"))
    except Refused:
        return ""
    return f"and {count} scalable: anabranch admin scalable-topics list {namespace}" if count else ""


def _list_partitioned(admin: AdminClient, values: Values) -> Any:
    return _both_domains("/partitioned", admin, values)


def _stats(admin: AdminClient, values: Values) -> Any:
    """Of a partitioned topic: the sums over its partitions. (pulsar-admin fails there.)"""
    try:
        return admin.get(filled(TOPIC + "/stats", values))
    except Refused as error:
        if error.status != 404:
            raise
        try:
            return admin.get(filled(TOPIC + "/partitioned-stats", values), {"perPartition": False})
        except Refused:
            raise error from None


def _domain() -> click.Option:
    return option("-td", "--topic-domain", "domain", type=click.Choice(_DOMAINS), help="Only these (default: both).")


def _force(text: str) -> click.Option:
    return option("-f", "--force", is_flag=True, help=text)


def _partitions() -> click.Option:
    return option(
        "-p", "--partitions", type=click.IntRange(min=1), required=True, metavar="N", help="Number of partitions."
    )


def _start_body(values: Values) -> Any:
    text = values["message_id"]
    return _WORDS[text] if text in _WORDS else message_id_of(text)


_ROLE = option("--role", required=True, metavar="ROLE", help="The role.")
_ACTIONS = option("--actions", required=True, multiple=True, metavar="LIST", help="produce, consume: one or both.")


SUBSCRIPTION_VERBS = (
    Verb(name="list", help="Subscriptions of a topic.", path=TOPIC + "/subscriptions", example="my-topic"),
    Verb(
        name="create",
        help="Create a subscription; it keeps what is published from then on, or from --messageId on.",
        method="PUT",
        path=SUBSCRIPTION,
        options=(
            subscription_option(),
            option(
                "-m",
                "--messageId",
                "message_id",
                default="latest",
                metavar="WHERE",
                help="earliest, latest or ledger:entry of the first message to deliver (default: latest).",
            ),
        ),
        body=_start_body,
        done="created subscription {subscription}",
        example="my-topic -s audit --messageId earliest",
    ),
    Verb(
        name="delete",
        help="Delete a subscription and forget where it was.",
        method="DELETE",
        path=SUBSCRIPTION,
        options=(subscription_option(), _force("Even while consumers are connected; they are cut.")),
        query={"force": "force"},
        done="deleted subscription {subscription}",
        example="my-topic -s audit",
    ),
    *CURSOR_VERBS,
)

_PULSAR_NAMES = {"list": "subscriptions", "create": "create-subscription", "delete": "unsubscribe"}


def _as_topic_verb(verb: Verb) -> Verb:
    return replace(verb, name=_PULSAR_NAMES.get(verb.name, verb.name))


TOPICS = (
    Verb(
        name="list",
        help="Regular topics of a namespace, partitions one by one. Scalable topics: `scalable-topics list`.",
        path="/admin/v2/persistent/{namespace}",
        options=(_domain(),),
        run=_list,
        hint=_not_listed,
        example="public/default",
    ),
    Verb(
        name="list-partitioned-topics",
        help="Partitioned topics of a namespace.",
        path="/admin/v2/persistent/{namespace}/partitioned",
        options=(_domain(),),
        run=_list_partitioned,
        example="public/default",
    ),
    Verb(
        name="create",
        help="Create a topic without partitions.",
        method="PUT",
        path=TOPIC,
        options=(
            option("-m", "--metadata", multiple=True, metavar="NAME=VALUE", help="Properties of the topic: a=b,c=d."),
        ),
        body=lambda values: properties_of(values["metadata"]),
        done="created topic {topic}",
        example="my-topic",
    ),
    Verb(
        name="create-partitioned-topic",
        help="Create a topic with partitions.",
        method="PUT",
        path=TOPIC + "/partitions",
        options=(_partitions(),),
        body=lambda values: values["partitions"],
        done="created topic {topic} with {partitions} partitions",
        example="my-topic -p 4",
    ),
    Verb(
        name="update-partitioned-topic",
        help="Add partitions; there can never be fewer.",
        method="POST",
        path=TOPIC + "/partitions",
        options=(_partitions(),),
        body=lambda values: values["partitions"],
        done="topic {topic} has {partitions} partitions",
        example="my-topic -p 8",
    ),
    Verb(
        name="create-missed-partitions",
        help="Make partitions again that were deleted one by one.",
        method="POST",
        path=TOPIC + "/createMissedPartitions",
        done="topic {topic} has all its partitions",
        example="my-topic",
    ),
    Verb(
        name="get-partitioned-topic-metadata",
        help="Number of partitions; 0 for a topic without.",
        path=TOPIC + "/partitions",
        example="my-topic",
    ),
    Verb(
        name="delete",
        help="Delete a topic with its messages.",
        method="DELETE",
        path=TOPIC,
        options=(_force("Even while clients are connected; they are cut."),),
        query={"force": "force"},
        done="deleted topic {topic}",
        example="my-topic",
    ),
    Verb(
        name="delete-partitioned-topic",
        help="Delete a partitioned topic with its messages.",
        method="DELETE",
        path=TOPIC + "/partitions",
        options=(_force("Even while clients are connected; they are cut."),),
        query={"force": "force"},
        done="deleted topic {topic}",
        example="my-topic",
    ),
    Verb(
        name="stats",
        help="Figures of a topic: rates, backlogs, who is connected.",
        path=TOPIC + "/stats",
        run=_stats,
        show=topic_stats,
        example="my-topic",
    ),
    Verb(
        name="partitioned-stats",
        help="Figures of a partitioned topic, summed up.",
        path=TOPIC + "/partitioned-stats",
        options=(option("--per-partition", is_flag=True, help="With each partition's own (use --json)."),),
        query={"perPartition": "per_partition"},
        show=topic_stats,
        example="my-topic",
    ),
    Verb(
        name="stats-internal",
        help="Ledgers and cursors of a topic.",
        path=TOPIC + "/internalStats",
        show=pairs,
        example="my-topic",
    ),
    Verb(
        name="terminate",
        help="End a topic: no message after the last one, ever.",
        method="POST",
        path=TOPIC + "/terminate",
        done="terminated {topic}",
        example="my-topic",
    ),
    Verb(name="lookup", help="The broker that serves a topic.", path="/lookup/v2/topic/{topic}", example="my-topic"),
    Verb(
        name="bundle-range",
        help="The hash range that a topic is placed by.",
        path="/lookup/v2/topic/{topic}/bundle",
        example="my-topic",
    ),
    Verb(
        name="permissions",
        help="Who may do what with a topic.",
        path=TOPIC + "/permissions",
        example="my-topic",
    ),
    Verb(
        name="grant-permission",
        help="Let a role produce to or consume from a topic.",
        method="POST",
        path=TOPIC + "/permissions/{role}",
        options=(_ROLE, _ACTIONS),
        body=lambda values: words_of(values["actions"]),
        done="granted to {role}",
        example="my-topic --role alice --actions produce,consume",
    ),
    Verb(
        name="revoke-permission",
        help="Take a role's permissions on a topic away.",
        method="DELETE",
        path=TOPIC + "/permissions/{role}",
        options=(_ROLE,),
        done="revoked from {role}",
        example="my-topic --role alice",
    ),
    *CARE_VERBS,
    *TOPIC_VERBS,
    *map(_as_topic_verb, SUBSCRIPTION_VERBS),
)

topics = group_of(
    "topics", "Topics: create, look at, delete. A short name means persistent://public/default/….", TOPICS
)
subscriptions = group_of("subscriptions", "Subscriptions of topics.", SUBSCRIPTION_VERBS)
