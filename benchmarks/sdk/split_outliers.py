"""Explains slow sends under the load of `benchmarks.sdk_split`: for each late receipt, the events in the client and in
the broker during the wait. `python -m benchmarks.sdk.split_outliers [--topics 10] [--slower-than 40]`.

`unexplained` is the wait minus the intervals in which an event loop stalled or the disk was busy. It separates load of
the machine from faults of the code. Waits with a long unexplained part are shown; `--all` shows every wait.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from itertools import islice
from pathlib import Path

from anabranch.client.config import Backoff
from anabranch.client.connection import reconnect as attachment
from anabranch.client.producer import producer_state as lanes
from anabranch.client.producer import segment_producer as lane_runner
from anabranch.client.topic import layout_watch as topic_watch
from anabranch.protocol.commands import BaseCommand
from benchmarks import sdk_split
from benchmarks.sdk.traced_broker import MARKS
from benchmarks.support.measure import percentile
from benchmarks.support.time_marks import Mark, Marks, load
from tests.support.processes.broker_process import BrokerProcess

STALL_SECONDS = 0.004
SHOWN_MAX = 60  # marks of one slow send


def install(marks: Marks) -> None:
    marks.watch_collector("client")
    marks.watch(
        topic_watch.LayoutWatch, "_on_view", lambda _, view: f"client: sees {'plan' if view.plan else 'layout'}"
    )
    marks.watch(topic_watch.LayoutWatch, "refresh", "client: asks for the layout again")
    marks.watch(lane_runner.SegmentProducer, "attach", lambda self, _: f"client: PRODUCER {_segment(self)}")
    marks.watch(lane_runner.SegmentProducer, "reopen", lambda self: f"client: reopens {_segment(self)}")
    marks.watch(
        lane_runner.SegmentProducer, "request_close", lambda self: f"client: closes producer of {_segment(self)}"
    )
    marks.watch(lane_runner.SegmentProducer, "drop", lambda self: f"client: drops {_segment(self)}")
    marks.watch(attachment.ReconnectLoop, "lose", lambda _, error, **more: f"client: lost: {error.reason} {more}")
    delays = Backoff.delay
    names = {int(getattr(BaseCommand, name)): name for name in ("SEGMENT_SEALED", "SEND_ERROR", "CLOSE_PRODUCER")}
    marks.watch(
        lane_runner.SegmentProducer,
        "on_command",
        lambda self, kind, *rest: f"client: {names[kind]} of {_segment(self)}" if kind in names else None,
    )
    marks.watch(
        lanes.ProducerState, "opened", lambda _, track, *rest: f"client: lane {track.segment.segment_id} is open"
    )

    def delay(self: Backoff, attempt: int, chance: float) -> float:
        found = delays(self, attempt, chance)
        marks.add(f"client: rests for {found * 1000:.0f} ms")
        return found

    Backoff.delay = delay  # type: ignore[method-assign]  # a benchmark's business


def _segment(runner: lane_runner.SegmentProducer) -> str:
    return f"{runner.topic.rpartition('/')[2]}"


async def one_topic(broker: BrokerProcess, topic: str, seen: sdk_split.Seen, marks: Marks) -> sdk_split.Pace:
    watching = asyncio.ensure_future(marks.watch_loop("client", STALL_SECONDS))
    try:
        return await sdk_split.measured(broker, topic, sdk_split.SPLITS_PER_TOPIC, seen)
    finally:
        watching.cancel()


Span = tuple[float, float, int, int]
"""When the first of some slow sends was made, when the last was confirmed, how many, by how many others overtaken."""


def spans(done: list[tuple[float, float]], slower_than_ms: float) -> list[Span]:
    """Slow sends, those that overlap as one. Overtaken: sent later and confirmed well before, so that not everything
    stood still but one lane, or one message."""
    found: list[Span] = []
    ordered = sorted(done)
    for index, (sent, confirmed) in enumerate(ordered):
        if (confirmed - sent) * 1000 <= slower_than_ms:
            continue
        overtakers = 0
        for later_sent, later_confirmed in islice(ordered, index + 1, None):
            if later_sent > confirmed:
                break
            overtakers += later_confirmed < confirmed - slower_than_ms / 2000
        if found and sent <= found[-1][1]:
            since, until, count, most = found[-1]
            found[-1] = since, max(until, confirmed), count + 1, max(most, overtakers)
        else:
            found.append((sent, confirmed, 1, overtakers))
    return found


_TOOK = re.compile(r"(?:stood still for|took) ([0-9.]+) ms$")


def machine(rows: list[Mark]) -> list[tuple[float, float]]:
    """When an event loop stood still or the disk was slow, joined and in order."""
    found: list[tuple[float, float]] = []
    for since, until in sorted((at - float(took[1]) / 1000, at) for at, label in rows if (took := _TOOK.search(label))):
        if found and since <= found[-1][1]:
            found[-1] = found[-1][0], max(until, found[-1][1])
        else:
            found.append((since, until))
    return found


def unexplained_ms(since: float, until: float, stalls: list[tuple[float, float]]) -> float:
    within = sum(max(0.0, min(until, end) - max(since, begin)) for begin, end in stalls)
    return (until - since - within) * 1000


def show(span: Span, left_ms: float, rows: list[Mark]) -> None:
    since, until, count, overtakers = span
    sys.stdout.write(
        f"\n{count} sends, {(until - since) * 1000:.0f} ms, of it unexplained {left_ms:.0f} ms, "
        f"overtaken by {overtakers}\n"
    )
    mine = [(at, label) for at, label in rows if since - 0.02 <= at <= until + 0.002]
    for at, label in mine[:SHOWN_MAX]:
        sys.stdout.write(f"  {(at - since) * 1000:8.1f}  {label}\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sdk.split_outliers")
    parser.add_argument("--topics", type=int, default=10, help=f"{sdk_split.SPLITS_PER_TOPIC} splits and merges each")
    parser.add_argument("--slower-than", type=float, default=40.0, metavar="MS")
    parser.add_argument("--all", action="store_true", help="also those that the machine explains")
    options = parser.parse_args(arguments)
    marks, seen, done = Marks(), sdk_split.Seen(), list[tuple[float, float]]()
    install(marks)
    with tempfile.TemporaryDirectory(prefix="anabranch-trace-") as directory:
        path = Path(directory) / "marks"
        environment = {MARKS: str(path)}
        with BrokerProcess(
            Path(directory) / "data", environment=environment, program="benchmarks.sdk.traced_broker"
        ) as broker:
            for number in range(options.topics):
                done += asyncio.run(one_topic(broker, sdk_split.TOPIC.format(number), seen, marks)).done
            broker.stop()
        rows = sorted([*load(path), *marks.rows])
    found = spans(done, options.slower_than)
    stalls = machine(rows)
    lefts = [unexplained_ms(since, until, stalls) for since, until, *_ in found]
    for span, left_ms in zip(found, lefts, strict=True):
        if options.all or left_ms > options.slower_than or span[3]:
            show(span, left_ms, rows)
    rests = sum(label.startswith("client: rests") for _, label in rows)
    stalled_s = sum(until - since for since, until in stalls)
    for what, windows in (("splits", seen.splits), ("merges", seen.merges), ("calm windows", seen.calm)):
        middle, worst = percentile(windows.waits, 0.5), max(windows.waits)
        sys.stdout.write(f"{len(windows.waits)} {what}: longest send → receipt {middle:.1f} ms, worst {worst:.1f} ms\n")
    sys.stdout.write(
        f"{len(found)} moments with sends slower than {options.slower_than:g} ms, "
        f"{sum(left > options.slower_than for left in lefts)} without the machine's share "
        f"(worst {max(lefts, default=0.0):.1f} ms); {sum(span[3] > 0 for span in found)} in which others overtook; "
        f"{rests} rests before another try; stalls in all {stalled_s:.1f} s of {rows[-1][0] - rows[0][0]:.0f} s\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
