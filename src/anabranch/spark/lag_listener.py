"""A streaming query listener that reports how far queries are behind, for exporting metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener


@dataclass(frozen=True, slots=True)
class Lag:
    query: str  # name, or id of a query without one
    batch: int
    backlog_rows: int
    backlog_bytes: int
    segments: int
    rows_per_second: float


class LagListener(StreamingQueryListener):
    """`spark.streams.addListener(LagListener(tell))`: `tell` gets every report of a query that reads topics."""

    def __init__(self, tell: Callable[[Lag], None]) -> None:
        self._tell = tell

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  Spark's name
        found = lag_of(json.loads(event.progress.json))
        if found is not None:
            self._tell(found)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  Spark's name
        """As far behind as the last report said."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  Spark's name
        """What it was is for the listener's owner to forget."""


def lag_of(progress: Any) -> Lag | None:
    """The sum over the query's sources of ours; None when it has none."""
    heads = []
    for source in progress.get("sources", ()):
        head = source.get("latestOffset")
        head = json.loads(head) if isinstance(head, str) and head.startswith("{") else head
        if isinstance(head, dict) and "backlogRows" in head:
            heads.append(head)
    if not heads:
        return None
    return Lag(
        progress.get("name") or progress["id"],
        progress["batchId"],
        sum(head["backlogRows"] for head in heads),
        sum(head["backlogBytes"] for head in heads),
        sum(head["segments"] for head in heads),
        progress.get("processedRowsPerSecond") or 0.0,
    )
