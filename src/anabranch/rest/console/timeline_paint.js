// Paints the segment timeline on a canvas, and says how each segment looks. No state.

import { short, bytes, clock, hex } from "./format.js";
import { stateFor } from "./timeline_layout.js";

const GAP = 7; // pixels between parents and children, bridged by ribbons

export const METRICS = {
  messages: { label: "messages in /s", of: one => one?.rates?.in.msg["10"], text: value => `${short(value)}/s`, floor: 1 },
  bytes: { label: "bytes in /s", of: one => one?.rates?.in.bytes["10"], text: value => `${bytes(value)}/s`, floor: 100 },
  out: { label: "messages out /s", of: one => one?.rates?.out.msg["10"], text: value => `${short(value)}/s`, floor: 1 },
  stored: { label: "messages stored", of: one => one?.messages, text: value => short(value), floor: 10 },
  backlog: { label: "backlog", of: null, text: value => `${short(value)} behind`, floor: 1 },
  state: { label: "state", of: null, text: () => "", floor: 1 },
};

export const STATES = {
  read: "read by a consumer", waiting: "waits for its ancestors", behind: "unread, nobody reads it",
  free: "no consumer", drained: "drained",
};

/** Colours of the theme, from the custom properties of the page. */
export const coloursOf = element => {
  const style = getComputedStyle(element);
  const read = name => style.getPropertyValue(name).trim();
  return {
    ramp: [0, 1, 2, 3, 4, 5].map(index => read(`--ramp-${index}`)),
    sealed: read("--sealed"), sealedLine: read("--sealed-line"), line: read("--line"), text: read("--text"),
    faint: read("--faint"), page: read("--panel"), ghost: read("--accent"), select: read("--accent"),
    state: Object.fromEntries(Object.keys(STATES).map(name => [name, read(`--state-${name}`)])),
    font: style.fontFamily,
  };
};

/** A value's place on the ramp, 0…1: logarithmic, so that quiet and busy segments differ both. */
export const placeOf = (value, most, floor) =>
  value > 0 ? Math.min(1, Math.log1p(value / floor) / Math.log1p(Math.max(most, 10 * floor) / floor)) : 0;

const channels = colour => colour.match(/[0-9a-f]{2}/gi).map(part => parseInt(part, 16));
export const rampAt = (ramp, place) => {
  const exact = place * (ramp.length - 1), low = Math.min(ramp.length - 2, Math.floor(exact)), part = exact - low;
  const [a, b] = [channels(ramp[low]), channels(ramp[low + 1])];
  return a.map((value, index) => Math.round(value + (b[index] - value) * part));
};
const luminance = rgb => {
  const [r, g, b] = rgb.map(value => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

/** What a segment shows: {value, text, state}. */
export const readingOf = (rect, { metric, tick, subscription }) => {
  const figures = tick?.segments[rect.id], of = tick?.subscriptions[subscription];
  if (metric === "state") return { state: stateFor(rect.id, of, rect.isActive), value: null, text: "" };
  const value = metric === "backlog" ? of?.segments[rect.id]?.backlog : METRICS[metric].of(figures);
  const isRate = metric !== "backlog" && metric !== "stored";
  if (value === null || value === undefined || (isRate && !rect.isActive && !(value > 0))) return { value: null, text: "" };
  return { value, text: METRICS[metric].text(value) };
};

export const paint = (canvas, found, look) => {
  const { width, height, colours, selected, hovered, tick, metric } = look;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const boxOf = rect => {
    const x = rect.x0 * width, end = rect.x1 * width, wide = end - x > 3 * GAP;
    const left = wide && rect.segment.parents.length ? x + GAP : x, y = rect.y0 * height;
    return { x: left, y, w: Math.max(1, (wide && !rect.isActive ? end - GAP : end) - left), h: (rect.y1 - rect.y0) * height };
  };
  const boxes = new Map(found.rects.map(rect => [rect.id, boxOf(rect)]));
  ribbons(pen, found.rects, boxes, colours);
  const readings = new Map(found.rects.map(rect => [rect.id, readingOf(rect, look)]));
  const most = Math.max(0, ...[...readings.values()].map(one => one.value ?? 0));
  pen.textBaseline = "middle";
  for (const rect of found.rects)
    segment(pen, rect, boxes.get(rect.id), readings.get(rect.id), { ...look, most });
  if (tick?.operation) ghosts(pen, tick.operation, boxes, colours);
  for (const [id, colour, thick] of [[hovered, colours.text, 1.5], [selected, colours.select, 2.5]]) {
    const box = boxes.get(id);
    if (!box) continue;
    pen.strokeStyle = colour;
    pen.lineWidth = thick;
    round(pen, box.x + thick / 2, box.y + thick / 2, Math.max(1, box.w - thick), Math.max(1, box.h - thick), 4);
    pen.stroke();
  }
  return { boxes, most, metric };
};

const round = (pen, x, y, w, h, radius) => {
  pen.beginPath();
  pen.roundRect(x, y, w, h, Math.max(0, Math.min(radius, w / 2, h / 2)));
};

/** Curved banks between parents and children. */
const ribbons = (pen, rects, boxes, colours) => {
  pen.fillStyle = colours.sealed;
  for (const rect of rects) {
    const to = boxes.get(rect.id);
    for (const parent of rect.segment.parents) {
      const from = boxes.get(parent);
      if (!from) continue;
      const x0 = from.x + from.w, x1 = to.x;
      if (x1 - x0 < 2) continue;
      const top = Math.max(from.y, to.y), low = Math.min(from.y + from.h, to.y + to.h), middle = (x0 + x1) / 2;
      const [y0, y1] = [Math.max(top, to.y + 1), Math.min(low, to.y + to.h - 1)];
      pen.globalAlpha = 0.75;
      pen.beginPath();
      pen.moveTo(x0, top);
      pen.bezierCurveTo(middle, top, middle, y0, x1, y0);
      pen.lineTo(x1, y1);
      pen.bezierCurveTo(middle, y1, middle, low, x0, low);
      pen.fill();
      pen.globalAlpha = 1;
    }
  }
};

const segment = (pen, rect, box, reading, look) => {
  const { colours, metric, most } = look;
  const inset = box.h > 6 ? 1 : box.h > 3 ? 0.5 : 0;
  const [x, y, w, h] = [box.x, box.y + inset, box.w, Math.max(0.75, box.h - 2 * inset)];
  let ink = colours.faint, fill = colours.sealed;
  if (reading.state) {
    fill = colours.state[reading.state];
    ink = colours.text;
  } else if (reading.value !== null && (rect.isActive || metric === "backlog" || metric === "stored")) {
    const rgb = rampAt(colours.ramp, placeOf(reading.value, most, METRICS[metric].floor));
    fill = `rgb(${rgb})`;
    ink = luminance(rgb) > 0.3 ? "#0b1320" : "#f4f7fb";
  } else if (rect.isActive) {
    fill = `rgb(${rampAt(colours.ramp, 0)})`;
    ink = luminance(rampAt(colours.ramp, 0)) > 0.3 ? "#0b1320" : "#f4f7fb";
  }
  pen.globalAlpha = rect.isActive || reading.state || reading.value !== null ? 1 : 0.75;
  pen.fillStyle = fill;
  round(pen, x, y, w, h, 4);
  pen.fill();
  if (reading.state === "waiting" || reading.state === "drained") hatch(pen, x, y, w, h, colours, reading.state);
  pen.globalAlpha = 1;
  if (h >= 13 && w >= 34) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    pen.fillStyle = ink;
    pen.font = `600 11px ${colours.font}`;
    const label = `${rect.id}`, waits = look.tick?.subscriptions[look.subscription]?.waiting[rect.id];
    const tag = reading.state === "waiting" && waits ? `waits for ${waits.join(", ")}`
      : reading.state === "read" ? look.tick.subscriptions[look.subscription].segments[rect.id]?.consumer ?? "" : reading.text;
    const middle = y + h / 2;
    pen.fillText(label, x + 7, middle);
    const used = pen.measureText(label).width + 16;
    pen.font = `400 11px ${colours.font}`;
    if (tag && w > used + 30) pen.fillText(tag.slice(0, 40), x + used, middle);
    pen.restore();
  }
};

const hatch = (pen, x, y, w, h, colours, state) => {
  pen.save();
  round(pen, x, y, w, h, 4);
  pen.clip();
  pen.strokeStyle = state === "waiting" ? colours.text : colours.sealedLine;
  pen.globalAlpha = state === "waiting" ? 0.35 : 0.5;
  pen.lineWidth = 1;
  const step = state === "waiting" ? 5 : 8;
  pen.beginPath();
  for (let at = -h; at < w; at += step) {
    pen.moveTo(x + at, y + h);
    pen.lineTo(x + at + h, y);
  }
  pen.stroke();
  pen.restore();
};

/** The children of the running operation, dashed at the right edge of their parents. */
const ghosts = (pen, operation, boxes, colours) => {
  const parents = operation.parents.map(id => boxes.get(id)).filter(Boolean);
  if (!parents.length) return;
  const top = Math.min(...parents.map(box => box.y)), low = Math.max(...parents.map(box => box.y + box.h));
  const right = Math.max(...parents.map(box => box.x + box.w)), count = Math.max(1, operation.children.length);
  pen.setLineDash([4, 3]);
  pen.strokeStyle = colours.ghost;
  pen.lineWidth = 2;
  for (let index = 0; index < count; index++) {
    const h = (low - top) / count;
    round(pen, right - 74, top + index * h + 2, 70, h - 4, 4);
    pen.stroke();
  }
  pen.setLineDash([]);
};

/** Marks of the time axis: [{x: 0…1, text}], at most one per 90 pixels. */
export const marksOf = (found, scale, width, utc) => {
  const count = Math.max(2, Math.floor(width / 110)), marks = [];
  if (scale === "epoch") {
    const step = Math.max(1, Math.ceil((found.last - found.first) / count));
    for (let epoch = found.first; epoch < found.last; epoch += step)
      marks.push({ x: found.xOf({ epoch, ms: 0 }), text: `epoch ${epoch}` });
    return marks;
  }
  for (let index = 0; index < count; index++) {
    const x = index / count;
    let ms;
    if (scale === "time") ms = found.from + x * (found.to - found.from);
    else ms = found.to - 1000 * Math.expm1((1 - x) * Math.log1p(Math.max(1, found.to - found.from) / 1000));
    marks.push({ x, text: clock(ms, utc) });
  }
  return marks;
};

export const rangeOf = segment => `${hex(segment.start)}–${hex(segment.end)}`;
