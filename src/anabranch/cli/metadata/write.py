"""`anabranch metadata put|rm`: the verbs that change single keys and trees, and ask before they delete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.cli.metadata.key_tree import facts_line, facts_of
from anabranch.cli.metadata.store_access import (
    StoreFailed,
    access_options,
    note,
    old_store_option,
    require_ours,
    with_store,
    with_written_store,
)
from anabranch.cli.output.progress import with_progress
from anabranch.cli.output.terminal import json_text, plain, say
from anabranch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from anabranch.metadata.interface import Expected, MetadataStore, Version, Versioned
    from anabranch.metadata.transfer import Tally


def expected_of(text: str) -> Expected:
    """`absent`, `any` or a version."""
    from anabranch.metadata.interface import ABSENT, ANY

    match text.strip().lower():
        case "absent":
            return ABSENT
        case "any":
            return ANY
    try:
        return int(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not absent, any or a version's number", param_hint="--expect") from error


def value_of(value: str | None, file: str | None) -> bytes:
    """From the argument, a file, or standard input where it is piped in."""
    if value is not None and file is not None:
        raise click.UsageError("give VALUE or --file, not both")
    if value is not None and value != "-":
        return value.encode("utf-8", "surrogateescape")  # bytes of the shell stay what they were
    if file is not None and file != "-":
        return Path(file).read_bytes()
    if value is None and file is None and sys.stdin.isatty():
        raise click.UsageError("give VALUE, --file FILE or a value on standard input")
    return sys.stdin.buffer.read()


@click.command()
@click.argument("url")
@click.argument("key")
@click.argument("value", required=False)
@click.option("-f", "--file", metavar="FILE", help="Take the value from here; - is standard input.")
@click.option(
    "--expect",
    default="any",
    metavar="absent|any|VERSION",
    help="Write only if KEY is not there, whatever is there, or if it is at VERSION (default: any).",
)
def put(
    url: str,
    key: str,
    value: str | None,
    file: str | None,
    expect: str,
    deadline: float,
    as_json: bool,
    old_store: bool,
) -> int:
    """Write VALUE, a file or standard input under KEY and tell the new version.

    \b
    Examples:
      anabranch metadata put etcd://localhost:2379/mine /a hello
      anabranch metadata put etcd://localhost:2379/mine /a --file a.json --expect absent
      anabranch metadata get etcd://localhost:2379/mine /a --raw | sed s/old/new/ |
        anabranch metadata put etcd://localhost:2379/mine /a --expect 17

    With a version (from `get --json` or `ls --long`) no concurrent change is overwritten.
    """
    expected, given = expected_of(expect), value_of(value, file)
    require_ours(key)

    async def work(store: MetadataStore) -> Version:
        return await store.put(key, given, expected=expected)

    version = with_written_store(url, deadline, work, old_store=old_store, creates=True)
    if as_json:
        say(json_text({"key": key, "version": version, "bytes": len(given)}))
    else:
        say(f"{plain(key)} is at version {version} ({len(given):,} bytes)")
    return 0


@click.command()
@click.argument("url")
@click.argument("key")
@click.option("-r", "--recursive", is_flag=True, help="KEY and all below it; they are counted first.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--expect", default=None, metavar="VERSION", help="Delete only if KEY is at this version.")
def rm(
    url: str,
    key: str,
    recursive: bool,
    yes: bool,
    expect: str | None,
    deadline: float,
    as_json: bool,
    old_store: bool,
) -> int:
    """Delete KEY, or with -r all of its tree. Asks first.

    \b
    Examples:
      anabranch metadata rm etcd://localhost:2379/mine /a
      anabranch metadata rm etcd://localhost:2379/mine /old -r
      anabranch metadata rm etcd://localhost:2379/mine / -r --yes

    Without -r keys below KEY stay. Only the listed keys are deleted; a key written meanwhile stays. With -r
    that is not checked, and what others add meanwhile may stay.
    """
    require_ours(key)
    if recursive and expect is not None:
        raise click.UsageError("--expect is for one key, not for a tree")
    if not recursive and key == "/":
        raise click.UsageError("/ is the whole tree: -r deletes it")
    if recursive:
        deleted = _remove_tree(url, key, deadline, yes=yes, old_store=old_store)
    else:
        _remove_one(url, key, deadline, expect, yes=yes, old_store=old_store)
        deleted = 1
    if as_json:
        say(json_text({"key": key, "deleted": deleted}))
    else:
        say(f"deleted {plain(key)}" if not recursive else f"deleted {several(deleted)}")
    return 0


def _remove_one(url: str, key: str, deadline: float, expect: str | None, *, yes: bool, old_store: bool) -> None:
    async def look(store: MetadataStore) -> tuple[Versioned | None, list[str]]:
        await store.sync()
        return await store.get(key), await store.children(key)

    found, below = with_store(url, deadline, look)
    if found is None and below:
        raise StoreFailed(f"{plain(key)} has no value, only keys below it", "not-found", "-r deletes those")
    if found is not None and not yes:
        stay = f"; what is below it ({several(len(below), 'name')}) stays" if below else ""
        confirm(f"Delete {plain(key)} ({facts_line(facts_of(found))}{stay})?")
    expected: Expected = expected_of("any" if expect is None else expect)
    if expect is None and found is not None:
        expected = found.version

    async def work(store: MetadataStore) -> None:
        await store.delete(key, expected=expected)

    with_written_store(url, deadline, work, old_store=old_store)


def _remove_tree(url: str, key: str, deadline: float, *, yes: bool, old_store: bool) -> int:
    from anabranch.metadata.transfer import Tally, delete_keys, keys_of

    clock = SystemClock()
    counted, done = Tally(), Tally()

    async def count(store: MetadataStore) -> list[str]:
        return await with_progress(keys_of(store, key, counted), lambda: f"{counted.records:,} keys counted", clock)

    keys = with_store(url, deadline, count)
    if not keys:
        raise StoreFailed(f"nothing at or below {plain(key)}", "not-found", "")
    if yes:
        note(summary(key, counted))
    else:
        confirm(f"{summary(key, counted)}. Delete them?")

    async def work(store: MetadataStore) -> None:
        removal = delete_keys(store, keys, done)
        await with_progress(removal, lambda: f"{done.records:,} of {len(keys):,} keys deleted", clock)

    try:
        with_written_store(url, deadline, work, old_store=old_store)
    except (KeyboardInterrupt, StoreFailed):
        note(f"stopped: {done.records:,} of {len(keys):,} keys are deleted; the same command goes on")
        raise
    return done.records


def summary(key: str, counted: Tally) -> str:
    living = f", {counted.ephemerals:,} of them of living sessions" if counted.ephemerals else ""
    return f"{several(counted.records)} at and below {plain(key)} ({counted.value_bytes:,} bytes{living})"


def several(number: int, what: str = "key") -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def confirm(question: str) -> None:
    """Anything but yes, no answer included, ends the command before anything is deleted."""
    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        agreed = False  # no terminal to answer on
    if not sys.stdin.isatty():
        note("")  # a pipe does not end the question's line
    if not agreed:
        raise StoreFailed("nothing was deleted", "not-confirmed", "answer y, or give --yes")


for _command in (put, rm):
    access_options(_command)
    old_store_option(_command)
