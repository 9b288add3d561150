"""`anabranch storage copy`: all ledgers of a stopped cluster, from files to bookies, with progress."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.cli.output.progress import with_progress
from anabranch.cli.output.terminal import json_text, say
from anabranch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from anabranch.node.storage_copy import CopyProgress


def progress_line(progress: CopyProgress | None, seconds: float) -> str:
    if progress is None:
        return "opening the stores"
    rate = progress.bytes / 1e6 / seconds if seconds > 0 else 0.0
    return (
        f"{progress.done:,} of {progress.ledgers:,} ledgers, {progress.entries:,} entries, "
        f"{progress.bytes / 1e6:,.1f} MB, {rate:,.1f} MB/s"
    )


@click.command()
@click.option("--from", "source", type=click.Choice(["files"]), required=True, help="Where the messages are.")
@click.option("--to", "target", type=click.Choice(["bookkeeper"]), required=True, help="Where they go.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("anabranch-data"),
    show_default=True,
    metavar="DIR",
    help="The data directory of the brokers.",
)
@click.option("--metadata", metavar="URL", help="The metadata store (default: SQLite in the data directory).")
@click.option("--storage", metavar="URL", required=True, help="bookkeeper://ZOOKEEPER:PORT/ledgers of the bookies.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON, for programs.")
def copy(source: str, target: str, data: Path, metadata: str | None, storage: str, as_json: bool) -> int:
    """Copy all messages and cursors of a stopped cluster to bookies, and compare every entry.

    Message ids, cursors and checkpoints stay valid. The files stay as they are. A copy that was interrupted goes on
    when the command is repeated. Use a separate BookKeeper root. Afterwards start the brokers with --storage:

    \b
    Example:
      anabranch storage copy --from files --to bookkeeper --data anabranch-data --storage bookkeeper://zk1:2181/ledgers
      anabranch standalone --data anabranch-data --storage bookkeeper://zk1:2181/ledgers
    """
    from anabranch.node.storage_copy import copy_files_to_bookies

    clock = SystemClock()
    began = clock.monotonic()
    started: list[CopyProgress] = []

    def line() -> str:
        return progress_line(started[0] if started else None, clock.monotonic() - began)

    work = copy_files_to_bookies(data, metadata or f"sqlite:///{data / 'metadata'}", storage, clock, started.append)
    done = asyncio.run(with_progress(work, line, clock))
    seconds = clock.monotonic() - began
    if as_json:
        report = {"ledgers": done.ledgers, "skipped": done.skipped, "entries": done.entries, "bytes": done.bytes}
        say(json_text({**report, "seconds": round(seconds, 3)}, indent=2))
        return 0
    say(f"copied and compared: {progress_line(done, seconds)}; {done.skipped:,} ledgers were complete already")
    say("start the brokers with --storage now; the files can be deleted when they serve", err=True)
    return 0
