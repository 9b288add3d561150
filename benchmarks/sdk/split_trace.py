"""Where the time of a split goes: marks in the broker and in the client, laid side by side, as milliseconds after the
call. `python -m benchmarks.sdk.split_trace [--splits 30]`: the same load as `benchmarks.sdk_stream`, and one line
for every step in the order of their medians; early and late splits beside each other show what grows with the graph.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from anabranch.client.consumer import stream_session
from anabranch.client.consumer.segment import segment_consumer as channel
from anabranch.client.producer import segment_producer as lane_runner
from anabranch.client.topic import layout_watch as topic_watch
from anabranch.protocol.commands import BaseCommand
from benchmarks import sdk_stream
from benchmarks.sdk.traced_broker import MARKS
from benchmarks.support.measure import percentile, process_cpu_seconds
from benchmarks.support.time_marks import Mark, Marks, load
from tests.support.processes.broker_process import BrokerProcess


def install(marks: Marks) -> None:
    marks.watch(
        topic_watch.LayoutWatch, "_on_view", lambda _, view: f"client: sees {'plan' if view.plan else 'layout'}"
    )
    marks.watch(stream_session.StreamSession, "on_assigned", "client: assigned")
    marks.watch(channel.SegmentConsumer, "attach", "client: SUBSCRIBE")
    marks.watch(lane_runner.SegmentProducer, "attach", "client: PRODUCER")
    sealed = int(BaseCommand.SEGMENT_SEALED)
    marks.watch(
        lane_runner.SegmentProducer, "on_command", lambda _, kind, *rest: "client: sealed" if kind == sealed else None
    )
    end = int(BaseCommand.REACHED_END_OF_TOPIC)
    marks.watch(
        channel.SegmentConsumer, "on_command", lambda _, kind, *rest: "client: parent read" if kind == end else None
    )


def after(splits: Sequence[sdk_stream.Split], rows: Sequence[Mark]) -> dict[str, list[float]]:
    """By label, ms from the call of a split to the first mark of it, in every split that has one."""
    found: dict[str, list[float]] = {}
    for one in splits:
        seen: set[str] = set()
        for at, label in rows:
            if one.asked_at <= at <= one.first_at and label not in seen:
                seen.add(label)
                found.setdefault(label, []).append((at - one.asked_at) * 1000)
        found.setdefault("client: split answered", []).append((one.answered_at - one.asked_at) * 1000)
        found.setdefault("client: first message of a child", []).append(one.took_ms)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sdk.split_trace")
    parser.add_argument("--splits", type=int, default=30)
    options = parser.parse_args(arguments)
    marks = Marks()
    install(marks)
    with tempfile.TemporaryDirectory(prefix="anabranch-trace-") as directory:
        path, data = Path(directory) / "marks", Path(directory) / "data"
        environment = {MARKS: str(path)}
        with BrokerProcess(
            data, arguments=sdk_stream.DEEP, environment=environment, program="benchmarks.sdk.traced_broker"
        ) as broker:
            splits, _ = asyncio.run(sdk_stream.measured(broker, options.splits, Path(directory)))
            cpu_s = process_cpu_seconds(broker.pid)
            broker.stop()
        rows = sorted([*load(path), *marks.rows])
    some = max(1, min(10, len(splits) // 2))
    everything, early, late = after(splits, rows), after(splits[:some], rows), after(splits[-some:], rows)
    sys.stdout.write(f"{'ms after the call':>42}   median   first {some:<3} last {some:<3} seen\n")
    for label, values in sorted(everything.items(), key=lambda item: percentile(item[1], 0.5)):
        shown = [percentile(one[label], 0.5) if label in one else float("nan") for one in (everything, early, late)]
        sys.stdout.write(f"{label:>42} {shown[0]:8.2f} {shown[1]:8.2f} {shown[2]:8.2f}  {len(values):>4}\n")
    sys.stdout.write(f"broker: {cpu_s:.1f} s of CPU in all\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
