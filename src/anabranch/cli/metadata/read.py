"""`anabranch metadata ls|get|watch`: nothing here writes."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from anabranch.cli.metadata.key_tree import (
    Facts,
    KeyNode,
    facts_line,
    facts_of,
    grow,
    lines_of,
    moment,
    objects_of,
    value_text,
)
from anabranch.cli.metadata.store_access import StoreFailed, access_options, note, with_store
from anabranch.cli.output.terminal import json_text, plain, say
from anabranch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from anabranch.metadata.interface import Change, MetadataStore, Versioned

ASKED_AT_ONCE = 32
MISSED = "changes were missed here (connection lost, or more than could be kept): read again what you know below it"


async def whole_tree(store: MetadataStore, key: str) -> KeyNode:
    found: list[tuple[str, Facts]] = []
    async for page in store.bulk_scan(key):
        found += [(one, facts_of(record)) for one, record in page]
    return grow(key, found)


async def upper_tree(store: MetadataStore, key: str, depth: int, *, with_facts: bool) -> KeyNode:
    """So many levels, asked for one by one: the levels below may be large."""
    from anabranch.metadata.interface import check_tree

    check_tree(key)
    turns = asyncio.Semaphore(ASKED_AT_ONCE)
    top = KeyNode(plain(key), key)

    async def look(twig: KeyNode, *, is_last: bool) -> None:
        async with turns:
            names = await store.children(twig.key)
            if (with_facts or twig is top) and twig.key != "/":
                record = await store.get(twig.key)
                twig.facts = None if record is None else facts_of(record)
        if is_last:
            twig.has_more = bool(names)
            return
        start = "" if twig.key == "/" else twig.key
        twig.below = {name: KeyNode(plain(name), f"{start}/{name}") for name in names}

    level = [top]
    for number in range(depth + 1):
        try:
            async with asyncio.TaskGroup() as group:
                for twig in level:
                    group.create_task(look(twig, is_last=number == depth))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors  # all ask the same store: one reason is enough
        level = [below for twig in level for below in twig.below.values()]
    return top


@click.command()
@click.argument("url")
@click.argument("key", default="/")
@click.option("-r", "--recursive", is_flag=True, help="All below, however deep.")
@click.option("--depth", type=click.IntRange(min=1), default=None, metavar="N", help="So many levels (default: 1).")
@click.option("-l", "--long", is_flag=True, help="Version, times, size and whether it is ephemeral.")
def ls(url: str, key: str, recursive: bool, depth: int | None, long: bool, deadline: float, as_json: bool) -> int:
    """Keys below KEY (default: all) as a tree. A name that ends in / has more below it.

    \b
    Examples:
      anabranch metadata ls sqlite:///./anabranch-data/metadata
      anabranch metadata ls zk://localhost:2181/anabranch /topics -r --long
      anabranch metadata ls etcd://localhost:2379 --depth 3
      anabranch metadata ls oxia://localhost:6648/default -r --json | jq -r .[].key

    Times are UTC. An ephemeral key vanishes with the session of the process that wrote it. What the store keeps for
    itself is shown only when asked for: ls URL /.meta
    """
    if recursive and depth is not None:
        raise click.UsageError("-r means all levels: give --depth or -r, not both")

    async def work(store: MetadataStore) -> KeyNode:
        await store.sync()
        if recursive:
            return await whole_tree(store, key)
        return await upper_tree(store, key, depth or 1, with_facts=long or as_json)

    top = with_store(url, deadline, work)
    if key != "/" and top.facts is None and not top.below:
        raise StoreFailed(f"nothing at or below {plain(key)}", "not-found", "")
    if as_json:
        say(json_text(list(objects_of(top)), indent=2))
    else:
        say("\n".join(lines_of(top, columns=long)))
        if not top.below:
            note("(nothing below)")
    return 0


@click.command()
@click.argument("url")
@click.argument("key")
@click.option("--raw", is_flag=True, help="The bytes as they are, nothing added: for files and pipes.")
@click.option("-l", "--long", is_flag=True, help="Also version, size and time (on standard error).")
def get(url: str, key: str, raw: bool, long: bool, deadline: float, as_json: bool) -> int:
    """The value of KEY: JSON is indented, text shown as it is, other bytes in hexadecimal.

    \b
    Examples:
      anabranch metadata get sqlite:///./anabranch-data/metadata /tenants/public
      anabranch metadata get zk://localhost:2181/anabranch /a --raw > a.bin
      anabranch metadata get etcd://localhost:2379 /a --json | jq .version
    """
    if raw and as_json:
        raise click.UsageError("give --raw or --json, not both")

    async def work(store: MetadataStore) -> Versioned:
        from anabranch.metadata.interface import KeyMissing

        await store.sync()
        found = await store.get(key)
        if found is None:
            raise KeyMissing(plain(key))
        return found

    found = with_store(url, deadline, work)
    if as_json:
        from anabranch.metadata.archive import value_fields

        fields = {"key": key, **value_fields(found.value), **asdict(facts_of(found))}
        say(json_text(fields, indent=2))
        return 0
    if long:
        note(facts_line(facts_of(found)))
    if raw:
        sys.stdout.buffer.write(found.value)
        sys.stdout.buffer.flush()
    else:
        say(value_text(found.value))
    return 0


@click.command()
@click.argument("url")
@click.argument("key", default="/")
@click.option("-n", "--count", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N (0: never).")
@click.option("--seconds", type=click.FloatRange(min=0), default=None, metavar="S", help="Stop after so long.")
def watch(url: str, key: str, count: int, seconds: float | None, deadline: float, as_json: bool) -> int:
    """Changes of KEY and all below it (default: everything), as they happen, until Ctrl-C.

    \b
    Examples:
      anabranch metadata watch zk://localhost:2181/anabranch
      anabranch metadata watch sqlite:///./anabranch-data/metadata /topics --count 10 --seconds 60
      anabranch metadata watch etcd://localhost:2379 --json | jq -r .key

    A change is a hint that something happened, not what: read the key again. INVALIDATED means that changes were
    missed, for example while the connection was lost: whatever you know below that key may be old. With --count
    and --seconds together, fewer changes than asked for are a failure (exit code 1).
    """
    clock = SystemClock()

    def tell(change: Change) -> None:
        now = clock.now_ms()
        if as_json:
            fields = {"time_ms": now, "kind": change.kind.value, "key": change.key}
            say(json_text(fields))
        elif change.kind.value == "invalidated":
            say(f"{moment(now)}  INVALIDATED  {plain(change.key)}  ({MISSED})")
        else:
            say(f"{moment(now)}  {change.kind.value:<11}  {plain(change.key)}")

    async def work(store: MetadataStore) -> int:
        changes = store.watch(key)
        await store.sync()
        note(f"watching {plain(key)}; Ctrl-C ends it")
        seen = 0
        try:
            async with asyncio.timeout(seconds):
                async for change in changes:
                    tell(change)
                    seen += 1
                    if seen == count:
                        break
        except TimeoutError:
            pass
        finally:
            changes.close()
        return seen

    seen = with_store(url, deadline, work)
    if seen < count:
        raise StoreFailed(f"{seen} of {count} changes came within {seconds:g} s", "timeout", "")
    return 0


for _command in (ls, get, watch):
    access_options(_command)
