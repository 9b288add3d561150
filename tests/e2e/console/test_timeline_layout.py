"""The layout of the segment timeline in the browser, on generated lives of topics: every epoch tiles the ring."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.e2e.console.conftest import Watched

COLUMNS = ["id", "start", "end", "createdAtMs", "sealedAtMs", "createdEpoch", "sealedEpoch", "parents", "topic"]
RING = 65_536
pytestmark = pytest.mark.slow


def life(seed: int, changes: int) -> list[list[Any]]:
    """Rows of a topic after random splits and merges; clocks of brokers differ by up to a second."""
    chance = random.Random(seed)
    count = chance.choice([1, 2, 3, 7])
    starts = [index * RING // count for index in range(count)] + [RING]
    rows: list[list[Any]] = [[n, starts[n], starts[n + 1] - 1, 1_000_000, -1, 0, -1, [], None] for n in range(count)]
    active, now = list(range(count)), 1_000_000
    for epoch in range(1, changes + 1):
        now += chance.choice([0, 5, 1_000, 3_600_000])
        at = chance.randrange(len(active))
        one = rows[active[at]]
        if len(active) > 1 and (chance.random() < 0.45 or one[1] == one[2]):
            at = min(at, len(active) - 2)
            parents, cuts = active[at : at + 2], list[int]()
        else:
            parents = [active[at]]
            width = one[2] - one[1]
            if width < 1:
                continue
            cuts = sorted(chance.sample(range(one[1] + 1, one[2] + 1), min(width, chance.choice([1, 1, 1, 2, 3]))))
        low, high = rows[parents[0]][1], rows[parents[-1]][2]
        for parent in parents:
            rows[parent][4], rows[parent][6] = now + chance.randrange(1000), epoch
        children = []
        for begin, end in zip([low, *cuts], [*cuts, high + 1], strict=True):
            near = [p for p in parents if rows[p][1] < end and rows[p][2] >= begin]
            rows.append([len(rows), begin, end - 1, now - chance.randrange(1000), -1, epoch, -1, near, None])
            children.append(len(rows) - 1)
        active[at : at + len(parents)] = children
    return rows


CHECK = """async ({columns, lives}) => {
  const {segmentsOf, layout, violations, rectAt} = await import("/console/timeline_layout.js");
  const bad = [];
  for (const rows of lives) {
    const segments = segmentsOf(columns, rows);
    const last = Math.max(...segments.map(one => Math.max(one.createdAtMs, one.sealedAtMs)));
    for (const scale of ["time", "log", "epoch"]) for (const even of [false, true]) {
      const found = layout(segments, {scale, even, from: null, to: null, now: last + 60000});
      bad.push(...violations(found).map(text => `${scale} even=${even}: ${text}`));
      if (found.rects.length !== segments.length) bad.push(`${scale}: ${found.rects.length} of ${segments.length}`);
      for (let step = 0; step < 20; step++) {
        const y = (step + 0.5) / 20, hit = rectAt(found.rects.filter(one => one.isActive), 0.9999999, y);
        if (!hit || hit.y0 > y || hit.y1 <= y) bad.push(`${scale}: nothing at ${y}`);
      }
    }
  }
  return bad.slice(0, 20);
}"""


def test_rectangles_tile_the_plane_in_every_epoch(view: Watched) -> None:
    page = view.open("nowhere")
    lives = [life(seed, changes) for seed in range(40) for changes in (0, 1, 25)]
    assert page.evaluate(CHECK, {"columns": COLUMNS, "lives": lives}) == []


def test_past_epochs_tile_the_ring_too_and_cuts_are_inside(view: Watched) -> None:
    page = view.open("nowhere")
    found = page.evaluate(
        """async ({columns, rows}) => {
          const {segmentsOf, layout, violations, asOf, cutAt} = await import("/console/timeline_layout.js");
          const segments = segmentsOf(columns, rows), last = Math.max(...segments.map(one => one.createdEpoch));
          const bad = [];
          for (let epoch = 0; epoch <= last; epoch++) {
            const laid = layout(asOf(segments, epoch), {scale: "epoch", from: null, to: null, now: 1e10});
            bad.push(...violations(laid).map(text => `${epoch}: ${text}`));
            for (const one of laid.rects.filter(it => it.isActive && it.segment.end > it.segment.start))
              for (const y of [0, one.y0, (one.y0 + one.y1) / 2, one.y1, 1]) {
                const cut = cutAt(one, y);
                if (cut <= one.segment.start || cut > one.segment.end) bad.push(`cut ${cut} of ${one.id}`);
              }
          }
          return {bad, last, same: JSON.stringify(asOf(segments, last)) === JSON.stringify(segments)};
        }""",
        {"columns": COLUMNS, "rows": life(11, 25)},
    )
    assert found["bad"] == [] and found["last"] > 10 and found["same"]


def test_violations_are_found(view: Watched) -> None:
    page = view.open("nowhere")
    rows = life(3, 10)
    gap = [list(row) for row in rows]
    gap[-1][2] -= 1
    stranger = [list(row) for row in rows]
    stranger[-1][7] = [0]
    assert page.evaluate(CHECK, {"columns": COLUMNS, "lives": [gap]}) != []
    assert page.evaluate(CHECK, {"columns": COLUMNS, "lives": [stranger]}) != []


def test_five_thousand_segments_are_laid_out_and_painted_fast(view: Watched) -> None:
    page = view.open("nowhere")
    found = page.evaluate(
        """async ({columns, rows}) => {
          const {segmentsOf, layout} = await import("/console/timeline_layout.js");
          const {coloursOf, paint} = await import("/console/timeline_paint.js");
          const canvas = document.createElement("canvas"), frame = document.body;
          const times = [];
          for (let round = 0; round < 10; round++) {
            const began = performance.now();
            const now = 1e10, view = {scale: "epoch", from: null, to: null, now};
            const laid = layout(segmentsOf(columns, rows), view);
            paint(canvas, laid, {width: 1200, height: 420, colours: coloursOf(frame), tick: null, metric: "messages"});
            times.push(performance.now() - began);
          }
          return {segments: rows.length, median: times.sort((a, b) => a - b)[5], most: times.at(-1)};
        }""",
        {"columns": COLUMNS, "rows": life(5, 3000)},
    )
    print(found)
    assert found["segments"] > 4_000
    assert found["median"] < 2_000, "a deadline for a busy machine; it takes some 20 ms"


def test_other_pure_functions(view: Watched) -> None:
    page = view.open("nowhere")
    found = page.evaluate(
        r"""async () => {
          const {short, whole, bytes, plain, quoted, duration, moment} = await import("/console/format.js");
          const {parser} = await import("/console/stream.js");
          const {hexDump, indented, admitted} = await import("/console/messages.js");
          const {filtered} = await import("/console/page_topics.js");
          const text = 'event: tick\nid: 3\ndata: {"a":"é\\n"}\n\n:\n\nevent: bye\ndata: {}\n\n', seen = [];
          for (let size = 1; size < text.length; size++) {
            const got = [], feed = parser((name, data) => got.push([name, data]));
            for (let at = 0; at < text.length; at += size) feed(text.slice(at, at + size));
            seen.push(JSON.stringify(got));
          }
          const row = (name, kind) => ({name, kind, tenant: "public", namespace: "default"});
          const rows = [row("topic://p/d/Orders", "scalable"), row("persistent://p/d/pay", "regular")];
          return {
            numbers: [short(1234567), short(0.25), short(999), short(null), whole("9007199254740993"), bytes(1536)],
            text: [plain("a\u202eb\u0000"), quoted("it's"), quoted("topic://a/b/c"), duration(93000), moment(0, true)],
            events: [...new Set(seen)],
            json: ['{"a":[1,{"b":"x,:{"}],"c":{},"n":12345678901234567890}', "no { json", "[]"].map(indented),
            hex: hexDump(new Uint8Array([0x41, 0, 0xff])),
            admitted: ["", "key:a", "SEGMENT", "segment:2 x"].map(text => admitted(
              [{id: "1:2", key: "a", segment: 2, payload: "x", properties: {}}], text).length),
            filters: ["", "ord", "kind:reg", "ns:public/default pay", "ns:other"].map(q => filtered(rows, q).length),
          };
        }"""
    )
    assert found == {
        "numbers": ["1.23 M", "0.3", "999", "–", "9,007,199,254,740,993", "1.50 KiB"],
        "text": ["a\\u202eb\\u0000", "'it'\\''s'", "topic://a/b/c", "1 min 33 s", "–"],
        "events": ['[["tick",{"a":"é\\n"}],["bye",{}]]'],
        "json": [
            '{\n  "a": [\n    1,\n    {\n      "b": "x,:{"\n    }\n  ],\n  "c": {},\n  "n": 12345678901234567890\n}',
            "no { json",
            "[]",
        ],
        "hex": f"0000  {'41 00 ff'.ljust(47)}  A..",
        "admitted": [1, 1, 0, 1],
        "filters": [2, 1, 1, 1, 0],
    }
