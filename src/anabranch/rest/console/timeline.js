// The segment timeline as a component: two layers (canvas; buttons of the active segments), scales, legend, keyboard.

import { useEffect, useRef } from "./hooks.js";
import { useSignal } from "./signals.js";
import { moment, duration, hex, whole } from "./format.js";
import { asOf, cutAt, layout, momentsOf, rectAt } from "./timeline_layout.js";
import { METRICS, STATES, coloursOf, marksOf, paint, rangeOf, readingOf } from "./timeline_paint.js";
import { html, isUtc, now, remember, route, theme } from "./ui.js";

const SPANS = { all: null, "15m": 900e3, "1h": 3600e3, "1d": 86400e3 };
const HEIGHT = 420;

/** What the URL says of the timeline. */
export const settingsOf = query => ({
  scale: ["time", "log", "epoch"].includes(query.scale) ? query.scale : "time",
  span: query.span in SPANS ? query.span : "all",
  even: query.even === "1",
  metric: query.metric in METRICS ? query.metric : "messages",
  epoch: /^\d+$/.test(query.epoch ?? "") ? Number(query.epoch) : null, // null: now
});

/** `cut`: where the selected segment would be split; `onCut(position)` moves it. */
export const Timeline = ({ segments, tick, selected, onSelect, subscription, stale, cut, onCut }) => {
  const frame = useRef(null), canvas = useRef(null), found = useRef(null);
  const width = useSignal(0), hovered = useSignal(null), pointer = useSignal({ x: 0, y: 0 }), most = useSignal(0);
  const settings = settingsOf(route.value.query), dark = useSignal(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => { width.value = Math.floor(entry.contentRect.width); });
    watch.observe(frame.current);
    const query = matchMedia("(prefers-color-scheme: dark)"), change = () => { dark.value++; };
    query.addEventListener("change", change);
    return () => { watch.disconnect(); query.removeEventListener("change", change); };
  }, []);
  const at = Math.max(now.value, tick?.t ?? 0), span = SPANS[settings.span];
  const moments = momentsOf(segments.values()), epochs = [...moments.keys()], past = settings.epoch !== null && settings.epoch < epochs.at(-1) ? settings.epoch : null;
  const until = past === null ? at : moments.get(epochs.find(one => one > past)); // a past epoch is shown up to its end
  const view = { scale: settings.scale, from: span && until - span, to: null, now: until, even: settings.even };
  found.current = layout(past === null ? segments.values() : asOf(segments.values(), past), view);
  const { rects } = found.current, look = { metric: settings.metric, tick, subscription };
  useEffect(() => {
    if (!width.value) return;
    const shown = paint(canvas.current, found.current, {
      ...look, width: width.value, height: HEIGHT, colours: coloursOf(frame.current), selected, hovered: hovered.value,
    });
    most.value = shown.most;
  }, [segments, tick, selected, hovered.value, width.value, theme.value, dark.value, route.value, subscription, at]);

  const move = event => {
    const box = canvas.current.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    pointer.value = { x: event.clientX - box.left, y: event.clientY - box.top };
    hovered.value = rectAt(rects, x, y)?.id ?? null;
  };
  const active = rects.filter(one => one.isActive).sort((a, b) => a.y0 - b.y0);
  const step = (event, index) => {
    const next = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: active.length - 1 }[event.key];
    if (next === undefined || !active[next]) return;
    event.preventDefault();
    frame.current.querySelector(`[data-segment="${active[next].id}"]`)?.focus();
  };
  const marks = marksOf(found.current, settings.scale, width.value, isUtc.value);
  const over = hovered.value === null ? null : rects.find(one => one.id === hovered.value);
  return html`<section class="timeline ${stale ? "stale" : ""}" aria-label="segment timeline">
    <${Controls} settings=${settings} tick=${tick} subscription=${subscription} />
    <div class="plot">
      <div class="ring" aria-hidden="true">${["0000", "4000", "8000", "c000", "ffff"].map(text => html`<span>${settings.even ? "" : text}</span>`)}</div>
      <div class="frame" ref=${frame} style=${{ height: `${HEIGHT}px` }}>
        <canvas ref=${canvas} style=${{ width: "100%", height: `${HEIGHT}px` }} role="img"
                aria-label=${`${active.length} active and ${rects.length - active.length} sealed segments`}
                onPointerMove=${move} onPointerLeave=${() => { hovered.value = null; }}
                onClick=${event => { move(event); onSelect(hovered.value, event.shiftKey); }}></canvas>
        ${active.length <= 64 && active.map((one, index) => html`<button class="hit" key=${one.id} data-segment=${one.id}
            aria-pressed=${selected === one.id} aria-label=${labelOf(one, look)} onKeyDown=${event => step(event, index)}
            onClick=${event => onSelect(one.id, event.shiftKey)}
            onPointerMove=${move} onPointerLeave=${() => { hovered.value = null; }}
            style=${{ left: `${one.x0 * 100}%`, width: `${Math.max(0.2, one.x1 - one.x0) * 100}%`, right: "auto",
                      top: `${one.y0 * HEIGHT}px`, height: `${(one.y1 - one.y0) * HEIGHT}px` }}></button>`)}
        ${past === null && html`<${Cut} rect=${active.find(one => one.id === selected)} cut=${cut} onCut=${onCut} frame=${frame} />`}
        ${over && html`<${Tip} rect=${over} look=${look} at=${at} pointer=${pointer.value} width=${width.value} />`}
      </div>
    </div>
    <div class="axis" aria-hidden="true">${marks.map(mark =>
      html`<span style=${{ left: `${mark.x * 100}%` }}>${mark.text}</span>`)}<span class="now">now</span></div>
    ${epochs.length > 1 && html`<${Scrubber} epochs=${epochs} moments=${moments} past=${past} />`}
    <${Legend} metric=${settings.metric} most=${most.value} />
  </section>`;
};

/** A handle on the selected segment: where it would be cut. Dragged, or moved by arrow keys. */
const Cut = ({ rect, cut, onCut, frame }) => {
  if (!rect || rect.segment.end <= rect.segment.start) return null;
  const { start, end } = rect.segment, y = rect.y0 + (cut - start) / (end + 1 - start) * (rect.y1 - rect.y0);
  const drag = event => {
    if (!event.buttons) return;
    const box = frame.current.getBoundingClientRect();
    onCut(cutAt(rect, (event.clientY - box.top) / box.height));
  };
  const key = event => {
    const step = Math.max(1, (end - start + 1) >> (event.shiftKey ? 10 : 6));
    const to = { ArrowDown: cut + step, ArrowUp: cut - step, Home: start + 1, End: end }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    onCut(Math.min(end, Math.max(start + 1, to)));
  };
  return html`<div class="cut" role="slider" tabindex="0" aria-label=${`cut of segment ${rect.id}`} aria-orientation="vertical" aria-valuemin=${start + 1} aria-valuemax=${end}
    aria-valuenow=${cut} aria-valuetext=${hex(cut)} title="drag, or arrow keys" style=${{ top: `${y * HEIGHT}px`, left: `${rect.x0 * 100}%`, width: `${(rect.x1 - rect.x0) * 100}%`, right: "auto" }} onKeyDown=${key}
    onPointerDown=${event => { event.currentTarget.setPointerCapture(event.pointerId); event.preventDefault(); }} onPointerMove=${drag}><span>${hex(cut)}</span></div>`;
};

/** Goes back through the epochs; the newest one is live. */
const Scrubber = ({ epochs, moments, past }) => {
  const index = past === null ? epochs.length - 1 : Math.max(0, epochs.findLastIndex(one => one <= past));
  return html`<div class="scrubber"><label>epoch <input type="range" min="0" max=${epochs.length - 1} value=${index} aria-valuetext=${`epoch ${epochs[index]}`}
      onInput=${event => { const at = Number(event.target.value); remember({ epoch: at === epochs.length - 1 ? "" : String(epochs[at]) }); }} /></label>
    <span>${past === null ? html`${epochs[index]}, now` : html`${epochs[index]}, from ${moment(moments.get(epochs[index]), isUtc.value)}`}</span>
    ${past !== null && html`<button onClick=${() => remember({ epoch: "" })}>Now</button>`}</div>`;
};

const labelOf = (rect, look) => {
  const reading = readingOf(rect, look);
  return `segment ${rect.id}, keys ${rangeOf(rect.segment)}, ${reading.state ? STATES[reading.state] : reading.text || "no figures"}`;
};

const Controls = ({ settings, tick, subscription }) => {
  const names = Object.keys(tick?.subscriptions ?? {});
  const needsSubscription = settings.metric === "state" || settings.metric === "backlog";
  const choose = (name, options, value) => html`<div class="choice" role="group" aria-label=${name}>${options.map(([key, label]) =>
    html`<button aria-pressed=${key === value} onClick=${() => remember({ [name]: key })}>${label}</button>`)}</div>`;
  return html`<div class="controls">
    ${choose("scale", [["time", "time"], ["log", "log time"], ["epoch", "epochs"]], settings.scale)}
    ${settings.scale !== "epoch" && choose("span", [["15m", "15 min"], ["1h", "1 h"], ["1d", "1 d"], ["all", "all"]], settings.span)}
    ${choose("even", [["", "ring"], ["1", "even rows"]], settings.even ? "1" : "")}
    <label>colour <select value=${settings.metric} onChange=${event => remember({ metric: event.target.value })}>
      ${Object.entries(METRICS).map(([key, { label }]) => html`<option value=${key}>${label}</option>`)}</select></label>
    ${needsSubscription && html`<label>subscription <select value=${subscription}
        onChange=${event => remember({ subscription: event.target.value })}>
      ${names.length ? names.map(name => html`<option value=${name}>${name}</option>`) : html`<option value="">none</option>`}</select></label>`}
  </div>`;
};

const Legend = ({ metric, most }) => html`<div class="legend" aria-hidden="true">
  ${metric === "state"
    ? Object.entries(STATES).map(([name, label]) => html`<span class="key"><i class="state-${name}"></i>${label}</span>`)
    : html`<span>${METRICS[metric].label}: 0</span><i class="ramp"></i><span>${METRICS[metric].text(most) || "0"}</span>`}
  <span class="key"><i class="sealed"></i>sealed</span><span class="key"><i class="ghost"></i>running operation</span>
</div>`;

const Tip = ({ rect, look, at, pointer, width }) => {
  const { segment } = rect, figures = look.tick?.segments[rect.id], reading = readingOf(rect, look);
  const right = pointer.x > width - 260;
  return html`<div class="tip" role="tooltip" style=${{
      left: right ? "auto" : `${pointer.x + 14}px`, right: right ? `${width - pointer.x + 14}px` : "auto",
      top: `${Math.min(HEIGHT - 130, pointer.y + 10)}px` }}>
    <strong>segment ${rect.id}</strong> <code>${rangeOf(segment)}</code>
    <dl>
      <dt>from</dt><dd>${moment(segment.createdAtMs, isUtc.value)}</dd>
      <dt>${rect.isActive ? "active for" : "sealed after"}</dt>
      <dd>${duration((rect.isActive ? at : segment.sealedAtMs) - segment.createdAtMs)}</dd>
      ${segment.parents.length > 0 && html`<dt>parents</dt><dd>${segment.parents.join(", ")}</dd>`}
      ${figures && html`<dt>messages</dt><dd>${whole(figures.messages)}</dd>`}
      ${(reading.text || reading.state) && html`<dt>${METRICS[look.metric].label}</dt><dd>${reading.text || STATES[reading.state]}</dd>`}
    </dl></div>`;
};
