"""`anabranch metadata export|import`: a store's contents to and from a file of JSON lines, with progress."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from anabranch.cli.metadata.store_access import (
    StoreFailed,
    access_options,
    note,
    old_store_option,
    with_store,
    with_written_store,
)
from anabranch.cli.output.progress import with_progress
from anabranch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from anabranch.metadata.interface import MetadataStore
    from anabranch.metadata.transfer import Tally


def rate_line(tally: Tally, total: int | None, seconds: float) -> str:
    of = "" if total is None else f" of {total:,}"
    rate = tally.records / seconds if seconds > 0 else 0.0
    return f"{tally.records:,}{of} records, {tally.value_bytes / 1e6:,.1f} MB, {rate:,.0f} records/s"


def report_of(tally: Tally, seconds: float) -> dict[str, Any]:
    """For programs."""
    return {
        "records": tally.records,
        "value_bytes": tally.value_bytes,
        "sequences": tally.sequences,
        "ephemerals_left_out": tally.ephemerals,
        "seconds": round(seconds, 3),
    }


@contextmanager
def writing(output: Path | None) -> Iterator[IO[str]]:
    """A file that appears when it is complete, or standard output."""
    if output is None:
        pipe = io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), encoding="utf-8", newline="\n")
        try:
            yield pipe
            pipe.flush()
        finally:
            with suppress(BrokenPipeError):  # the flush above reported it
                pipe.close()
        return
    fresh = output.with_name(f"{output.name}.part")
    try:
        with fresh.open("w", encoding="utf-8", newline="\n") as file:
            os.fchmod(file.fileno(), 0o600)  # a cluster's metadata has policies and permissions in it
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(output)
    finally:
        fresh.unlink(missing_ok=True)


@click.command()
@click.argument("url")
@click.argument("key", default="/")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write here (it appears when complete); default: standard output.",
)
def export(url: str, key: str, output: Path | None, deadline: float, as_json: bool) -> int:
    """Write KEY and all below it (default: everything) as JSON lines, one record a line.

    \b
    Examples:
      anabranch metadata export zk://localhost:2181/anabranch -o all.jsonl
      anabranch metadata export sqlite:///./anabranch-data/metadata /topics | jq -r .key
      anabranch metadata export etcd://localhost:2379/a | anabranch metadata import oxia://localhost:6648/default

    Values, versions and times are in it, and the numbers of sequences. Ephemeral keys are left out and counted: they
    belong to living sessions. etcd shows one moment; for the same from the others, stop the brokers first.
    """
    from anabranch.metadata.transfer import Tally, export_lines

    clock, tally = SystemClock(), Tally()
    began = clock.monotonic()

    async def work(store: MetadataStore) -> None:
        with writing(output) as file:
            async for line in export_lines(store, key, tally):
                file.write(line + "\n")

    async def shown(store: MetadataStore) -> None:
        await with_progress(work(store), lambda: rate_line(tally, None, clock.monotonic() - began), clock)

    with_store(url, deadline, shown)
    seconds = clock.monotonic() - began
    if as_json:
        click.echo(json.dumps(report_of(tally, seconds)), err=output is None)
        return 0
    left_out = f"; {tally.ephemerals:,} ephemeral keys left out" if tally.ephemerals else ""
    note(f"exported {rate_line(tally, None, seconds)}{left_out}")
    return 0


@contextmanager
def reading(file: str) -> Iterator[IO[str]]:
    """A file that can be read twice; standard input is put aside on disk first."""
    if file != "-":
        with Path(file).open(encoding="utf-8", newline="\n") as opened:
            yield opened
        return
    if sys.stdin.isatty():
        raise click.UsageError("give a FILE, or an export on standard input")
    with tempfile.TemporaryFile() as aside:
        shutil.copyfileobj(sys.stdin.buffer, aside)
        aside.seek(0)
        yield io.TextIOWrapper(aside, encoding="utf-8", newline="\n")


@click.command("import")
@click.argument("url")
@click.argument("file", default="-")
@click.option("--merge", is_flag=True, help="Into a store that is not empty, over keys that are there already.")
@click.option("--preserve", is_flag=True, help="Keep versions and times; only into an empty store.")
def import_(url: str, file: str, merge: bool, preserve: bool, deadline: float, as_json: bool, old_store: bool) -> int:
    """Write what `export` wrote (FILE, default: standard input) into a store.

    \b
    Examples:
      anabranch metadata import etcd://localhost:2379/anabranch all.jsonl
      anabranch metadata import zk://localhost:2181/anabranch all.jsonl --preserve
      anabranch metadata import sqlite:///./copy some.jsonl --merge

    The whole file is checked before anything is written. With --preserve every record keeps its version and times, and
    later versions are higher than all of them, so versions that clients remember stay valid. Without it records
    are new: version and times of now. An import that was interrupted goes on with --merge; with --preserve, delete
    (`rm URL / -r`) and begin again. Use no broker on the target meanwhile.
    """
    from anabranch.metadata.archive import BadArchive
    from anabranch.metadata.transfer import Tally, check_archive, import_lines

    if merge and preserve:
        raise click.UsageError("--preserve needs an empty store: versions of before cannot be below others of before")
    clock, tally = SystemClock(), Tally()

    with reading(file) as opened:
        try:
            contents = check_archive(opened)
        except (BadArchive, UnicodeDecodeError) as error:
            reason = error.reason if isinstance(error, BadArchive) else f"not UTF-8: {error.reason}"
            raise StoreFailed(f"{file}: {reason}", "bad-archive", "nothing was written") from error
        opened.seek(0)
        began = clock.monotonic()

        async def work(store: MetadataStore) -> None:
            writing = import_lines(store, opened, contents, tally, merge=merge, preserve=preserve)
            await with_progress(writing, lambda: rate_line(tally, contents.records, clock.monotonic() - began), clock)

        try:
            with_written_store(url, deadline, work, old_store=old_store, creates=True)
        except (KeyboardInterrupt, StoreFailed):
            if tally.records:
                note(f"stopped: {tally.records:,} of {contents.records:,} records are written")
            raise
    seconds = clock.monotonic() - began
    if as_json:
        click.echo(json.dumps(report_of(tally, seconds)))
    else:
        note(f"imported {rate_line(tally, contents.records, seconds)}")
    return 0


for _command in (export, import_):
    access_options(_command)
old_store_option(import_)
