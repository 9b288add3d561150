"""Opens a metadata store for the verbs of `anabranch metadata` and reports its failures in one line.

The package `metadata` is imported when a verb runs, so that `--help` stays fast. Output never contains the user or
password of a URL.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

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


def with_store(url: str, deadline: float, work: Work[T], *, creates: bool = False) -> T:
    """Run `work` on the opened store. Only verbs that write (`creates`) make a SQLite store where there is none."""
    from anabranch.metadata.open import open_store, without_credentials

    shown = without_credentials(url)

    async def run() -> T:
        async with open_store(url, SystemClock(), int(deadline * 1000)) as store:
            return await work(store)

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
