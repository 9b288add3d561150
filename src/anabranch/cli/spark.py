"""`anabranch spark`: parses options of pipeline jobs and prints results. The jobs are in `anabranch.spark`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.lazy_group import SuggestingGroup
from anabranch.cli.output.stderr_capture import captured_stderr
from anabranch.cli.output.tables import pairs, table
from anabranch.cli.output.terminal import say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.spark.jobs.copy import CopyProgress
    from anabranch.spark.jobs.simulate import Simulation

EXIT_UNSOUND = 1


@dataclass(frozen=True, slots=True)
class _Job:
    """Options of every job: addresses of brokers and Spark, and the output format."""

    service_url: str
    admin_url: str | None
    token: str | None = field(repr=False)
    master: str | None
    verbose: bool
    as_json: bool

    @property
    def options(self) -> dict[str, str]:
        """For reading from and writing to `service_url`."""
        return self.credentials if self.admin_url is None else {**self.credentials, "adminUrl": self.admin_url}

    @property
    def credentials(self) -> dict[str, str]:
        return {} if self.token is None else {"client.token": self.token}

    @contextmanager
    def session(self, name: str) -> Iterator[SparkSession]:
        from anabranch.spark.jobs.session import job_session

        with captured_stderr(is_off=self.verbose), job_session(self.master, f"anabranch {name}") as session:
            yield session


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def wrapped(
        *,
        service_url: str,
        admin_url: str | None,
        token: str | None,
        master: str | None,
        verbose: bool,
        as_json: bool,
        **given: Any,
    ) -> Any:
        return command(job=_Job(service_url, admin_url, token, master, verbose, as_json), **given)

    made: Callable[..., Any] = wrapped
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
        click.option("--verbose", is_flag=True, help="Show what Spark itself has to say."),
        click.option("--master", metavar="URL", help="Spark master, or sc://… of Spark Connect (default: local[*])."),
        click.option("--token", envvar="ANABRANCH_TOKEN", metavar="TOKEN", help="Token to sign in with."),
        click.option(
            "--admin-url",
            envvar="ANABRANCH_ADMIN_URL",
            metavar="URL",
            help="REST of an Apache Pulsar cluster, for counts and checks that its binary protocol lacks.",
        ),
        click.option(
            "--service-url",
            envvar="ANABRANCH_SERVICE_URL",
            default="pulsar://127.0.0.1:6650",
            show_default=True,
            metavar="URL",
            help="Where the brokers are.",
        ),
    ):
        made = option(made)
    return made


@click.group("spark", cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]})
def spark() -> None:
    """Pipeline jobs on Spark: copy, audit, stats, simulate."""


@spark.command()
@click.argument("source")
@click.argument("target")
@click.option("--checkpoint", required=True, metavar="DIR", help="Where the job keeps how far it is; needed to go on.")
@click.option("--target-url", metavar="URL", help="Brokers of the target, when it is another cluster.")
@click.option("--target-admin-url", metavar="URL", help="REST of the target, when it is another cluster on Pulsar.")
@click.option("--from", "start", default="earliest", show_default=True, type=click.Choice(["earliest", "latest"]))
@click.option("--delivery", default="effectively-once", type=click.Choice(["effectively-once", "at-least-once"]))
@click.option("--rows-per-batch", default=1_000_000, show_default=True, type=click.IntRange(0), help="0: no limit.")
@_common
def copy(
    source: str,
    target: str,
    checkpoint: str,
    target_url: str | None,
    target_admin_url: str | None,
    start: str,
    delivery: str,
    rows_per_batch: int,
    job: _Job,
) -> None:
    """Copy topic to topic, topic to Parquet, or Parquet to topic: everything there is now, once.

    SOURCE and TARGET are topics or parquet:FOLDER. Run again with the same --checkpoint, it goes on where it stopped.
    """
    from anabranch.spark.jobs.copy import CopyJob
    from anabranch.spark.jobs.copy import copy as run

    options = {"delivery": delivery, **job.credentials}
    if target.startswith("parquet:"):
        del options["delivery"]
    work = CopyJob(
        job.service_url,
        source,
        target,
        checkpoint,
        target_url,
        start,
        rows_per_batch,
        options,
        admin_url=job.admin_url,
        target_admin_url=target_admin_url,
    )
    try:
        with job.session("copy") as session:
            done = run(session, work, _watch if sys.stderr.isatty() else None)
            if sys.stderr.isatty():
                click.echo("\r\x1b[K", nl=False, err=True)
    except KeyboardInterrupt:
        say("anabranch: interrupted; the same command goes on where it stopped", err=True)
        raise
    found = {"rows": done.rows, "batches": done.batches, "source": done.source, "target": done.target}
    say(json.dumps(found) if job.as_json else pairs(found))


@spark.command()
@click.argument("topic")
@click.option("--counter", metavar="FIELD", help="Field of JSON values that counts each key's messages from 0.")
@_common
def audit(
    topic: str,
    counter: str | None,
    job: _Job,
) -> int:
    """Check that a topic is complete, has nothing twice, and keeps every key in order. Exit code 1 when it does not."""
    from anabranch.spark.jobs.audit import audit as run

    with job.session("audit") as session:
        verdict = run(session, job.service_url, topic, counter=counter, options=job.options)
    if job.as_json:
        say(json.dumps(verdict.as_dict()))
    else:
        found = verdict.as_dict()
        del found["offenders"], found["sound"]
        say(pairs({name.replace("_", " "): one for name, one in found.items()}))
        if verdict.offenders:
            rows = [(one.check, one.producer, one.key, one.detail) for one in verdict.offenders]
            say("\n" + table(("check", "producer", "key", "what"), rows))
        say("\nsound" if verdict.is_sound else "\nNOT SOUND")
    return 0 if verdict.is_sound else EXIT_UNSOUND


@spark.command()
@click.argument("topic")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw it, too: a .png or .svg file.")
@_common
def stats(
    topic: str,
    picture: Path | None,
    job: _Job,
) -> None:
    """Show how a topic's messages lie over segments, keys and time, and where it would split well."""
    from anabranch.spark.jobs.plots import check_picture, draw
    from anabranch.spark.jobs.stats import stats as run

    if picture is not None:
        check_picture(picture)
    with job.session("stats") as session:
        figures = run(session, job.service_url, topic, options=job.options)
    if picture is not None:
        draw(figures, picture)
    if job.as_json:
        say(json.dumps(figures.as_dict()))
        return
    sums = {"topic": figures.topic, "messages": figures.messages, "bytes": figures.bytes, "keys": figures.keys}
    say(pairs({**sums, "skew": figures.skew}))
    heads = ("segment", "state", "range", "messages", "bytes", "keys", "share %", "split at")
    rows = [
        (
            one.segment,
            "active" if one.is_active else "sealed",
            f"{one.hash_start:04x}-{one.hash_end:04x}",
            one.messages,
            one.bytes,
            one.keys,
            one.share * 100,
            _ring(one.split_at),
        )
        for one in figures.segments
    ]
    say("\n" + table(heads, rows))
    hot = [(one.key, one.messages, one.bytes, one.segment) for one in figures.hot_keys]
    say("\n" + table(("hot key", "messages", "bytes", "segment"), hot))


@spark.command()
@click.argument("topic", required=False)
@click.option("--scenario", metavar="NAME", help="A synthetic day instead of a topic: steady, diurnal, bursts, …")
@click.option("--policy", "settings", multiple=True, metavar="NAME=VALUE", help="Of the policy, as REST names it.")
@click.option(
    "--compare",
    "others",
    multiple=True,
    metavar="TITLE:NAME=VALUE,…",
    help="Another policy on the same traffic; may be given several times.",
)
@click.option("--segments", default=1, show_default=True, type=click.IntRange(1), help="Segments to begin with.")
@click.option("--readers", default=0, show_default=True, type=click.IntRange(0), help="Subscriptions that read it all.")
@click.option("--tick", default=10.0, show_default=True, type=click.FloatRange(min=0.001), help="Seconds of a step.")
@click.option("--times", default=1.0, show_default=True, type=float, help="As much traffic as there was.")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw it, too: a .png or .svg file.")
@_common
def simulate(
    topic: str | None,
    scenario: str | None,
    settings: tuple[str, ...],
    others: tuple[str, ...],
    segments: int,
    readers: int,
    tick: float,
    times: float,
    picture: Path | None,
    job: _Job,
) -> None:
    """Show what a scaling policy would have done with a topic's traffic, or would do on a synthetic day: splits,
    merges, how long segments were too busy. Nothing is changed. Policies have the fields of PIP-483, for instance
    maxSegments=16, and ours."""
    from anabranch.spark.jobs.plots import check_picture, draw_simulations
    from anabranch.spark.jobs.scaling_policy import ScalePolicy
    from anabranch.spark.jobs.simulate import recorded, synthetic

    if (topic is None) == (scenario is None):
        raise click.UsageError("give either a topic or --scenario")
    if picture is not None:
        check_picture(picture)
    policies = {"policy": ScalePolicy.of(dict(_setting(one) for one in settings))}
    for text in others:
        title, given = _titled(text)
        policies[title] = ScalePolicy.of(given)
    if topic is None:
        traffic = synthetic(str(scenario), tick_seconds=tick, times=times)
    else:
        with job.session("simulate") as session:
            traffic = recorded(session, job.service_url, topic, tick_seconds=tick, times=times, options=job.options)
    found = {title: traffic.replay(one, segments=segments, readers=readers) for title, one in policies.items()}
    if picture is not None:
        draw_simulations(found, picture)
    if len(found) == 1:
        _show_simulation(found["policy"], job.as_json)
    elif job.as_json:
        say(json.dumps({title: one.as_dict() for title, one in found.items()}))
    else:
        _compare_simulations(found)


def _show_simulation(found: Simulation, as_json: bool) -> None:
    sums = found.as_dict()
    if as_json:
        say(json.dumps(sums))
        return
    for name in ("policy", "steps", "ticks"):
        del sums[name]
    say(pairs({name.replace("_", " "): one for name, one in sums.items()}))
    if found.steps:
        rows = [
            (f"{one.at:,.0f} s", one.kind, _ids(one.parents), _ids(one.children), one.reason) for one in found.steps
        ]
        say("\n" + table(("at", "what", "of", "into", "because of"), rows))


def _compare_simulations(found: Mapping[str, Simulation]) -> None:
    heads = ("policy", "splits", "merges", "changes/day", "segments", "at the end", "s above", "% above", "wasted h")
    rows = [
        (
            title,
            one.splits,
            one.merges,
            one.changes_per_day,
            one.segments_most,
            one.segments_last,
            one.seconds_above,
            100 * one.seconds_above / one.seconds if one.seconds else 0.0,
            one.wasted_segment_hours,
        )
        for title, one in found.items()
    ]
    say(table(heads, rows))


def _titled(text: str) -> tuple[str, dict[str, str]]:
    """`eager:splitFactorMax=8,splitCooldownSeconds=0`."""
    title, colon, fields = text.partition(":")
    if not colon or not title.strip():
        raise click.BadParameter(f"{text!r} is not TITLE:NAME=VALUE,…", param_hint="--compare")
    return title.strip(), dict(_setting(one) for one in fields.split(","))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--policy")
    return name.strip(), value.strip()


def _ids(segments: tuple[int, ...]) -> str:
    return ", ".join(map(str, segments))


def _ring(position: int | None) -> str:
    return "-" if position is None else f"{position:04x}"


def _watch(progress: CopyProgress) -> None:
    ahead = "" if progress.backlog_rows is None else f", {progress.backlog_rows:,} ahead"
    click.echo(f"\r\x1b[K{progress.rows:,} rows, {progress.rows_per_second:,.0f}/s{ahead}", nl=False, err=True)
