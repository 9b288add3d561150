"""Verbs of topic maintenance, as data: properties, compaction, termination, single messages."""

from __future__ import annotations

from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.subscriptions import TOPIC
from anabranch.cli.admin.verb import Values, Verb, filled, option
from anabranch.cli.output.peeked_message import messages_of
from anabranch.cli.output.tables import pairs
from anabranch.cli.param_types import Time, message_id_of, properties_of
from anabranch.runtime.clock import SystemClock

_ENDS = ("earliest", "latest")


def _message(path: str, query: dict[str, str] | None = None) -> Any:
    def run(admin: AdminClient, values: Values) -> Any:
        asked = {name: values[of] for name, of in (query or {}).items()}
        return messages_of(admin.call("GET", filled(path, values), query=asked))

    return run


def _message_id(admin: AdminClient, values: Values) -> Any:
    return admin.get(f"{filled(TOPIC, values)}/messageid/{SystemClock().now_ms() - values['time'] * 1000}")


CARE_VERBS = (
    Verb(name="get-properties", help="Properties of a topic.", path=TOPIC + "/properties", example="my-topic"),
    Verb(
        name="update-properties",
        help="Add properties to a topic.",
        method="PUT",
        path=TOPIC + "/properties",
        options=(option("-p", "--property", "properties", multiple=True, required=True, metavar="A=B", help="Which."),),
        body=lambda values: properties_of(values["properties"]),
        done="set properties of {topic}",
        example="my-topic -p owner=alice",
    ),
    Verb(
        name="remove-properties",
        help="Remove one property of a topic.",
        method="DELETE",
        path=TOPIC + "/properties",
        options=(option("-k", "--key", required=True, metavar="NAME", help="Which."),),
        query={"key": "key"},
        done="removed {key}",
        example="my-topic -k owner",
    ),
    Verb(
        name="unload",
        help="Close a topic; its clients come back by themselves.",
        method="PUT",
        path=TOPIC + "/unload",
        done="unloaded {topic}",
        example="my-topic",
    ),
    Verb(
        name="trim-topic",
        help="Drop consumed messages that are not retained.",
        method="POST",
        path=TOPIC + "/trim",
        done="trimmed {topic}",
        example="my-topic",
    ),
    Verb(
        name="truncate",
        help="Skip all backlogs and drop their messages. Cannot be undone.",
        method="DELETE",
        path=TOPIC + "/truncate",
        done="truncated {topic}",
        example="my-topic",
    ),
    Verb(
        name="compact",
        help="Begin to compact a topic: the last message of each key is kept.",
        method="PUT",
        path=TOPIC + "/compaction",
        done="compaction of {topic} has begun; see `anabranch admin topics compaction-status`",
        example="my-topic",
    ),
    Verb(
        name="compaction-status", help="How the last compaction went.", path=TOPIC + "/compaction", example="my-topic"
    ),
    Verb(
        name="partitioned-terminate",
        help="End every partition of a topic.",
        method="POST",
        path=TOPIC + "/terminate/partitions",
        example="my-topic",
    ),
    Verb(name="last-message-id", help="Id of the last message.", path=TOPIC + "/lastMessageId", example="my-topic"),
    Verb(
        name="get-message-id",
        help="The first message published since some time ago.",
        path=TOPIC + "/messageid",
        options=(option("-t", "--time", type=Time(), required=True, help="Ago: 10m, 3h, 7d."),),
        run=_message_id,
        example="my-topic --time 1h",
    ),
    Verb(
        name="get-message-by-id",
        help="One entry by its id.",
        path=TOPIC + "/ledger/{ledger}/entry/{entry}",
        options=(
            option("-l", "--ledgerId", "ledger", type=int, required=True, metavar="N", help="Its ledger."),
            option("-e", "--entryId", "entry", type=int, required=True, metavar="N", help="Its number there."),
        ),
        run=_message(TOPIC + "/ledger/{ledger}/entry/{entry}"),
        example="my-topic -l 12 -e 0",
    ),
    Verb(
        name="examine-messages",
        help="One entry, counted from either end.",
        path=TOPIC + "/examinemessage",
        options=(
            option("-i", "--initialPosition", "start", type=click.Choice(_ENDS), default="latest", help="Which end."),
            option(
                "-m", "--messagePosition", "number", type=click.IntRange(min=1), default=1, metavar="N", help="Which."
            ),
        ),
        run=_message(TOPIC + "/examinemessage", {"initialPosition": "start", "messagePosition": "number"}),
        example="my-topic -i earliest -m 3",
    ),
    Verb(
        name="get-backlog-size",
        help="Bytes after a message.",
        method="PUT",
        path=TOPIC + "/backlogSize",
        options=(option("-m", "--messageId", "message_id", required=True, metavar="ID", help="ledger:entry."),),
        body=lambda values: message_id_of(values["message_id"]),
        example="my-topic -m 12:0",
    ),
    Verb(
        name="info-internal",
        help="Ledgers and cursors of a topic, short.",
        path=TOPIC + "/internal-info",
        show=pairs,
        example="my-topic",
    ),
    Verb(
        name="partitioned-stats-internal",
        help="Ledgers and cursors of all partitions.",
        path=TOPIC + "/partitioned-internalStats",
        show=pairs,
        example="my-topic",
    ),
    Verb(
        name="expire-messages-all-subscriptions",
        help="Count old messages as acknowledged, for every subscription.",
        method="POST",
        path=TOPIC + "/all_subscription/expireMessages/{seconds}",
        options=(option("-t", "--expireTime", "seconds", type=Time(), required=True, help="Older than: 10m, 3h, 7d."),),
        done="expired messages of {topic}",
        example="my-topic --expireTime 7d",
    ),
)
