"""`anabranch admin metadata-migration`: moves the metadata of a running cluster to another store."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.verb import Values, Verb, group_of, option
from anabranch.cli.output.progress import with_progress
from anabranch.cli.output.tables import table
from anabranch.runtime.clock import SystemClock

_ROOT = "/admin/v2/metadata/migration"
_POLL_S = 0.25
_STEPS = {
    "PRE_COPY": "copying while writes go on",
    "VERIFY_TREE": "comparing the copy",
    "CLOSE_GATES": "writes wait; brokers prepare",
    "COPY_CHANGES": "writes wait; last changes",
    "SWITCH": "brokers switch",
    "DONE": "done",
}


class MigrationEnded(click.ClickException):
    """The migration failed."""


def _line(status: Any) -> str:
    counts = status["counts"]
    step = _STEPS.get(status["subPhase"], "")
    text = f"{status['phase']}: {step}; {counts['records']:,} records, {counts['value_bytes'] / 1e6:,.1f} MB"
    if counts["verified"]:
        text += f", {counts['verified']:,} compared"
    if status.get("recordsPerSecond"):
        text += f", {status['recordsPerSecond']:,.0f}/s"
    if status.get("restSeconds") is not None:
        text += f", about {status['restSeconds']:,.0f} s left of this step"
    if status["isBlocked"]:
        text += f", writes wait for {status['blockedSeconds']:.1f} s"
    if counts["changed"]:
        text += f", {counts['changed']:,} changed meanwhile"
    return text


def _start(admin: AdminClient, values: Values) -> Any:
    query = {"target": values["target"], "rate": values["rate"], "purgeTarget": values["purge_target"]}
    admin.call("POST", f"{_ROOT}/start", query=query)
    return _waited(admin) if values["wait"] else admin.call("GET", f"{_ROOT}/status").value


def _waited(admin: AdminClient) -> Any:
    clock = SystemClock()
    status = admin.call("GET", f"{_ROOT}/status").value

    async def poll() -> None:
        nonlocal status
        while status["phase"] != "FAILED" and not status.get("allSwitched"):
            await clock.sleep(_POLL_S)
            status = await asyncio.to_thread(lambda: admin.call("GET", f"{_ROOT}/status").value)

    asyncio.run(with_progress(poll(), lambda: _line(status), clock))
    if status["phase"] == "FAILED":
        raise MigrationEnded(f"the migration failed, the store in use is unchanged: {status['error']}")
    return status


def _shown(status: Any) -> str:
    if status["phase"] == "NOT_STARTED" and not status["subPhase"]:
        return "no migration of the metadata has run"
    rows = [
        ("phase", status["phase"]),
        ("step", _STEPS.get(status["subPhase"], "")),
        ("from", status["sourceUrl"]),
        ("to", status["targetUrl"]),
        ("attempt", status["attempt"]),
        ("coordinator", status["coordinator"]),
        ("records", f"{status['counts']['records']:,}"),
        ("value bytes", f"{status['counts']['value_bytes']:,}"),
        ("changed during the copy", f"{status['counts']['changed']:,}"),
        ("writes waited here", f"{status['blockedSeconds']:.3f} s{', waiting now' if status['isBlocked'] else ''}"),
        *((f"broker {name}", state) for name, state in sorted(status["participants"].items())),
    ]
    if status["error"]:
        rows.append(("error", status["error"]))
    text = table(("what", "value"), rows)
    if status.get("allSwitched"):
        text += f'\n\nSet this before the next restart of a broker:\n  [metadata]\n  url = "{status["targetUrl"]}"'
    return text


def _compared(found: Any) -> str:
    text = f"{found['source_records']:,} records in the source, {found['target_records']:,} in the target"
    if not found["different"]:
        return f"{text}: no difference"
    return f"{text}: {found['different']:,} keys differ, among them\n" + "\n".join(f"  {key}" for key in found["keys"])


MIGRATION = (
    Verb(
        name="start",
        help="Begin to move all metadata to another store. Clients and brokers go on; metadata writes wait for less "
        "than a second.",
        method="POST",
        path=f"{_ROOT}/start",
        options=(
            option("--target", metavar="URL", required=True, help="Metadata URL of the new store, which is empty."),
            option("--wait", is_flag=True, help="Show the progress and return when all brokers have switched."),
            option(
                "--rate",
                type=click.IntRange(min=0),
                metavar="N",
                help="Records per second at most; 0: no limit (default: yields when the broker is busy).",
            ),
            option("--purge-target", is_flag=True, help="Delete what an earlier migration has left in the target."),
        ),
        run=_start,
        show=_shown,
        example="--target etcd://127.0.0.1:2379/anabranch --wait",
    ),
    Verb(name="status", help="Phase, counts and brokers of the last migration.", path=f"{_ROOT}/status", show=_shown),
    Verb(
        name="abort",
        help="End a migration that is not decided. The store in use stays as it is.",
        method="POST",
        path=f"{_ROOT}/abort",
        done="the migration ends; the store in use stays",
    ),
    Verb(
        name="verify",
        help="Compare both stores of the last migration, record by record.",
        method="POST",
        path=f"{_ROOT}/verify",
        show=_compared,
    ),
)

metadata_migration = group_of("metadata-migration", "Move all metadata to another store.", MIGRATION)
