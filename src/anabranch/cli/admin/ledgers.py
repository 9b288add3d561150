"""`anabranch admin ledgers`: ledgers on Apache BookKeeper, their copies, what is wrong with them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.verb import Values, Verb, group_of, option
from anabranch.cli.output.tables import table

_ROOT = "/anabranch/v1/ledgers"
_LISTED = 20  # ledgers of one kind that `check` shows


def _list(admin: AdminClient, values: Values) -> Any:
    """Page by page, until the limit or the end."""
    rows: list[Any] = []
    after, left = values["after"], values["limit"]
    while left > 0:
        query = {"limit": min(left, 1000), **({} if after is None else {"after": after})}
        page = admin.call("GET", _ROOT, query=query).value
        rows += page["ledgers"]
        after, left = page["next"], left - len(page["ledgers"])
        if after is None:
            break
    return rows


def _created(row: Any) -> str:
    return f"{datetime.fromtimestamp(row['createdMs'] / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _copies(row: Any) -> str:
    if row["copies"] is None:
        return "-"
    away = f", away: {', '.join(row['away'])}" if row["away"] else ""
    return f"{row['copies']} of {row['writeQuorum']}{away}"


def _shown_list(rows: Any) -> str:
    if not rows:
        return "no ledgers"
    return table(
        ("ledger", "state", "entries", "bytes", "copies", "created (UTC)", "of"),
        [
            (
                row["ledger"],
                row["state"],
                "-" if row["entries"] is None else f"{row['entries']:,}",
                "-" if row["bytes"] is None else f"{row['bytes']:,}",
                _copies(row),
                _created(row),
                "this cluster" if row["isOwn"] else "others",
            )
            for row in rows
        ],
    )


def _shown_one(row: Any) -> str:
    what = [
        ("ledger", row["ledger"]),
        ("state", row["state"]),
        ("topic", row["topic"] or "none names it"),
        ("use", row["use"] or "-"),
        ("entries", "-" if row["entries"] is None else f"{row['entries']:,}"),
        ("bytes", "-" if row["bytes"] is None else f"{row['bytes']:,}"),
        ("quorums", f"ensemble {row['ensemble']}, write {row['writeQuorum']}, ack {row['ackQuorum']}"),
        ("copies", _copies(row)),
        ("created (UTC)", _created(row)),
    ]
    replicas = [
        (one["firstEntry"], one["bookie"], one["state"], "-" if one["entry"] is None else one["entry"], one["answer"])
        for one in row["replicas"]
    ]
    heads = ("from entry", "bookie", "it is", "asked for", "answer")
    return f"{table(('what', 'value'), what)}\n\n{table(heads, replicas)}"


def _shown_check(found: Any) -> str:
    bookies = ", ".join(f"{one} ({state})" for one, state in found["bookies"].items()) or "none"
    lines = [
        f"bookies: {bookies}",
        f"{found['ledgers']:,} ledgers of this cluster ({found['open']:,} open, {found['bytes']:,} bytes), "
        f"{found['foreign']:,} of others",
    ]
    kinds = (
        ("underReplicated", "under-replicated", "copies are missing; BookKeeper's autorecovery makes new ones"),
        ("missing", "missing", "a topic needs them and BookKeeper does not have them"),
        ("orphans", "orphaned", "no topic names them; delete them with --delete-orphans"),
    )
    for name, word, meaning in kinds:
        kind = found[name]
        if not kind["count"]:
            lines.append(f"none is {word}")
            continue
        lines.append(f"{kind['count']:,} {word} ({meaning}):")
        lines += [
            f"  {row['ledger']}" + (f"  {row['topic']} ({row['use']})" if row["topic"] else "")
            for row in kind["ledgers"][:_LISTED]
        ]
        if kind["count"] > _LISTED:
            lines.append(f"  and {kind['count'] - _LISTED:,} more (--json lists up to 1,000)")
    return "\n".join(lines)


def _check(admin: AdminClient, values: Values) -> Any:
    query = {"orphanAgeSeconds": values["orphan_age"]}
    if values["delete_orphans"]:
        return admin.call("DELETE", f"{_ROOT}/orphans", query={**query, "dryRun": "false"}).value
    return admin.call("GET", f"{_ROOT}/check", query=query).value


def _shown_check_or_deletion(found: Any) -> str:
    if "deleted" not in found:
        return _shown_check(found)
    lines = [f"deleted {len(found['deleted']):,} orphaned ledgers: {_ids(found['deleted'])}"]
    lines += [f"not deleted: ledger {ledger}: {reason}" for ledger, reason in found["failed"].items()]
    if found["left"]:
        lines.append(f"{found['left']:,} are left; repeat the command")
    return "\n".join(lines)


def _ids(ledgers: list[int]) -> str:
    return ", ".join(map(str, ledgers)) or "-"


LEDGERS = (
    Verb(
        name="list",
        help="Ledgers by id: state, size, copies.",
        path=_ROOT,
        options=(
            option("--after", type=click.IntRange(min=0), metavar="ID", help="Only ledgers with higher ids."),
            option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many."),
        ),
        run=_list,
        show=_shown_list,
    ),
    Verb(
        name="show",
        help="A ledger, its topic, and what each bookie answers about its copy.",
        path=f"{_ROOT}/{{ledger_id}}",
        show=_shown_one,
        example="1042",
    ),
    Verb(
        name="check",
        help="Find under-replicated, missing and orphaned ledgers. Nothing is changed without --delete-orphans.",
        path=f"{_ROOT}/check",
        options=(
            option("--delete-orphans", is_flag=True, help="Delete the ledgers that `check` calls orphaned."),
            option(
                "--orphan-age",
                type=click.IntRange(min=0),
                default=3600,
                show_default=True,
                metavar="SECONDS",
                help="Younger ledgers are no orphans: they may be announced soon.",
            ),
        ),
        run=_check,
        show=_shown_check_or_deletion,
    ),
    Verb(
        name="recover",
        help="Close an open ledger, which fences its writer. Its topic continues in a new ledger.",
        method="POST",
        path=f"{_ROOT}/{{ledger_id}}/recover",
        show=lambda row: f"ledger {row['ledger']} is closed with {row['entries']:,} entries",
        example="1042",
    ),
)

ledgers = group_of("ledgers", "Ledgers on Apache BookKeeper.", LEDGERS)
