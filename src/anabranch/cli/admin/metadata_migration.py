"""`anabranch admin metadata-migration`: moves the metadata of a running cluster to another store."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import Refused, Unreachable
from anabranch.cli.admin.verb import Values, Verb, group_of, option
from anabranch.cli.output.progress import with_progress
from anabranch.cli.output.tables import table
from anabranch.runtime.clock import SystemClock

_ROOT = "/admin/v2/metadata/migration"
_POLL_S = 0.25
_SILENT_S = 15.0
"""Longer than a busy broker takes to answer, and than the lease of a coordinator that has ended."""

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
    text = f"{status['phase']}: {step}; {counts['records']:,}{_of(status)} records"
    text += f", {counts['value_bytes'] / 1e6:,.1f} MB"
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


def _of(status: Any) -> str:
    """Not after the copy, because the source's own keys were counted too."""
    expected = status["counts"]["expected"]
    return f" of about {expected:,}" if expected and status["subPhase"] == "PRE_COPY" else ""


def _start(admin: AdminClient, values: Values) -> Any:
    query = {"target": values["target"], "rate": values["rate"], "purgeTarget": values["purge_target"]}
    admin.call("POST", f"{_ROOT}/start", query=query)
    return _waited(admin) if values["wait"] else admin.call("GET", f"{_ROOT}/status").value


def _waited(admin: AdminClient) -> Any:
    clock = SystemClock()
    status: Any = None

    async def poll() -> None:
        nonlocal status
        answered = clock.monotonic()
        while status is None or (status["phase"] != "FAILED" and not status.get("allSwitched")):
            if (found := await asyncio.to_thread(_asked, admin)) is not None:
                status, answered = found, clock.monotonic()
            elif clock.monotonic() > answered + _SILENT_S:
                raise MigrationEnded(
                    "the broker that coordinates the migration does not answer. If it has ended, the attempt fails "
                    "within seconds, unless it was already decided. Look at another broker: "
                    "anabranch admin metadata-migration status --admin-url URL"
                )
            await clock.sleep(_POLL_S)

    asyncio.run(with_progress(poll(), lambda: _line(status) if status else "started", clock))
    if status["phase"] == "FAILED":
        raise MigrationEnded(
            f"the migration failed, the store in use is unchanged: {status['error']}. Start it again at any broker, "
            "with this target (--purge-target deletes what the attempt has left there) or another"
        )
    return status


def _asked(admin: AdminClient) -> Any:
    """The status; None while the broker cannot be asked."""
    try:
        return admin.call("GET", f"{_ROOT}/status").value
    except Unreachable:
        return None
    except Refused as error:
        if not error.retryable:
            raise
        return None


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
        ("records", f"{status['counts']['records']:,}{_of(status)}"),
        ("value bytes", f"{status['counts']['value_bytes']:,}"),
        ("changed during the copy", f"{status['counts']['changed']:,}"),
        ("writes waited here", _blocked(status)),
        *((f"broker {name}", state) for name, state in sorted(status["participants"].items())),
    ]
    if status.get("recordsPerSecond"):
        rows.append(("records per second", f"{status['recordsPerSecond']:,.0f}"))
    if status.get("restSeconds") is not None:
        rows.append(("left of this step", f"about {status['restSeconds']:,.0f} s"))
    if status["error"]:
        rows.append(("error", status["error"]))
    text = table(("what", "value"), rows)
    if status.get("pending"):
        text += f"\n\nNot switched yet: {', '.join(status['pending'])}"
    if settings := status.get("settings"):
        url = json.dumps(settings["metadata.url"], ensure_ascii=False)
        text += f"\n\nSet this for every broker before its next restart:\n  [metadata]\n  url = {url}"
    return text


def _blocked(status: Any) -> str:
    seconds = f"{status['blockedSeconds']:.3f} s"
    if not status["isBlocked"]:
        return seconds
    since = datetime.fromtimestamp(status["blockedSinceMs"] / 1000, UTC)
    return f"{seconds}, waiting now, since {since:%H:%M:%S} UTC: topics, policies, splits and other metadata"


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
