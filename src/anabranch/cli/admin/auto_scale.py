"""Verbs of auto-scale policies: set-, get- and remove-, of scalable topics and of namespaces. One option per field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from anabranch.cli.admin.verb import Values, Verb, option
from anabranch.model.autoscale.policy import JSON_NAMES, AutoScalePolicy, SplitPoint

_HELP: Mapping[str, str] = {
    "enabled": "Split and merge by itself.",
    "max_segments": "Active segments at most.",
    "min_segments": "Active segments at least.",
    "max_dag_depth": "Merges upon each other at most.",
    "split_cooldown_seconds": "Seconds between two splits.",
    "merge_cooldown_seconds": "Seconds between two merges.",
    "merge_window_seconds": "Seconds below the merge thresholds before a merge.",
    "split_rate_window_seconds": "Seconds over which the deciding rates are taken: 60, or 5 for fast reaction.",
    "split_factor_max": "Parts of one split at most.",
    "split_point": "Where a segment is cut.",
    "merge_factor_max": "Segments of one merge at most.",
    "hot_key_share": "Share of a segment's load from which on one key is hot.",
    "load_report_age_max_seconds": "Seconds for which the report of a broker that is gone counts.",
}
_UNITS = {"msg_rate_in": "messages/s in", "bytes_rate_in": "bytes/s in"} | {
    "msg_rate_out": "messages/s out",
    "bytes_rate_out": "bytes/s out",
}


def _help(name: str) -> str:
    for metric, unit in _UNITS.items():
        if name == f"split_{metric}_threshold":
            return f"Split a segment with more {unit}."
        if name == f"merge_{metric}_threshold":
            return f"Merge segments with less {unit}; 0: never."
    return _HELP[name]


def _option(name: str, kind: str) -> click.Option:
    types: dict[str, tuple[Any, str | None]] = {
        "bool": (click.BOOL, "true|false"),
        "int": (click.INT, "N"),
        "float": (click.FLOAT, "N"),
        "SplitPoint": (click.Choice([one.value for one in SplitPoint]), None),
    }
    made, metavar = types[kind]
    return option(f"--{name.replace('_', '-')}", name, type=made, metavar=metavar, help=_help(name))


def _policy(values: Values) -> dict[str, Any]:
    found = {json_name: values[name] for json_name, name in JSON_NAMES.items() if values[name] is not None}
    if not found:
        raise click.UsageError("give at least one field of the policy, for instance --max-segments 16")
    return found


def _options() -> tuple[click.Option, ...]:
    return tuple(_option(one.name, str(one.type)) for one in fields(AutoScalePolicy) if one.init)


def auto_scale_verbs(noun: str, path: str, place: str, target: str, what: str) -> tuple[Verb, ...]:
    """`place` names the target in an example, `target` is the name in the path."""
    return (
        Verb(
            name=f"get-{noun}",
            help=f"Auto-scale policy of a {what}: what is set, or what is in force.",
            path=path,
            options=(option("--applied", is_flag=True, help="The policy in force, with all fields."),),
            query={"applied": "applied"},
            example=f"{place} --applied",
        ),
        Verb(
            name=f"set-{noun}",
            help=f"Auto-scale policy of a {what}: set it. Fields that are not given come from the level above.",
            method="POST",
            path=path,
            options=_options(),
            body=_policy,
            done=f"set auto-scale policy of {{{target}}}",
            example=f"{place} --max-segments 16 --split-cooldown-seconds 10",
        ),
        Verb(
            name=f"remove-{noun}",
            help=f"Auto-scale policy of a {what}: go by the level above again.",
            method="DELETE",
            path=path,
            done=f"removed auto-scale policy of {{{target}}}",
            example=place,
        ),
    )


TOPIC_VERBS = auto_scale_verbs(
    "auto-scale-policy", "/admin/v2/scalable/{scalable_topic}/autoScalePolicy", "orders", "scalable_topic", "topic"
)
NAMESPACE_VERBS = auto_scale_verbs(
    "scalable-topic-auto-scale-policy",
    "/admin/v2/namespaces/{namespace}/scalableTopicAutoScalePolicy",
    "acme/orders",
    "namespace",
    "namespace",
)
