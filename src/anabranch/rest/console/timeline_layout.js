// Layout of the segment timeline: segments of a topic as rectangles, time (or epochs) × hash range. Pure.
//
// In every epoch the active segments tile the ring, so the rectangles tile the plane: nothing crosses, and a child
// touches its parents. Both sides of a change have one moment, that of its epoch, although clocks say slightly different
// times for the seal of the parents and the creation of the children.

export const RING = 65536;

/** Rows of the timeline's columns as objects. */
export const segmentsOf = (columns, rows) =>
  rows.map(row => Object.fromEntries(columns.map((name, index) => [name, row[index]])));

/** Changes of a layout event in a map of segments by id; a new map. Rows replace, nothing is removed. */
export const merged = (known, changed) => {
  const next = new Map(known);
  for (const one of changed) next.set(one.id, one);
  return next;
};

/** The segments as they were in an epoch: younger ones are not there, those that were sealed later are active. Pure. */
export const asOf = (segments, epoch) => [...segments].filter(one => one.createdEpoch <= epoch)
  .map(one => (one.sealedEpoch > epoch ? { ...one, sealedEpoch: -1, sealedAtMs: -1 } : one));

/** The ring position at a height 0…1 of an active segment's rectangle, inside of the segment: where it can be cut. Pure. */
export const cutAt = (rect, y) => {
  const { start, end } = rect.segment, place = (y - rect.y0) / (rect.y1 - rect.y0);
  return Math.min(end, Math.max(start + 1, Math.round(start + place * (end + 1 - start))));
};

/** The moment of each epoch in ms: Map epoch → ms, growing. The first epoch has the creation of its segments. */
export const momentsOf = segments => {
  const sealed = new Map(), created = new Map();
  const raise = (map, epoch, ms) => map.set(epoch, Math.max(map.get(epoch) ?? 0, ms));
  for (const one of segments) {
    raise(created, one.createdEpoch, one.createdAtMs);
    if (one.sealedEpoch >= 0) raise(sealed, one.sealedEpoch, one.sealedAtMs);
  }
  const moments = new Map();
  let last = 0;
  for (const epoch of [...new Set([...created.keys(), ...sealed.keys()])].sort((a, b) => a - b)) {
    last = Math.max(last, sealed.get(epoch) ?? created.get(epoch));
    moments.set(epoch, last);
  }
  return moments;
};

/** Horizontal scales: a moment or epoch to 0…1. Each grows strictly enough that children never begin before parents. */
const SCALES = {
  time: ({ from, to }) => point => (point.ms - from) / Math.max(1, to - from),
  log: ({ from, to }) => {
    const unit = 1000, whole = Math.log1p(Math.max(1, to - from) / unit);
    return point => 1 - Math.log1p(Math.max(0, to - point.ms) / unit) / whole;
  },
  epoch: ({ first, last }) => point => (point.epoch - first) / Math.max(1, last - first),
};

/** Vertical scale: a ring position 0…65536 to 0…1. `even`: each active segment has the same height. */
const verticalOf = (active, even) => {
  if (!even || active.length === 0) return position => position / RING;
  const starts = [...active.map(one => one.start), RING];
  return position => {
    let low = 0, high = starts.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= position) low = middle; else high = middle;
    }
    return (low + (position - starts[low]) / (starts[high] - starts[low])) / active.length;
  };
};

/**
 * Rectangles of all segments that a window shows.
 * `view`: {scale: "time"|"log"|"epoch", from, to, now, even}; from and to in ms, null: all that is known.
 * Returns {rects: [{id, x0, x1, y0, y1, isActive, segment}], moments, from, to, xOf, yOf}; x and y are 0…1.
 */
export const layout = (segments, view) => {
  const all = [...segments];
  const moments = momentsOf(all);
  const epochs = [...moments.keys()];
  const first = epochs[0] ?? 0, last = (epochs.at(-1) ?? 0) + 1;
  const to = Math.max(view.to ?? view.now, (epochs.length ? moments.get(epochs.at(-1)) : 0));
  const from = Math.min(view.from ?? (epochs.length ? moments.get(first) : to), to);
  const active = all.filter(one => one.sealedEpoch < 0).sort((a, b) => a.start - b.start);
  const xOf = SCALES[view.scale ?? "time"]({ from, to, first, last });
  const yOf = verticalOf(active, view.even);
  const at = epoch => xOf({ ms: moments.get(epoch), epoch });
  const end = xOf({ ms: to, epoch: last });
  const clip = value => Math.min(1, Math.max(0, value));
  const rects = [];
  for (const one of all) {
    const isActive = one.sealedEpoch < 0;
    const until = isActive ? end : at(one.sealedEpoch);
    if (until < 0) continue; // before the window
    rects.push({ id: one.id, x0: clip(at(one.createdEpoch)), x1: clip(until), y0: yOf(one.start), y1: yOf(one.end + 1), isActive, segment: one });
  }
  return { rects, moments, from, to, first, last, xOf, yOf };
};

/** The rectangle at a point, both 0…1; undefined: none. */
export const rectAt = (rects, x, y) =>
  rects.find(one => x >= one.x0 && x <= one.x1 && y >= one.y0 && y < one.y1);

/** What is wrong with a layout, as texts; empty for a correct one. For tests. */
export const violations = found => {
  const bad = [], byId = new Map(found.rects.map(one => [one.id, one]));
  if (byId.size !== found.rects.length) bad.push("two rectangles with one id");
  const epsilon = 1e-9;
  for (const epoch of found.moments.keys()) {
    const alive = found.rects
      .filter(({ segment: it }) => it.createdEpoch <= epoch && (it.sealedEpoch < 0 || it.sealedEpoch > epoch))
      .sort((a, b) => a.y0 - b.y0);
    if (alive.length === 0) continue; // outside of the window
    let y = 0;
    for (const one of alive) {
      if (Math.abs(one.y0 - y) > epsilon) bad.push(`epoch ${epoch}: gap or overlap at ${one.y0}`);
      y = one.y1;
    }
    if (Math.abs(y - 1) > epsilon) bad.push(`epoch ${epoch}: ends at ${y}`);
  }
  for (const one of found.rects) {
    if (one.x1 < one.x0) bad.push(`segment ${one.id} ends before it begins`);
    for (const parent of one.segment.parents) {
      const above = byId.get(parent);
      if (above && Math.abs(above.x1 - one.x0) > epsilon) bad.push(`segment ${one.id} does not touch parent ${parent}`);
      if (above && (above.y1 <= one.y0 + epsilon || above.y0 >= one.y1 - epsilon))
        bad.push(`segment ${one.id} is not beside parent ${parent}`);
    }
  }
  return bad;
};

/** State of a segment for a subscription: "drained", "read", "waiting", "free" (nobody has it), "behind". */
export const stateFor = (id, subscription, isActive) => {
  const found = subscription?.segments[id];
  if (!found) return isActive ? "free" : "drained"; // an old sealed segment that no tick mentions any more
  if (found.drained) return "drained";
  if (subscription.waiting[id]) return "waiting";
  if (found.consumer || found.consumers > 0) return "read";
  return found.backlog > 0 ? "behind" : "free";
};
