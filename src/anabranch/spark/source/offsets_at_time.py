"""Offsets at a point in time, in the form that `startingOffsets` and `endingOffsets` take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from anabranch.spark.client.cluster_client import cluster_of
from anabranch.spark.offsets import offset as offsets
from anabranch.spark.options import Point, SourceOptions, moment_ms
from anabranch.spark.source.planning import offset_at


def offsets_at(
    service_url: str,
    topics: str | Sequence[str],
    moment: datetime | int | str,
    *,
    options: Mapping[str, str] | None = None,
) -> str:
    """The offset, as JSON, of the first messages published at a moment or later: a time, milliseconds since 1970, or
    an ISO text. Where nothing was published since, it is the end. `options` are more of the source's, `client.token`
    for instance."""
    named = topics if isinstance(topics, str) else ",".join(topics)
    asked = SourceOptions.of({"serviceUrl": service_url, "topics": named, **(options or {})}, streaming=False)
    at = moment_ms(moment.isoformat() if isinstance(moment, datetime) else str(moment))
    cluster = cluster_of(asked.access)
    found = offset_at(cluster, Point(time_ms=at, latest_if_none=True), cluster.views(asked.topics))
    return json.dumps(offsets.dump(found))
