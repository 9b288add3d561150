"""`anabranch admin scalable-topics`: its verbs, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from anabranch.admin.client import AdminClient, Answer, segment_ids
from anabranch.cli.admin.auto_scale import TOPIC_VERBS
from anabranch.cli.admin.topic_migration import MIGRATION_VERBS
from anabranch.cli.admin.verb import Values, Verb, filled, group_of, option
from anabranch.cli.output.autoscaling import explain_view
from anabranch.cli.output.scalable_topic import layout_table, stats_view, subscription_view
from anabranch.cli.param_types import Time, properties_of, words_of
from anabranch.runtime.clock import SystemClock

_NAMESPACE = "/admin/v2/scalable/{namespace}"
_TOPIC = "/admin/v2/scalable/{scalable_topic}"
_SUBSCRIPTION = _TOPIC + "/subscriptions/{subscription}"


def _subscription() -> click.Option:
    return option("-s", "--subscription", required=True, metavar="NAME", help="The subscription.")


def _properties(text: str) -> click.Option:
    return option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help=text)


def _list(admin: AdminClient, values: Values) -> Any:
    wanted = [f"{name}={value}" for name, value in properties_of(values["properties"]).items()]
    return admin.get(filled(_NAMESPACE, values), {"property": wanted})


def _split(admin: AdminClient, values: Values) -> Any:
    if values["into"] is not None and values["at"] is not None:
        raise click.UsageError("give either --into or --at")
    path = filled(_TOPIC + "/split/{segment_id}", values)
    answer = admin.call("POST", path, query={"into": values["into"], "at": values["at"]})
    return _operated([values["segment_id"]], answer)


def _operated(parents: Sequence[int], answer: Answer) -> dict[str, Any]:
    return {"parentIds": [*parents], "childIds": list(segment_ids(answer))}


def _operation_line(answer: dict[str, Any]) -> str:
    """`segment 0 became segments 1, 2`. A broker of Apache Pulsar does not tell the new ids."""
    became = f" became {_segments(answer['childIds'])}" if answer["childIds"] else ": done"
    return _segments(answer["parentIds"]) + became


def _segments(ids: Sequence[int]) -> str:
    return f"segment{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"


def _merge(admin: AdminClient, values: Values) -> Any:
    pair = [one for one in (values["first"], values["second"]) if one is not None]
    ids = [str(one) for one in pair] + words_of(values["segments"])
    if len(ids) < 2 or len(pair) == 1:
        raise click.UsageError("name the neighbours: -s 1,2,3 or --segment-id-1 1 --segment-id-2 2")
    answer = admin.call("POST", filled(_TOPIC + "/merge", values), query={"segments": ",".join(ids)})
    return _operated([int(one) for one in ids], answer)


def _seek(admin: AdminClient, values: Values) -> Any:
    since = SystemClock().now_ms() - values["time"] * 1000
    return admin.post(filled(_SUBSCRIPTION + "/seek", values), query={"timestamp": since})


SCALABLE_TOPICS = (
    Verb(
        name="list",
        help="Scalable topics of a namespace.",
        path=_NAMESPACE,
        options=(_properties("Only topics with this property; may be given several times."),),
        run=_list,
        example="public/default -p team=orders",
    ),
    Verb(
        name="create",
        help="Create a scalable topic.",
        method="PUT",
        path=_TOPIC,
        options=(
            option(
                "-s",
                "--segments",
                type=click.IntRange(min=1),
                default=1,
                metavar="N",
                help="Segments to begin with (default: 1).",
            ),
            _properties("A property to keep with it; may be given several times."),
        ),
        query={"numInitialSegments": "segments"},
        body=lambda values: properties_of(values["properties"]),
        done="created {scalable_topic}",
        example="orders -s 4 -p team=orders",
    ),
    Verb(
        name="delete",
        help="Delete a scalable topic with all its segments and subscriptions.",
        method="DELETE",
        path=_TOPIC,
        options=(option("-f", "--force", is_flag=True, help="Also while producers or consumers are attached."),),
        query={"force": "force"},
        done="deleted {scalable_topic}",
        example="orders",
    ),
    Verb(
        name="get-metadata",
        help="The segments of a topic, sealed and active.",
        path=_TOPIC,
        show=layout_table,
        example="orders",
    ),
    Verb(
        name="stats",
        help="Rates, backlog, brokers and the running operation.",
        path=_TOPIC + "/stats",
        show=stats_view,
        example="orders",
    ),
    Verb(
        name="split-segment",
        help="Split an active segment: in two at the middle, into K equal parts, or at given ring positions.",
        method="POST",
        path=_TOPIC + "/split/{segment_id}",
        options=(
            option("-s", "--segment-id", required=True, type=click.IntRange(min=0), metavar="ID", help="The segment."),
            option("--into", type=click.IntRange(min=2), metavar="K", help="Equal parts (default: 2)."),
            option("--at", metavar="HEX,HEX…", help="Where the further parts begin, as in 4000,c000."),
        ),
        run=_split,
        show=_operation_line,
        example="orders -s 0 --into 4",
    ),
    Verb(
        name="merge-segments",
        help="Merge a run of neighbouring active segments into one.",
        method="POST",
        path=_TOPIC + "/merge",
        options=(
            option("-s", "--segments", metavar="A,B,C…", help="Two or more segments, in any order."),
            option("--segment-id-1", "first", type=click.IntRange(min=0), metavar="A", help="As pulsar-admin has it."),
            option("--segment-id-2", "second", type=click.IntRange(min=0), metavar="B", help="The same."),
        ),
        run=_merge,
        show=_operation_line,
        example="orders -s 1,2",
    ),
    Verb(
        name="create-subscription",
        help="Create a subscription on the whole topic; segments that come later have it too.",
        method="PUT",
        path=_SUBSCRIPTION,
        options=(
            _subscription(),
            option(
                "-t",
                "--type",
                "kind",
                type=click.Choice(["STREAM", "QUEUE", "CHECKPOINT"], case_sensitive=False),
                default="STREAM",
                help="What kind of consumers it is for (default: STREAM).",
            ),
            option(
                "--from",
                "start",
                type=click.Choice(["earliest", "latest"]),
                default="earliest",
                help="Where it begins (default: earliest).",
            ),
        ),
        query={"type": "kind", "start": "start"},
        done="created subscription {subscription}",
        example="orders -s audit",
    ),
    Verb(
        name="delete-subscription",
        help="Delete a subscription from all segments.",
        method="DELETE",
        path=_SUBSCRIPTION,
        options=(_subscription(), option("-f", "--force", is_flag=True, help="Also while consumers are attached.")),
        query={"force": "force"},
        done="deleted subscription {subscription}",
        example="orders -s audit",
    ),
    Verb(
        name="get-subscription",
        help="Sessions, assignment, drained segments and backlog of a subscription.",
        path=_SUBSCRIPTION,
        options=(_subscription(),),
        show=subscription_view,
        example="orders -s audit",
    ),
    Verb(
        name="seek",
        help="Take a subscription back to what was published a while ago, on all segments.",
        method="POST",
        path=_SUBSCRIPTION + "/seek",
        options=(
            _subscription(),
            option("-t", "--time", type=Time(), required=True, metavar="TIME", help="How long ago: 30s, 10m, 1h."),
        ),
        run=_seek,
        done="moved subscription {subscription}",
        example="orders -s audit -t 1h",
    ),
    Verb(
        name="clear-backlog",
        help="Let a subscription skip everything that is there, on all segments.",
        method="POST",
        path=_SUBSCRIPTION + "/skip-all",
        options=(_subscription(),),
        done="cleared the backlog of {subscription}",
        example="orders -s audit",
    ),
    *MIGRATION_VERBS,
    *TOPIC_VERBS,
    Verb(
        name="explain",
        help="What auto-scaling would do with the topic now, what keeps it from doing more, and its last decisions.",
        path=_TOPIC + "/autoscale",
        show=explain_view,
        example="orders",
    ),
)

scalable_topics = group_of(
    "scalable-topics", "Topics that split and merge. A short name means topic://public/default/NAME.", SCALABLE_TOPICS
)
