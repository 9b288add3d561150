"""Starts and stops the pipeline beside the demo's traffic, and compares its results with the confirmed messages."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from scripts.demo_show import Show
from tests.support.traffic.delivery_audit import Numbered

START_S_MAX, FINISH_S_MAX = 180.0, 300.0  # on a machine that does much else
LINE_BYTES_MAX = 1 << 20


class PipelineFailed(Exception):
    """It ended, or did not answer in time; the text is the end of its log."""


def is_possible() -> bool:
    return shutil.which("java") is not None


class Pipeline:
    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    @asynccontextmanager
    async def running(cls, url: str, topic: str, target: str, folder: Path) -> AsyncIterator[Pipeline]:
        """Both queries run inside."""
        folder.mkdir()
        log = folder / "spark.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "scripts.demo_pipeline", url, topic, target, str(folder)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=LINE_BYTES_MAX,
            )
        pipeline = cls(process, log)
        try:
            await pipeline._answer(START_S_MAX)
            yield pipeline
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def finish(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")
        return await self._answer(FINISH_S_MAX)

    async def _answer(self, within_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise PipelineFailed(f"no answer within {within_s:g} s: {self._told()}") from error
        if not line:
            raise PipelineFailed(self._told())
        found: dict[str, Any] = json.loads(line)
        return found

    def _told(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def report(found: dict[str, Any], confirmed: Iterable[Numbered], show: Show) -> bool:
    """Prints what the pipeline has, against what was confirmed; did all hold?"""
    wanted = dict(Counter(customer for customer, _ in confirmed))
    rows, totals, verdict = found["parquet"], found["totals"], found["audit"]
    other_rows, other_totals = (sum(of.get(key) != n for key, n in wanted.items()) for of in (rows, totals))
    show.row("Spark: topic → Parquet", f"{sum(rows.values()):,} rows, customers that differ {show.count(other_rows)}")
    show.row(
        "Spark: counts per key → topic",
        f"{len(totals):,} keys in {found['batches']} batches, customers that differ {show.count(other_totals)}",
    )
    show.row(
        "Spark: audit of the whole graph",
        f"{verdict['messages']:,} messages in {verdict['segments']} segments, gaps {show.count(verdict['gaps'])}, "
        f"duplicates {show.count(verdict['duplicates'])}, out of order {show.count(verdict['disorder'])}",
    )
    return rows == wanted and totals == wanted and bool(verdict["sound"])
