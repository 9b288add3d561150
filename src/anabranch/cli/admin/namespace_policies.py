"""The policies of a namespace that can be set one by one: options and bodies, as data."""

from __future__ import annotations

from typing import Any

import click

from anabranch.cli.admin.auto_scale import NAMESPACE_VERBS
from anabranch.cli.admin.backlog_quotas import QUOTA_VERBS
from anabranch.cli.admin.policy_verbs import Policy, is_on, limit, number, on_off, verbs_of
from anabranch.cli.admin.verb import Values, Verb, option
from anabranch.cli.param_types import Size, Time, words_of

_OFFLOAD = "/admin/v2/namespaces/{namespace}"
OFFLOAD_VERBS = (
    Verb(
        name="remove-offload-policies",
        help="Remove the offload policies (kept, not enforced).",
        method="DELETE",
        path=f"{_OFFLOAD}/removeOffloadPolicies",
        done="removed the offload policies of {namespace}",
        example="acme/orders",
    ),
    Verb(
        name="clear-offload-deletion-lag",
        help="Remove the offload deletion lag (kept, not enforced).",
        method="DELETE",
        path=f"{_OFFLOAD}/offloadDeletionLagMs",
        done="cleared the offload deletion lag of {namespace}",
        example="acme/orders",
    ),
)
_DELETE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
MIB = 1 << 20


def _retention(values: Values) -> dict[str, int]:
    seconds, size = values["time"], values["size"]
    if seconds > 0 and seconds < 60:
        raise click.BadParameter("a retention time is at least one minute (or 0, or -1 for ever)")
    if size > 0 and size < MIB:
        raise click.BadParameter("a retention size is at least 1M (or 0, or -1 without limit)")
    return {
        "retentionTimeInMinutes": seconds // 60 if seconds > 0 else seconds,
        "retentionSizeInMB": size // MIB if size > 0 else size,
    }


def _topic_creation(values: Values) -> dict[str, Any]:
    body: dict[str, Any] = {"allowAutoTopicCreation": is_on(values)}
    if values["type"] is not None:
        body["topicType"] = values["type"]
    if values["num_partitions"] is not None:
        body["defaultNumPartitions"] = values["num_partitions"]
    return body


def _inactive(values: Values) -> dict[str, Any]:
    deletes, keeps = values["enable_delete_while_inactive"], values["disable_delete_while_inactive"]
    if deletes and keeps:
        raise click.UsageError("give either --enable-delete-while-inactive or --disable-delete-while-inactive")
    if deletes and not values["max_inactive_duration"]:
        raise click.UsageError("--max-inactive-duration says after how long unused topics are deleted")
    return {
        "deleteWhileInactive": values["enable_delete_while_inactive"],
        "maxInactiveDurationSeconds": values["max_inactive_duration"],
        "inactiveTopicDeleteMode": values["delete_mode"],
    }


def _dispatch(noun: str, path: str, about: str) -> Policy:
    return Policy(
        noun=noun,
        path=path,
        about=about,
        options=(
            option("-md", "--msg-dispatch-rate", "messages", type=int, default=-1, metavar="N", help="Messages."),
            option("-bd", "--byte-dispatch-rate", "bytes", type=int, default=-1, metavar="N", help="Bytes."),
            option("-dt", "--dispatch-rate-period", "period", type=int, default=1, metavar="SECONDS", help="Per this."),
        ),
        body=lambda values: {
            "dispatchThrottlingRateInMsg": values["messages"],
            "dispatchThrottlingRateInByte": values["bytes"],
            "ratePeriodInSecond": values["period"],
        },
        example="acme/orders -md 1000",
    )


POLICIES = (
    Policy(
        noun="offload-policies",
        path="offloadPolicies",
        about="Offloading to other storage (kept, not enforced)",
        options=(
            option("-d", "--driver", required=True, metavar="NAME", help="For example aws-s3."),
            option("-b", "--bucket", default=None, metavar="NAME", help="Where."),
            option("-r", "--region", default=None, metavar="NAME", help="Of the bucket."),
        ),
        body=lambda values: {
            "managedLedgerOffloadDriver": values["driver"],
            "managedLedgerOffloadBucket": values["bucket"],
            "managedLedgerOffloadRegion": values["region"],
        },
        removable=False,
        example="acme/orders --driver aws-s3 --bucket old --region eu",
    ),
    Policy(
        noun="offload-threshold",
        path="offloadThreshold",
        about="Bytes after which ledgers are offloaded (kept, not enforced)",
        options=(option("-s", "--size", type=Size(endless=True), required=True, help="10M, 2G; -1: never."),),
        body=lambda values: values["size"],
        method="PUT",
        removable=False,
        example="acme/orders --size 10M",
    ),
    Policy(
        noun="offload-deletion-lag",
        path="offloadDeletionLagMs",
        about="How long offloaded ledgers stay in the store, too (kept, not enforced)",
        options=(option("-l", "--lag", type=Time(endless=True), required=True, help="1h, 3d."),),
        body=lambda values: values["lag"] * 1_000,
        method="PUT",
        removable=False,
        example="acme/orders --lag 1d",
    ),
    Policy(
        noun="retention",
        path="retention",
        about="How long and how much acknowledged messages are kept",
        options=(
            option("-t", "--time", type=Time(endless=True), required=True, help="10m, 3h, 7d; -1: for ever."),
            option("-s", "--size", type=Size(endless=True), required=True, help="100M, 2G; -1: without limit."),
        ),
        body=_retention,
        example="acme/orders --time 7d --size 10G",
    ),
    Policy(
        noun="message-ttl",
        path="messageTTL",
        about="After which time messages count as acknowledged",
        options=(option("-ttl", "--messageTTL", "seconds", type=Time(), required=True, help="90s, 3h, 7d; 0: never."),),
        body=lambda values: values["seconds"],
        example="acme/orders --messageTTL 3h",
    ),
    Policy(
        noun="deduplication",
        path="deduplication",
        about="Are messages that are sent again recognized?",
        options=on_off("deduplication"),
        body=is_on,
        example="acme/orders --enable",
    ),
    Policy(
        noun="auto-topic-creation",
        path="autoTopicCreation",
        about="Do clients create the topics they name, and of which kind?",
        options=(
            *on_off("it"),
            option("-t", "--type", type=click.Choice(("partitioned", "non-partitioned")), help="Kind of topic."),
            option("-n", "--num-partitions", type=int, metavar="N", help="Partitions, for partitioned ones."),
        ),
        body=_topic_creation,
        example="acme/orders --enable --type partitioned --num-partitions 4",
    ),
    Policy(
        noun="auto-subscription-creation",
        path="autoSubscriptionCreation",
        about="Do consumers create the subscriptions they name?",
        options=on_off("it"),
        body=lambda values: {"allowAutoSubscriptionCreation": is_on(values)},
        example="acme/orders --disable",
    ),
    limit(
        "max-producers-per-topic",
        "maxProducersPerTopic",
        "Producers of a topic",
        "-p",
        "--max-producers-per-topic",
        example="acme/orders -p 10",
    ),
    limit(
        "max-consumers-per-topic",
        "maxConsumersPerTopic",
        "Consumers of a topic",
        "-c",
        "--max-consumers-per-topic",
        example="acme/orders -c 10",
    ),
    limit(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "Consumers of a subscription",
        "-c",
        "--max-consumers-per-subscription",
        example="acme/orders -c 10",
    ),
    limit(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "Unacknowledged messages of a consumer",
        "-c",
        "--max-unacked-messages-per-consumer",
        example="acme/orders -c 5000",
    ),
    limit(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "Unacknowledged messages of a subscription",
        "-c",
        "--max-unacked-messages-per-subscription",
        example="acme/orders -c 50000",
    ),
    limit(
        "max-subscriptions-per-topic",
        "maxSubscriptionsPerTopic",
        "Subscriptions of a topic",
        "-m",
        "--max-subscriptions-per-topic",
        example="acme/orders -m 10",
    ),
    limit(
        "max-topics-per-namespace",
        "maxTopicsPerNamespace",
        "Topics of the namespace",
        "-t",
        "--max-topics-per-namespace",
        example="acme/orders -t 100",
    ),
    limit(
        "subscription-expiration-time",
        "subscriptionExpirationTime",
        "Minutes after which unused subscriptions go",
        "-t",
        "--time",
        example="acme/orders --time 60",
    ),
    limit(
        "compaction-threshold",
        "compactionThreshold",
        "Bytes after which a topic is compacted",
        "-t",
        "--threshold",
        example="acme/orders --threshold 100000000",
        method="PUT",
    ),
    Policy(
        noun="delayed-delivery",
        path="delayedDelivery",
        about="Are messages delayed, and how long at most?",
        options=(
            *on_off("delays"),
            option("-t", "--time", "tick", type=int, default=1000, metavar="MS", help="Precision (default: 1000 ms)."),
            option("-p", "--max-delay", type=Time(), default=0, help="Longest delay: 3h, 7d; 0: any."),
        ),
        body=lambda values: {
            "active": is_on(values),
            "tickTime": values["tick"],
            "maxDeliveryDelayInMillis": values["max_delay"] * 1000,
        },
        example="acme/orders --enable --max-delay 7d",
    ),
    Policy(
        noun="persistence",
        path="persistence",
        about="Copies of ledgers (kept for tools)",
        options=(
            option("-e", "--bookkeeper-ensemble", "ensemble", type=int, default=1, metavar="N", help="Places."),
            option("-w", "--bookkeeper-write-quorum", "write", type=int, default=1, metavar="N", help="Copies."),
            option("-a", "--bookkeeper-ack-quorum", "ack", type=int, default=1, metavar="N", help="Copies waited for."),
            option("-r", "--ml-mark-delete-max-rate", "rate", type=float, default=0.0, metavar="N", help="Per second."),
        ),
        body=lambda values: {
            "bookkeeperEnsemble": values["ensemble"],
            "bookkeeperWriteQuorum": values["write"],
            "bookkeeperAckQuorum": values["ack"],
            "managedLedgerMaxMarkDeleteRate": values["rate"],
        },
        example="acme/orders -e 1 -w 1 -a 1",
    ),
    _dispatch("dispatch-rate", "dispatchRate", "Delivery rate of a topic"),
    _dispatch("subscription-dispatch-rate", "subscriptionDispatchRate", "Delivery rate of a subscription"),
    _dispatch("replicator-dispatch-rate", "replicatorDispatchRate", "Replication rate (kept, not enforced)"),
    Policy(
        noun="publish-rate",
        path="publishRate",
        about="Publish rate of a topic",
        options=(
            option("-m", "--msg-publish-rate", "messages", type=int, default=-1, metavar="N", help="Messages/s."),
            option("-b", "--byte-publish-rate", "bytes", type=int, default=-1, metavar="N", help="Bytes/s."),
        ),
        body=lambda values: {
            "publishThrottlingRateInMsg": values["messages"],
            "publishThrottlingRateInByte": values["bytes"],
        },
        example="acme/orders -m 1000",
    ),
    Policy(
        noun="subscribe-rate",
        path="subscribeRate",
        about="How often a consumer may subscribe",
        options=(
            option("-sr", "--subscribe-rate", "rate", type=int, default=-1, metavar="N", help="Times."),
            option(
                "-st", "--subscribe-rate-period", "period", type=int, default=30, metavar="SECONDS", help="Per this."
            ),
        ),
        body=lambda values: {
            "subscribeThrottlingRatePerConsumer": values["rate"],
            "ratePeriodInSecond": values["period"],
        },
        example="acme/orders -sr 10",
    ),
    Policy(
        noun="inactive-topic-policies",
        path="inactiveTopicPolicies",
        about="When unused topics are deleted",
        options=(
            option("-e", "--enable-delete-while-inactive", is_flag=True, help="Delete them."),
            option("-d", "--disable-delete-while-inactive", is_flag=True, help="Keep them (default)."),
            option("-t", "--max-inactive-duration", type=Time(), default=0, help="Unused for: 60s, 3h, 7d."),
            option("-m", "--delete-mode", type=click.Choice(_DELETE_MODES), default=_DELETE_MODES[0], help="Which."),
        ),
        body=_inactive,
        example="acme/orders -e -t 7d -m delete_when_no_subscriptions",
    ),
    Policy(
        noun="deduplication-snapshot-interval",
        path="deduplicationSnapshotInterval",
        about="Seconds between two snapshots of sequence ids",
        options=(number("-i", "--interval", help="Seconds; 0: only every so many entries."),),
        body=lambda values: values["value"],
        remove="POST",
        example="acme/orders -i 120",
    ),
    Policy(
        noun="subscription-types-enabled",
        path="subscriptionTypesEnabled",
        about="Which types of subscription are allowed",
        options=(
            option(
                "-t",
                "--types",
                multiple=True,
                required=True,
                metavar="LIST",
                help="Exclusive,Shared,Failover,Key_Shared.",
            ),
        ),
        body=lambda values: words_of(values["types"]),
        example="acme/orders -t Exclusive,Shared",
    ),
    Policy(
        noun="schema-compatibility-strategy",
        path="schemaCompatibilityStrategy",
        about="How schemas may change",
        options=(option("-c", "--compatibility", "value", required=True, metavar="NAME", help="FULL, BACKWARD, …"),),
        body=lambda values: values["value"],
        method="PUT",
        removable=False,
        example="acme/orders -c BACKWARD",
    ),
    Policy(
        noun="schema-validation-enforce",
        path="schemaValidationEnforced",
        about="Must producers have a schema?",
        options=on_off("it"),
        body=is_on,
        removable=False,
        example="acme/orders --enable",
    ),
    Policy(
        noun="is-allow-auto-update-schema",
        path="isAllowAutoUpdateSchema",
        about="May clients add schema versions?",
        options=on_off("it"),
        body=is_on,
        removable=False,
        example="acme/orders --disable",
    ),
    Policy(
        noun="encryption-required",
        path="encryptionRequired",
        about="Must producers encrypt?",
        options=on_off("it"),
        body=is_on,
        removable=False,
        example="acme/orders --enable",
    ),
    Policy(
        noun="subscription-auth-mode",
        path="subscriptionAuthMode",
        about="Must subscriptions be named after their role?",
        options=(
            option(
                "-m",
                "--subscription-auth-mode",
                "value",
                type=click.Choice(("None", "Prefix")),
                required=True,
                help="How.",
            ),
        ),
        body=lambda values: values["value"],
        removable=False,
        example="acme/orders -m Prefix",
    ),
    Policy(
        noun="anti-affinity-group",
        path="antiAffinity",
        about="Anti-affinity group (kept for tools)",
        options=(option("-g", "--group", required=True, metavar="NAME", help="The group."),),
        body=lambda values: values["group"].encode(),
        example="acme/orders --group blue",
    ),
    Policy(
        noun="clusters",
        path="replication",
        about="Clusters that a namespace lives on",
        options=(option("-c", "--clusters", multiple=True, required=True, metavar="NAMES", help="Clusters: a,b."),),
        body=lambda values: words_of(values["clusters"]),
        removable=False,
        example="acme/orders --clusters standalone",
    ),
)

POLICY_VERBS: tuple[Verb, ...] = (
    *(verb for policy in POLICIES for verb in verbs_of(policy)),
    *QUOTA_VERBS,
    *NAMESPACE_VERBS,
    *OFFLOAD_VERBS,
)
