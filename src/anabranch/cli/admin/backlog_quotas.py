"""Backlog quotas of a namespace: their verbs, as data. Two quotas share one path, so they are no plain policy."""

from __future__ import annotations

import click

from anabranch.cli.admin.policy_verbs import NAMESPACE
from anabranch.cli.admin.verb import Verb, option
from anabranch.cli.param_types import Size, Time

_QUOTA_TYPES = ("destination_storage", "message_age")
_QUOTA_POLICIES = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")


def _quota_type() -> click.Option:
    return option("-t", "--type", "type", type=click.Choice(_QUOTA_TYPES), default=_QUOTA_TYPES[0], help="Size or age.")


QUOTA_VERBS = (
    Verb(
        name="get-backlog-quotas",
        help="How large and how old backlogs may be.",
        path=f"{NAMESPACE}/backlogQuotaMap",
        example="acme/orders",
    ),
    Verb(
        name="set-backlog-quota",
        help="Limit backlogs by size or age, and say what happens at the limit.",
        method="POST",
        path=f"{NAMESPACE}/backlogQuota",
        options=(
            option("-l", "--limit", type=Size(endless=True), default=-1, help="Size: 100M, 2G; -1: any."),
            option("-lt", "--limitTime", "seconds", type=Time(endless=True), default=-1, help="Age: 3h, 7d; -1: any."),
            option("-p", "--policy", type=click.Choice(_QUOTA_POLICIES), required=True, help="What happens then."),
            _quota_type(),
        ),
        query={"backlogQuotaType": "type"},
        body=lambda values: {
            "limitSize": values["limit"],
            "limitTime": values["seconds"],
            "policy": values["policy"],
        },
        done="set backlog quota of {namespace}",
        example="acme/orders --limit 2G --policy producer_exception",
    ),
    Verb(
        name="remove-backlog-quota",
        help="Take a limit of backlogs away.",
        method="DELETE",
        path=f"{NAMESPACE}/backlogQuota",
        options=(_quota_type(),),
        query={"backlogQuotaType": "type"},
        done="removed backlog quota of {namespace}",
        example="acme/orders",
    ),
)
