"""`anabranch admin topic-policies`, and the same verbs under `topics`: policies of single topics, as data.

Options and bodies are those of the namespace's policy; names and paths are those of pulsar-admin.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.backlog_quotas import QUOTA_VERBS
from anabranch.cli.admin.namespace_policies import POLICIES
from anabranch.cli.admin.policy_verbs import Policy, limit, verbs_of
from anabranch.cli.admin.subscriptions import TOPIC
from anabranch.cli.admin.verb import Values, Verb, filled, group_of, option
from anabranch.cli.output.tables import table
from anabranch.cli.param_types import words_of

PLACE = "my-topic"
_OF_NAMESPACES = {policy.noun: policy for policy in POLICIES}


def _like(noun: str, path: str = "", of: str = "", **changes: Any) -> Policy:
    """The policy of a namespace under its name for topics."""
    base = _OF_NAMESPACES[of or noun]
    example = f"{PLACE} {base.example.partition(' ')[2]}"
    changes = {"removable": True, "remove": "DELETE", "example": example, **changes}
    return replace(base, noun=noun, path=path or base.path, **changes)


def _text(*names: str, help: str) -> click.Option:
    return option(*names, "value", required=True, metavar="NAMES", help=help)


TOPIC_POLICIES = (
    _like("retention"),
    _like("message-ttl"),
    _like("publish-rate"),
    _like("dispatch-rate"),
    _like("subscription-dispatch-rate"),
    _like("subscribe-rate"),
    _like("replicator-dispatch-rate"),
    limit("max-producers", "maxProducers", "Producers", "-p", "--max-producers", example=f"{PLACE} -p 10"),
    limit("max-consumers", "maxConsumers", "Consumers", "-c", "--max-consumers", example=f"{PLACE} -c 10"),
    _like("max-consumers-per-subscription"),
    limit(
        "max-subscriptions-per-topic",
        "maxSubscriptionsPerTopic",
        "Subscriptions",
        "-s",
        "--max-subscriptions-per-topic",
        example=f"{PLACE} -s 10",
    ),
    limit(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesOnConsumer",
        "Unacknowledged messages of a consumer",
        "-m",
        "--maxNum",
        example=f"{PLACE} -m 5000",
    ),
    limit(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesOnSubscription",
        "Unacknowledged messages of a subscription",
        "-m",
        "--maxNum",
        example=f"{PLACE} -m 50000",
    ),
    _like("deduplication", "deduplicationEnabled"),
    _like("deduplication-snapshot-interval"),
    _like("compaction-threshold", method="POST"),
    _like("inactive-topic-policies"),
    _like("delayed-delivery"),
    limit(
        "max-message-size",
        "maxMessageSize",
        "Bytes of a message",
        "-m",
        "--max-message-size",
        example=f"{PLACE} -m 9000",
    ),
    _like("persistence"),
    _like("subscription-types-enabled"),
    _like("schema-compatibility-strategy"),
    _like("schema-validation-enforce"),
    _like("auto-subscription-creation"),
    _like("subscription-expiration-time"),
    Policy(
        noun="dispatcher-pause-on-ack-state-persistent",
        path="dispatcherPauseOnAckStatePersistent",
        about="Pause dispatch on unsaved acknowledgements (kept, not needed)",
        options=(),
        body=lambda values: True,
        example=PLACE,
    ),
    Policy(
        noun="offload-policies",
        path="offloadPolicies",
        about="Offloading to other storage (kept, not enforced)",
        options=(
            option("-d", "--driver", default=None, metavar="NAME", help="aws-s3, filesystem, …"),
            option(
                "-t", "--offloadThresholdInBytes", "bytes", type=int, default=-1, metavar="N", help="From this size."
            ),
            option("-dl", "--offloadDeletionLagInMillis", "lag", type=int, default=None, metavar="MS", help="Wait."),
        ),
        body=lambda values: {
            "managedLedgerOffloadDriver": values["driver"],
            "managedLedgerOffloadThresholdInBytes": values["bytes"],
            "managedLedgerOffloadDeletionLagInMillis": values["lag"],
        },
        example=f"{PLACE} --driver aws-s3 -t 1000000000",
    ),
    Policy(
        noun="entry-filters-per-topic",
        path="entryFilters",
        about="Entry filters (kept, not run)",
        options=(_text("-efn", "--entry-filters-name", help="Names: a,b."),),
        body=lambda values: {"entryFilterNames": values["value"]},
        example=f"{PLACE} -efn a,b",
    ),
    Policy(
        noun="replication-clusters",
        path="replication",
        about="Clusters of the topic (kept, not enforced)",
        options=(option("-c", "--clusters", multiple=True, required=True, metavar="NAMES", help="Clusters: a,b."),),
        body=lambda values: words_of(values["clusters"]),
        example=f"{PLACE} --clusters standalone",
    ),
)

GLOBAL = option("-g", "--global", "is_global", is_flag=True, help="The part that holds in all clusters.")
APPLIED = option(
    "-ap", "--applied", is_flag=True, help="The value in force: of the topic, its namespace or the broker."
)


def _of_topic(verb: Verb) -> Verb:
    """With the part of the topic's policies that it is about."""
    query = {**(verb.query or {}), "isGlobal": "is_global"}
    if verb.method == "GET":
        return replace(verb, options=(*verb.options, APPLIED, GLOBAL), query={**query, "applied": "applied"})
    return replace(verb, options=(*verb.options, GLOBAL), query=query)


def _of_subscription(verb: Verb) -> Verb:
    """`-s`: the rate of one subscription, at a path of its own."""
    about = "Of this subscription only."

    def run(admin: AdminClient, values: Values) -> Any:
        one = values["subscription"]
        path = verb.path if one is None else f"{TOPIC}/{{subscription}}/dispatchRate"
        query = {name: values[of] for name, of in (verb.query or {}).items()}
        body = None if verb.body is None else verb.body(values)
        return admin.call(verb.method, filled(path, values), body, query=query).value

    chosen = option("-s", "--subscription", default=None, metavar="NAME", help=about)
    return replace(verb, options=(*verb.options, chosen), run=run)


def _quota_verb(verb: Verb) -> Verb:
    path = verb.path.replace("/admin/v2/namespaces/{namespace}", TOPIC)
    example = verb.example.replace("acme/orders", PLACE)
    return replace(verb, path=path, example=example, done=verb.done.replace("{namespace}", "{topic}"))


def _shown(answer: Any) -> str:
    rows = [
        (name, one["value"], one["level"], "yes" if one["enforced"] else "stored only")
        for name, one in sorted(answer.items())
        if one["value"] is not None
    ]
    return table(("policy", "value", "level", "enforced"), rows)


_VERBS = tuple(
    _of_subscription(_of_topic(verb)) if policy.noun == "subscription-dispatch-rate" else _of_topic(verb)
    for policy in TOPIC_POLICIES
    for verb in verbs_of(policy, TOPIC, "topic")
)
_QUOTAS = tuple(_of_topic(_quota_verb(verb)) for verb in QUOTA_VERBS)
TOPIC_POLICY_VERBS = (
    Verb(
        name="show",
        help="All policies in force for a topic, each with the level that sets it.",
        path=TOPIC + "/policies",
        show=_shown,
        example=PLACE,
    ),
    Verb(
        name="remove-all",
        help="Unset all policies of a topic.",
        method="DELETE",
        path=TOPIC + "/policies",
        done="removed all policies of {topic}",
        example=PLACE,
    ),
    *_VERBS,
    *(replace(verb, name=verb.name.replace("get-backlog-quotas", "get-backlog-quota")) for verb in _QUOTAS),
)

_NAMES_OF_TOPICS = {"max-subscriptions-per-topic": "max-subscriptions"}
TOPIC_VERBS = (
    *(
        replace(verb, name=f"{start}-{_NAMES_OF_TOPICS.get(noun, noun)}")
        for verb in _VERBS
        for start, _, noun in [verb.name.partition("-")]
    ),
    *_QUOTAS,
)
"""The same under `topics`, with the names that pulsar-admin has there."""

topic_policies = group_of(
    "topic-policies", "Policies of single topics: they win over those of the namespace.", TOPIC_POLICY_VERBS
)
