"""`anabranch spark`: pipeline jobs from the command line. Reads options, prints; the jobs are in `anabranch.spark`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.table import pairs, table

if TYPE_CHECKING:
    from anabranch.spark.copying import CopyProgress

EXIT_UNSOUND = 1


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
        click.option("--master", metavar="URL", help="Spark master, or sc://… of Spark Connect (default: local[*])."),
        click.option("--token", envvar="ANABRANCH_TOKEN", metavar="TOKEN", help="Token to sign in with."),
        click.option(
            "--service-url",
            envvar="ANABRANCH_SERVICE_URL",
            default="pulsar://127.0.0.1:6650",
            show_default=True,
            metavar="URL",
            help="Where the brokers are.",
        ),
    ):
        command = option(command)
    return command


@click.group("spark", context_settings={"help_option_names": ["-h", "--help"]})
def spark() -> None:
    """Pipeline jobs on Spark: copy, audit, stats."""


@spark.command()
@click.argument("source")
@click.argument("target")
@click.option("--checkpoint", required=True, metavar="DIR", help="Where the job keeps how far it is; needed to go on.")
@click.option("--target-url", metavar="URL", help="Brokers of the target, when it is another cluster.")
@click.option("--from", "start", default="earliest", show_default=True, type=click.Choice(["earliest", "latest"]))
@click.option("--delivery", default="effectively-once", type=click.Choice(["effectively-once", "at-least-once"]))
@click.option("--rows-per-batch", default=1_000_000, show_default=True, type=click.IntRange(1))
@_common
def copy(
    source: str,
    target: str,
    checkpoint: str,
    target_url: str | None,
    start: str,
    delivery: str,
    rows_per_batch: int,
    service_url: str,
    token: str | None,
    master: str | None,
    as_json: bool,
) -> None:
    """Copy topic to topic, topic to Parquet, or Parquet to topic: everything there is now, once.

    SOURCE and TARGET are topics or parquet:FOLDER. Run again with the same --checkpoint, it goes on where it stopped.
    """
    from anabranch.spark.copying import CopyJob
    from anabranch.spark.copying import copy as run
    from anabranch.spark.session import open_session

    options = {"delivery": delivery, **_client(token)}
    if target.startswith("parquet:"):
        del options["delivery"]
    job = CopyJob(service_url, source, target, checkpoint, target_url, start, rows_per_batch, options)
    session = open_session(master, "anabranch copy")
    try:
        done = run(session, job, _watch if sys.stderr.isatty() else None)
    finally:
        session.stop()
    found = {"rows": done.rows, "batches": done.batches, "source": done.source, "target": done.target}
    click.echo(json.dumps(found) if as_json else pairs(found))


@spark.command()
@click.argument("topic")
@click.option("--counter", metavar="FIELD", help="Field of JSON values that counts each key's messages from 0.")
@_common
def audit(
    topic: str, counter: str | None, service_url: str, token: str | None, master: str | None, as_json: bool
) -> int:
    """Check that a topic is complete, has nothing twice, and keeps every key in order. Exit code 1 when it does not."""
    from anabranch.spark.auditing import audit as run
    from anabranch.spark.session import open_session

    session = open_session(master, "anabranch audit")
    try:
        verdict = run(session, service_url, topic, counter=counter, options=_client(token))
    finally:
        session.stop()
    if as_json:
        click.echo(json.dumps(verdict.as_dict()))
    else:
        found = verdict.as_dict()
        del found["offenders"]
        click.echo(pairs(found))
        if verdict.offenders:
            rows = [(one.check, one.producer, one.key, one.detail) for one in verdict.offenders]
            click.echo("\n" + table(("check", "producer", "key", "what"), rows))
        click.echo("\nsound" if verdict.is_sound else "\nNOT SOUND")
    return 0 if verdict.is_sound else EXIT_UNSOUND


@spark.command()
@click.argument("topic")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw it, too: a .png or .svg file.")
@_common
def stats(
    topic: str, picture: Path | None, service_url: str, token: str | None, master: str | None, as_json: bool
) -> None:
    """Show how a topic's messages lie over segments, keys and time, and where it would split well."""
    from anabranch.spark.figures import stats as run
    from anabranch.spark.picture import draw
    from anabranch.spark.session import open_session

    session = open_session(master, "anabranch stats")
    try:
        figures = run(session, service_url, topic, options=_client(token))
    finally:
        session.stop()
    if picture is not None:
        draw(figures, picture)
    if as_json:
        click.echo(json.dumps(figures.as_dict()))
        return
    sums = {"topic": figures.topic, "messages": figures.messages, "bytes": figures.bytes, "keys": figures.keys}
    click.echo(pairs({**sums, "skew": figures.skew}))
    heads = ("segment", "messages", "bytes", "keys", "share %", "split at")
    rows = [
        (one.segment, one.messages, one.bytes, one.keys, one.share * 100, _ring(one.split_at))
        for one in figures.segments
    ]
    click.echo("\n" + table(heads, rows))
    hot = [(one.key, one.messages, one.bytes, one.segment) for one in figures.hot_keys]
    click.echo("\n" + table(("hot key", "messages", "bytes", "segment"), hot))


def _ring(position: int | None) -> str:
    return "-" if position is None else f"{position:04x}"


def _client(token: str | None) -> dict[str, str]:
    return {} if token is None else {"client.token": token}


def _watch(progress: CopyProgress) -> None:
    ahead = "" if progress.backlog_rows is None else f", {progress.backlog_rows:,} ahead"
    click.echo(f"\r\x1b[K{progress.rows:,} rows, {progress.rows_per_second:,.0f}/s{ahead}", nl=False, err=True)
