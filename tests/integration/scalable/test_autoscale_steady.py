"""A broker with many segments of steady load writes nothing to the metadata store."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.autoscale.steady import steady_segments
from benchmarks.support.measure import Scene

SEGMENTS = 1_000


@pytest.mark.slow
async def test_steady_segments_write_no_metadata(tmp_path: Path) -> None:
    async with steady_segments(Scene(tmp_path), topics=1, each=SEGMENTS) as segments:
        await segments.run(80)  # rates are those of the last 60 s
        reported = {key for key in segments.writes.keys if key.endswith("/load")}
        assert len(reported) == SEGMENTS, "each has reported its load once"
        segments.writes.keys.clear()
        await segments.run(15)  # more than one interval of reports
        assert segments.writes.keys == []
