"""Opens a metadata store for the verbs of `anabranch metadata` and reports its failures in one line.

The package `metadata` is imported when a verb runs, so that `--help` stays fast. Output never contains the user or
password of a URL.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from anabranch.cli.admin.verb import option
from anabranch.model.errors import Error
from anabranch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from anabranch.metadata.interface import MetadataStore

DEADLINE_SECONDS = 8.0
T = TypeVar("T")
Work = Callable[["MetadataStore"], Awaitable[T]]

HINTS = {
    "metadata-unavailable": "is a store running at {url}? --deadline gives it longer",
    "metadata-outcome-unknown": "it may have been written: look before you repeat it",
    "metadata-full": "free space in the store; reading and `rm` still work",
    "not-found": "`anabranch metadata ls {url} -r` shows what is there",
    "version-mismatch": "the key changed since you read it: read it again, then retry",
    "bad-key": "such as /topics/a; / alone is the whole tree",
    "value-too-large": "metadata is for small records",
    "target-not-empty": "--merge writes over what is there; an empty prefix or chroot keeps things apart",
    "bad-archive": "nothing was written",
}


class StoreFailed(Error):
    """A failure of a store, with a hint for people."""

    def __init__(self, reason: str, code: str, hint: str) -> None:
        super().__init__(reason)
        self.code, self.hint = code, hint


def access_options(command: click.Command) -> click.Command:
    command.params += [
        option(
            "--deadline",
            type=click.FloatRange(min=0.1),
            default=DEADLINE_SECONDS,
            metavar="SECONDS",
            help=f"How long one operation may take, connecting included (default: {DEADLINE_SECONDS:g}).",
        ),
        option("--json", "as_json", is_flag=True, help="As JSON, for programs."),
    ]
    return command


def old_store_option(command: click.Command) -> click.Command:
    """For verbs that write."""
    command.params.append(
        option("--old-store", is_flag=True, help="Write although the cluster uses another store since a migration.")
    )
    return command


def with_store(url: str, deadline: float, work: Work[T]) -> T:
    """Run `work`, which only reads, on the opened store."""
    from anabranch.metadata.open import open_store

    async def run() -> T:
        async with open_store(url, SystemClock(), int(deadline * 1000)) as store:
            await _note_moved(store)
            return await work(store)

    return _run(url, run, creates=False)


def with_written_store(
    url: str, deadline: float, work: Work[T], *, old_store: bool = False, creates: bool = False
) -> T:
    """Run `work`, which writes. Without `old_store` it takes part in a migration that runs meanwhile, and the store of
    a cluster that has moved away is refused. With `creates` a SQLite store is made where there is none."""
    from anabranch.metadata.migration.tool import StoreMoved, opened_for_writing
    from anabranch.metadata.open import bare_store, open_store, without_credentials
    from anabranch.runtime.chance import SystemChance

    clock, deadline_ms = SystemClock(), int(deadline * 1000)
    name = f"tool-{socket.gethostname()}-{os.getpid()}"

    def open_target(one: str) -> MetadataStore:
        return bare_store(one, clock, deadline_ms)

    async def run() -> T:
        if old_store:
            async with open_store(url, clock, deadline_ms) as store:
                return await work(store)
        try:
            async with opened_for_writing(url, open_target, name=name, clock=clock, chance=SystemChance()) as store:
                return await work(store)
        except StoreMoved as moved:
            hint = f"write there: {without_credentials(moved.url)} (--old-store writes here all the same)"
            raise StoreFailed(moved.reason, moved.code, hint) from moved

    return _run(url, run, creates=creates)


async def _note_moved(store: MetadataStore) -> None:
    from anabranch.metadata.interface import StoreIncompatible
    from anabranch.metadata.migration.follow import NotComplete, successor
    from anabranch.metadata.migration.record import read_record
    from anabranch.metadata.open import without_credentials

    try:
        follows = successor(await read_record(store))
    except (NotComplete, StoreIncompatible) as error:
        note(f"note: {error.reason}")
    else:
        if follows:
            note(f"note: the cluster uses another metadata store since a migration: {without_credentials(follows)}")


def _run(url: str, run: Callable[[], Coroutine[Any, Any, T]], *, creates: bool) -> T:
    from anabranch.metadata.open import without_credentials

    shown = without_credentials(url)
    try:
        if not creates:
            require_database(url)
        if url == "memory:":
            note("memory: is empty in every new process and forgotten at its end")
        return asyncio.run(run())
    except StoreFailed:
        raise
    except Error as error:
        hint = "" if getattr(error, "hint", "") else HINTS.get(error.code, "").format(url=shown)
        raise StoreFailed(error.reason.replace(url, shown), error.code, hint) from error


def require_database(url: str) -> None:
    """Looking at a mistyped directory must not make an empty store there."""
    if not url.startswith("sqlite:///"):
        return
    from anabranch.metadata.open import sqlite_folder
    from anabranch.metadata.sqlite.schema import DATABASE

    folder = sqlite_folder(url.removeprefix("sqlite:"))
    if not (folder / DATABASE).is_file():
        hint = "a broker's is in DATA/metadata"
        raise StoreFailed(f"no metadata in {folder}: {DATABASE} is not there", "not-found", hint)


def require_ours(key: str) -> None:
    """Epochs and numbers of the store itself are not for people to write."""
    from anabranch.metadata.interface import RESERVED, is_within

    if is_within(key, RESERVED):
        raise StoreFailed(f"keys below {RESERVED} belong to the store itself", "not-allowed", "they can be looked at")


def note(text: str) -> None:
    """For people, beside the answer."""
    click.echo(text, err=True)
    sys.stderr.flush()
