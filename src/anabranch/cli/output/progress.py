"""A progress line on the terminal during long work. Without a terminal nothing is printed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from anabranch.runtime.clock import Clock

T = TypeVar("T")


async def with_progress(work: Coroutine[Any, Any, T], line: Callable[[], str], clock: Clock) -> T:
    """The work's result; on a terminal, one progress line per second until then."""
    if not sys.stderr.isatty():
        return await work
    watcher = asyncio.get_running_loop().create_task(_watch(line, clock))
    try:
        return await work
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        click.echo("\r\x1b[K", nl=False, err=True)


async def _watch(line: Callable[[], str], clock: Clock) -> None:
    while True:
        await clock.sleep(1.0)
        click.echo(f"\r\x1b[K{line()}", nl=False, err=True)
