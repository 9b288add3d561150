"""The web console: what a browser pays for a page, and what the broker pays for an open one.

Expected before measuring. The first view is 50 KB gzipped in 19 files over one kept connection: 19 small answers of
about 0.3 ms, and parsing of 110 KB of scripts, 50 ms; so the first paint is at 0.1-0.2 s. The list of 10,000 topics is
one answer of 500 KB and 60 rows of it: 0.2 s. Its filter looks at 10,000 texts: 5 ms, and a paint. 5,000 segments are
laid out in some ms and painted in 20. A split is pushed when it is committed, so a page shows it after one frame. An
open page makes the broker read the figures of one topic once a second (1-2 ms with 64 segments): 0.2 % of a core. Ten
streams of one topic share that read, so publishing hardly notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

import anabranch
import anabranch.admin
from anabranch.rest.static_files import FOLDER, FOLDERS
from benchmarks.support import report
from benchmarks.support.measure import Failed, Outcome, Run, Scene, Series, at_most, percentile, side_by_side
from tests.services.available import browser as chromium
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")
SCALABLE = "/admin/v2/scalable/public/default"
SEGMENTS = 64
RATE = 2_000
STREAMS = 10


@contextlib.contextmanager
def opened(broker: BrokerProcess) -> Iterator[Any]:
    """A page of a new browser that has no cache yet."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            page = found.new_context(viewport={"width": 1360, "height": 900}).new_page()
            page.set_default_timeout(60_000)
            yield page
        finally:
            found.close()


def size(scene: Scene) -> list[Outcome]:
    """Bytes of the first view as a browser would get them compressed, and requests to other hosts by all pages."""
    page = (FOLDER / "index.html").read_text()
    names = {"index.html", *re.findall(r"/console/([\w.-]+)", page)}
    files = [path for folder in FOLDERS for path in folder.iterdir() if path.name in names]
    if len(files) != len(names):
        raise Failed("a file of the first view is missing")
    kilobytes = sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) / 1024
    elsewhere: list[str] = []
    with BrokerProcess(scene.place("console-size") / "data") as broker, opened(broker) as view:
        own = urlsplit(broker.http_url).netloc
        view.on("request", lambda one: elsewhere.append(one.url) if urlsplit(one.url).netloc not in ("", own) else None)
        for path in ("", "topics", "namespaces", "brokers", "metadata"):
            view.goto(f"{broker.http_url}/#/{path}")
            view.locator("h1").first.wait_for()
    return [
        Outcome("first-view", "first view, gzipped", Series("", "KB", (kilobytes,)), None, at_most(60)),
        Outcome("elsewhere", "requests to other hosts", Series("", "", (float(len(elsewhere)),)), None, at_most(0)),
    ]


def start(scene: Scene) -> list[Outcome]:
    """Start of a broker with the console and without."""

    def ready(number: str, console: str) -> float:
        place = scene.place(f"console-start-{number}-{time.monotonic_ns()}")
        began = time.perf_counter()
        with BrokerProcess(place / "data", arguments=["--set", f"http.console={console}"]):
            return time.perf_counter() - began

    with_console, without = side_by_side(scene.size(7, 1), lambda: ready("on", "true"), lambda: ready("off", "false"))
    extra = tuple((one - other) * 1000 for one, other in zip(with_console, without, strict=True))
    title = "extra start time of the broker"
    return [Outcome("start", title, Series("median", "ms", extra), None, None, {"whole seconds": with_console})]


def paint(scene: Scene) -> list[Outcome]:
    """First contentful paint on loopback, by browsers without a cache."""
    seconds = []
    with BrokerProcess(scene.place("console-paint") / "data") as broker:
        for _ in range(scene.size(7, 1)):
            with opened(broker) as page:
                page.goto(broker.http_url)
                page.locator("h1").first.wait_for()
                ask = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
                seconds.append(page.evaluate(ask) / 1000)
    return [Outcome("paint", "first paint on loopback", Series("median", "s", tuple(seconds)), None, at_most(0.3))]


LIST = """async () => {
  const began = performance.now();
  location.hash = '#/topics';
  while (!document.querySelector('.rows a')) await new Promise(done => requestAnimationFrame(done));
  return performance.now() - began;
}"""
FILTER = """async text => {
  const field = document.querySelector('input[type=search]'), rows = document.querySelector('.rows tbody');
  const began = performance.now();
  field.value = text;
  field.dispatchEvent(new Event('input', {bubbles: true}));
  while (rows.querySelectorAll('a').length !== 1) await new Promise(done => requestAnimationFrame(done));
  return performance.now() - began;
}"""


def topics(scene: Scene) -> list[Outcome]:
    """The list of 10,000 topics, and its filter."""
    count, listed, filtered = scene.size(10_000, 200), list[float](), list[float]()
    with BrokerProcess(scene.place("console-topics") / "data") as broker:
        asyncio.run(created(broker, count))
        with opened(broker) as page:
            for number in range(scene.size(7, 2)):
                page.goto(f"{broker.http_url}/#/nowhere")
                page.locator(".empty").wait_for()
                listed.append(page.evaluate(LIST) / 1000)
                filtered.append(page.evaluate(FILTER, f"many-{number:05}") / 1000)
    notes = {"topics": count}
    return [
        Outcome("list", f"list of {count} topics", Series("median", "s", tuple(listed)), None, at_most(0.5), notes),
        Outcome("filter", "filter of that list", Series("median", "s", tuple(filtered)), None, at_most(0.1), notes),
    ]


async def created(broker: BrokerProcess, count: int) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin:
        for begin in range(0, count, 50):
            names = (f"persistent://public/default/many-{one:05}" for one in range(begin, min(begin + 50, count)))
            await asyncio.gather(*(admin.topics.create(name) for name in names))


DRAW = """async ({rows, frames}) => {
  const {segmentsOf, layout} = await import('/console/timeline_layout.js');
  const {coloursOf, paint} = await import('/console/timeline_paint.js');
  const columns = ['id', 'start', 'end', 'createdAtMs', 'sealedAtMs', 'createdEpoch', 'sealedEpoch', 'parents'];
  const canvas = document.body.appendChild(document.createElement('canvas')), colours = coloursOf(document.body);
  const look = hovered => ({width: 1200, height: 420, colours, tick: null, metric: 'messages', hovered});
  const began = performance.now();
  const view = {scale: 'epoch', from: null, to: null, now: 1e10}, segments = segmentsOf(columns, rows);
  paint(canvas, layout(segments, view), look(null));
  const first = performance.now() - began, times = [];
  for (let frame = 0; frame < frames; frame++) {
    const at = performance.now();
    paint(canvas, layout(segments, {...view, from: frame}), look(frame % rows.length));
    times.push(performance.now() - at);
    await new Promise(done => requestAnimationFrame(done));
  }
  canvas.remove();
  return {first, times};
}"""


def timeline(scene: Scene) -> list[Outcome]:
    """5,000 segments: from their rows to the first picture, and the work of a frame while the pointer moves."""
    rows = lives(scene.size(5_000, 500))
    first, frames = [], []
    with BrokerProcess(scene.place("console-timeline") / "data") as broker, opened(broker) as page:
        page.goto(f"{broker.http_url}/#/nowhere")
        for _ in range(scene.size(5, 1)):
            found = page.evaluate(DRAW, {"rows": rows, "frames": scene.size(60, 5)})
            first.append(found["first"] / 1000)
            frames.append(percentile(found["times"], 0.95))
    notes = {"segments": len(rows)}
    return [
        Outcome(
            "timeline", "timeline, data to picture", Series("median", "s", tuple(first)), None, at_most(0.4), notes
        ),
        Outcome("frame", "frame, p95", Series("median", "ms", tuple(frames)), None, at_most(20), notes),
    ]


def lives(count: int) -> list[list[Any]]:
    """Rows of a topic whose active segments are split and merged in turn, `SEGMENTS` at most at a time."""
    rows: list[list[Any]] = [[0, 0, 65_535, 1_000_000, -1, 0, -1, []]]
    active, epoch = [0], 0
    while len(rows) < count:
        epoch += 1
        now = 1_000_000 + epoch * 1000
        at = epoch * 7 % len(active)
        start, end = rows[active[at]][1:3]
        if len(active) < SEGMENTS and end > start:
            parents, ranges = [active[at]], [(start, (start + end) // 2), ((start + end) // 2 + 1, end)]
        else:
            at = min(at, len(active) - 2)
            parents = active[at : at + 2]
            ranges = [(rows[parents[0]][1], rows[parents[1]][2])]
        for parent in parents:
            rows[parent][4], rows[parent][6] = now, epoch
        children = list(range(len(rows), len(rows) + len(ranges)))
        rows += [[one, *span, now, -1, epoch, -1, parents] for one, span in zip(children, ranges, strict=True)]
        active[at : at + len(parents)] = children
    return rows


SPLIT = """async ({url, child}) => {
  const began = performance.now();
  const answered = fetch(url, {method: 'POST', headers: {'X-Anabranch-Relay': '1'}});
  while (!document.querySelector(`[data-segment="${child}"]`)) await new Promise(done => requestAnimationFrame(done));
  const shown = performance.now() - began;
  await answered;
  return shown;
}"""


def split(scene: Scene) -> list[Outcome]:
    """From the request of a split until the timeline has its children."""
    seconds = []
    with BrokerProcess(scene.place("console-split") / "data") as broker, opened(broker) as page:
        Rest(broker.http_url).expect("PUT", f"{SCALABLE}/orders", {})
        page.goto(f"{broker.http_url}/#/topic/public/default/orders?even=1")
        page.locator(".live.live").wait_for()
        for number in range(scene.size(12, 2)):  # each halves the same end of the ring
            asked = {"url": f"{SCALABLE}/orders/split/{2 * number}", "child": 2 * number + 2}
            seconds.append(page.evaluate(SPLIT, asked) / 1000)
    return [Outcome("split", "a split until it is shown", Series("median", "s", tuple(seconds)), None, at_most(0.3))]


class Streams:
    """What open topic pages ask for, by plain HTTP clients: the stream of the topic."""

    def __init__(self, broker: BrokerProcess, count: int) -> None:
        self._place = urlsplit(broker.http_url)
        self._count = count
        self._open: list[http.client.HTTPConnection] = []

    def __enter__(self) -> Streams:
        for _ in range(self._count):
            one = http.client.HTTPConnection(self._place.hostname or "", self._place.port, timeout=30)
            one.request("GET", "/anabranch/v1/scalable/public/default/orders/events")
            answer = one.getresponse()
            if answer.status != 200 or not answer.read1(1):
                raise Failed(f"a stream was answered with {answer.status}")
            self._open.append(one)
        return self

    def __exit__(self, *failure: object) -> None:
        for one in self._open:
            one.close()


def broker_cpu(scene: Scene) -> list[Outcome]:
    """CPU of the broker with one open page of a topic of 64 segments, beside the same broker without."""
    seconds = scene.size(20, 1)
    with BrokerProcess(scene.place("console-cpu") / "data") as broker:
        Rest(broker.http_url).expect("PUT", f"{SCALABLE}/orders?numInitialSegments={SEGMENTS}", {})

        def used() -> float:
            before = broker.cpu_seconds()
            time.sleep(seconds)
            return 100 * (broker.cpu_seconds() - before) / seconds

        def viewed() -> float:
            with Streams(broker, 1):
                return used()

        used()
        with_page, without = side_by_side(scene.size(3, 1), viewed, used)
    extra = tuple(one - other for one, other in zip(with_page, without, strict=True))
    notes = {"with": with_page, "without": without}
    return [
        Outcome("cpu", "broker CPU of an open page", Series("median", "% of a core", extra), None, at_most(1), notes)
    ]


def _waited(waits: list[float], since: float, receipt: object) -> None:
    waits.append(time.perf_counter() - since)


async def publish_p99(broker: BrokerProcess, seconds: float) -> float:
    """Of the time from send to receipt at `RATE` keyed messages a second, in ms; an open loop."""
    waits: list[float] = []
    async with (
        anabranch.connect(broker.service_url) as client,
        client.producer("topic://public/default/orders") as producer,
    ):
        began, sent = time.perf_counter(), 0
        while (now := time.perf_counter()) < began + seconds:
            while sent < (now - began) * RATE:
                at = time.perf_counter()
                future = producer.send_nowait(b"x" * 100, key=f"k{sent % 500}")
                future.add_done_callback(partial(_waited, waits, at))
                sent += 1
            await asyncio.sleep(0.001)
        await producer.flush(timeout=30)
    return 1000 * percentile(waits[len(waits) // 10 :], 0.99)


def publish(scene: Scene) -> list[Outcome]:
    """p99 of publishing with ten open page streams against none."""
    seconds = scene.size(10, 1)
    with BrokerProcess(scene.place("console-publish") / "data") as broker:
        Rest(broker.http_url).expect("PUT", f"{SCALABLE}/orders?numInitialSegments=4", {})
        Rest(broker.http_url).expect("POST", f"{SCALABLE}/orders/autoScalePolicy", {"enabled": False})

        def alone() -> float:
            return asyncio.run(publish_p99(broker, seconds))

        def beside() -> float:
            with Streams(broker, STREAMS):
                return alone()

        alone()
        with_pages, without = side_by_side(scene.size(9, 1), beside, alone)
    measured, floor = Series("", "ms", with_pages), Series("without", "ms", without)
    return [Outcome("publish", f"publish p99 with {STREAMS} page streams", measured, floor, at_most(1.05))]


MEASURES: dict[str, Run] = {
    "size": size,
    "start": start,
    "paint": paint,
    "topics": topics,
    "timeline": timeline,
    "split": split,
    "cpu": broker_cpu,
    "publish": publish,
}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.console", MEASURES, (), arguments, mark="-console")


if __name__ == "__main__":
    raise SystemExit(main())
